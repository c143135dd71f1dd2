"""Servers whose model says a script, in our environment: what no small model says on request. Ends with its input."""

from __future__ import annotations

import json
import sys

from drivetrain.core.errors import EngineFailed
from server.serving import fake, serving, thoughtful

CALLS = 'Let me see.\n<tool_call>\n{"name": "Alarm", "arguments": {"floor": 3, "loud": true}}\n</tool_call>'

if __name__ == "__main__":
    with (
        serving(thoughtful(text="<think>\nEasy.\n</think>\n\n" + CALLS, ids_per_step=3)) as reasons,
        serving(fake(text="one two three four", fault=EngineFailed("it broke"), fault_at_step=5)) as fails,
    ):
        urls = {name: [served.base, served.model] for name, served in (("reasons", reasons), ("fails", fails))}
        print(json.dumps(urls), flush=True)
        sys.stdin.read()
