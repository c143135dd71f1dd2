"""Images of requests: fetched, decoded, counted and released."""
