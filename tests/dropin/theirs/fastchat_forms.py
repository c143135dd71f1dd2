"""Runs in FastChat's environment: renders chats with conversation templates, as its API server does.

From stdin `[[template, chat], ...]`, a chat being `[[role, text], ...]`; to stdout a list of prompts.
"""

import json
import sys

from fastchat.conversation import Conversation, SeparatorStyle  # type: ignore[import-not-found] # not in our environment


def render(template: dict[str, object], chat: list[list[str]]) -> str:
    style = SeparatorStyle(template["sep_style"])
    made = Conversation(**{**template, "sep_style": style, "messages": []})
    for role, text in chat:
        if role == "system":
            made.set_system_message(text)
        else:
            made.append_message(made.roles[role == "assistant"], text)
    made.append_message(made.roles[1], None)
    return str(made.get_prompt())


json.dump([render(template, chat) for template, chat in json.load(sys.stdin)], sys.stdout)
