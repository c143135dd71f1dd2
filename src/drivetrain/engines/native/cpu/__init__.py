"""What makes a step fast on a CPU."""
