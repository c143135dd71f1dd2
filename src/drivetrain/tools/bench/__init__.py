"""Load on a worker or on any OpenAI-compatible server, its results, and the limits of the machine."""
