"""The state of a running server: its pages are read, gathered into one report, and judged."""
