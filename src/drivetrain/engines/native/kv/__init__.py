"""The cache of keys and values: who holds which blocks, and the tensors behind them."""
