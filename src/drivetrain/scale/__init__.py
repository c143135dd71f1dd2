"""Ways past one model or one machine: several models in one server, several replicas on Ray Serve."""
