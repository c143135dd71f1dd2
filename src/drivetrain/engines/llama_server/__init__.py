"""llama.cpp's server over `/completion`: what it is asked and what it streams, for `llamacpp` and for `remote`."""
