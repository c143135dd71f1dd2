"""Whether several engines give the same answers to the same prompts, token by token."""
