"""Shared by the engines that load checkpoints with the transformers library."""
