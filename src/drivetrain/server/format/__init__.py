"""What answers look like: one file an API."""
