"""Several models in one server: which are loaded, who uses them, and which one makes room for another.

The path of a request:

1. `Fleet.lease` gives a hold on one model (`member.py`). If the model is loaded, it is granted at once.
2. Otherwise the request waits in that model's line (`member.py`), up to its own deadline, and the fleet decides anew.
3. `policy.plan`, a pure function, looks at all models and says what to load, what to unload, and which busy models take
   no new requests so that they become free.
4. `placement.py` does that, with one task per load and unload (`moves.py`), and decides anew when something changes.
5. Once a model is loaded, all who wait for it are granted; while anybody holds a lease, it is never unloaded.

It only knows the worker port of the core; how to open a worker is handed to it.
"""
