"""How a running server is: what it tells of itself, read, gathered into one report, and judged."""
