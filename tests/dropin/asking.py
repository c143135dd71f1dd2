"""Questions to either API server, and what must come of them whichever it is."""

from __future__ import annotations

from typing import Any, cast

import openai
from openai.types.chat import ChatCompletionMessageParam

from dropin.conftest import MODEL, Stack
from dropin.processes import until

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count from one to ten."}]
LONGER: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are {brief}."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
]
PROMPT = "One, two, three, four,"
"""The model is sure enough of what follows on each that another batch makes no other token."""


def chat(client: openai.OpenAI, messages: list[ChatCompletionMessageParam] | None = None, **more: Any) -> Any:
    """Greedy, by a temperature that both API servers pass on."""
    fields = {"max_tokens": 16, "temperature": 0.000001, **more}
    return cast("Any", client.chat.completions.create)(model=MODEL, messages=messages or QUESTION, **fields)


def joined(stream: Any) -> tuple[str, str | None]:
    """The text of a streamed chat, and its finish reason."""
    text, reason = "", None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def check_that_leaving_frees_the_slot(stack: Stack) -> None:
    stream = chat(stack.client, max_tokens=4000, stream=True, temperature=1.0)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert stack.worker.busy == 1
    stream.close()
    until(lambda: stack.settled, "the slot is still held")
    assert chat(stack.client).choices[0].message.content
