"""What only a CUDA device computes as it is meant: with stand-ins on the CPU. `on_cuda` has it run there."""
