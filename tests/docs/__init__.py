"""The pages run: each of their blocks is pasted, as a reader would."""
