"""The cases of `contract/test_reasoning_parameters.py`, on the remote engine in front of vLLM's own server."""

from contract.test_reasoning_parameters import *  # noqa: F403
