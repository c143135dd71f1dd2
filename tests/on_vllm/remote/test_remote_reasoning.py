"""The cases of `contract/test_reasoning.py`, on the remote engine in front of vLLM's own server."""

from contract.test_reasoning import *  # noqa: F403
