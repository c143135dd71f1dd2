"""HTTP/1.1 as a client: one request per connection, for everything here that calls another server."""
