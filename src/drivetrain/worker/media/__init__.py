"""Images of requests: fetched, decoded, counted and let go."""
