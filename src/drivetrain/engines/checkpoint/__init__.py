"""What the engines share that load a checkpoint through the transformers library."""
