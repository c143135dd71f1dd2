"""What answers look like, one file per API."""
