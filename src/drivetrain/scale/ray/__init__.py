"""The worker on Ray Serve: replicas, the worker port over their handle, the server in front. Only here is Ray known."""
