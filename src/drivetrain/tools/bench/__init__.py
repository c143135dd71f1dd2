"""Load on a worker or on any OpenAI-compatible server, what came of it, and what the machine could give."""
