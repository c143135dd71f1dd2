"""Reads what a model's answer says: content, reasoning and tool calls, in whichever form the model writes them."""
