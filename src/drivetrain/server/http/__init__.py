"""Below the routes: connections, heads, bodies, and whether the client is still there."""
