"""Which sequence does what in the next step. No tensors."""
