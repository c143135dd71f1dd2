"""The cache of keys and values: who owns which rows, and the tensors behind them."""
