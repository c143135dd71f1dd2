"""vLLM's asynchronous engine in this process: token ids in and out. Nothing of vLLM is imported before `load`."""
