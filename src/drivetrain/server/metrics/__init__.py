"""`/metrics`: what the workers and the server counted."""
