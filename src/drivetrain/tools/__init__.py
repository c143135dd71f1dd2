"""What measures, checks and compares workers and servers. Tools know a worker by its port, a server by its URL."""
