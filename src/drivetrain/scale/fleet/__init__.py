"""Several models in one server: which of them are loaded, who uses them, and which one makes room for another.

A request's way through it:

1. `Fleet.lease` gives a hold on one model (`member.py`). Where the model is loaded it is granted at once.
2. Else the request waits in the line of that model (`member.py`) within its own deadline, and the fleet thinks anew.
3. `policy.plan`, a pure function, looks at all models and says what to load, what to unload, and which busy models take
   no new requests so that they become free.
4. `fleet.py` does that, one task a load and one an unload, and thinks anew when something has changed.
5. A model that is loaded grants all who wait for it; while anybody holds a lease it is never unloaded.

It knows workers by the port of the core alone, and what opens them is handed to it.
"""
