"""HTTP/1.1 as a client: one request a connection, for everything here that asks another server."""
