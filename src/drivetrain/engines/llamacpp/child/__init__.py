"""llama.cpp's server in a child process, and the connection to it."""
