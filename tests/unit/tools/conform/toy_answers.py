"""What the toy says: sampled choices, and how both endpoints spell them, whole and in events."""

from __future__ import annotations

import base64
import itertools
import json
import random
import struct
from dataclasses import dataclass, field
from typing import Any

from toy_model import EOS, Sampling, Step, decode, encode, spelled, step
from toy_receipts import receipt_of
from toy_rules import CONTEXT, Refused, prompts
from toy_tools import CUT_BELOW, Call, calls_for, thought_of

_ids = itertools.count(1)
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "ignore_eos", "min_tokens",
)  # fmt: skip
IMAGE_TOKENS = 16
_last: list[int] = []
"""The prompt before this one."""


@dataclass
class Said:
    """One choice. `begin` is where its own text begins, behind an echo."""

    index: int
    prompt: list[int]
    echo: str
    steps: list[Step] = field(default_factory=list)
    text: str = ""
    reason: str = "length"
    calls: list[Call] = field(default_factory=list)
    thought: str = ""

    @property
    def ids(self) -> list[int]:
        return [one.token for one in self.steps]


FITTING = {
    "flat": '{"open": true, "colour": "red"}',
    "enum": '{"colour": null}',
    "const": '{"kind": "door", "version": 2}',
    "bounds": '{"age": 99, "name": "ab", "marks": [true, false]}',
    "integers": '{"low": -11, "high": 99}',
    "number": '{"part": 0.5}',
    "pattern": '{"code": "AC-019"}',
    "format": '{"day": "2024-02-29"}',
    "nested": '{"sizes": [{"width": 9, "tall": true}]}',
    "deep": '{"inner": ' * 6 + "true" + "}" * 6,
    "list": '["oak", "iron"]',
    "any_of": '{"kind": "metal", "alloy": false}',
    "ref": '{"front": "oak", "back": "iron"}',
    "recursive": '{"first": {"leaf": "oak", "next": {"leaf": "iron", "next": null}}}',
    "closed": '{"leaf": "oak"}',
    "keys": json.dumps({"größe": True, "名前 🚪": "oak", 'a "b"\\c': False, "line\nbreak": True}),
    "verdict": '{"prime": "no"}',
}
"""For each schema of the cases, by its title."""


class Asked:
    """A checked body, and what it samples."""

    def __init__(self, body: dict[str, Any], chat: bool) -> None:
        self.seed_origin = "request" if "seed" in body else "chosen"
        self.body = {"seed": random.getrandbits(40), **body} if body.get("receipt") else body
        self.chat = chat
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{next(_ids)}"
        self.limit: int = body.get("max_completion_tokens", body.get("max_tokens", 100 if chat else 16))
        self.prompts = [encode(render(body["messages"]))] if chat else self._prompts()
        for at, prompt in enumerate(self.prompts):
            if len(prompt) + self.limit > CONTEXT:
                if body.get("overflow") != "truncate_left":
                    message = f"{len(prompt)} prompt tokens and {self.limit} more do not fit: the limit is {CONTEXT}"
                    raise Refused(message, "messages" if chat else "prompt", code="context_length_exceeded")
                self.prompts[at] = prompt[self.limit - CONTEXT :]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(_last, self.prompts[0], strict=False))
        self.cached = len(list(same))
        _last[:] = self.prompts[0]

    def _prompts(self) -> list[list[int]]:
        given = [self.body["prompt_token_ids"]] if "prompt_token_ids" in self.body else prompts(self.body.get("prompt"))
        if not given:
            raise Refused("prompt is missing", "prompt")
        found = [p if isinstance(p, list) else encode(p) for p in given]
        return [[*p, *encode(self.body.get("suffix", ""))] for p in found]

    def choices(self) -> list[Said]:
        n = self.body.get("n", 1)
        return [self._choice(at * n + i, prompt, i) for at, prompt in enumerate(self.prompts) for i in range(n)]

    def _choice(self, index: int, prompt: list[int], number: int) -> Said:
        body = self.body
        bias = {int(key): value for key, value in body.get("logit_bias", {}).items()}
        sampling = Sampling(logit_bias=bias, **{name: body[name] for name in _SAMPLING if name in body})
        chance = random.Random(body["seed"] + number) if "seed" in body else random.Random()
        said = Said(index, prompt, decode(prompt) if body.get("echo") else "")
        forced = self._forced(said)
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop", [])
        while len(said.steps) < (len(forced) if forced else self.limit):
            made = step(prompt, said.ids, sampling, chance)
            said.steps.append(Step(forced[len(said.steps)], made.logprob, made.top) if forced else made)
            said.text = decode(said.ids)
            if made.token == EOS and not forced:
                said.reason = "stop"
                break
            if len(said.steps) > sampling.min_tokens and self._stopped(said, stops):
                break
        if forced:
            cut = said.calls and self.limit < CUT_BELOW
            said.reason = "length" if cut else "tool_calls" if said.calls else "stop"
        return said

    def _stopped(self, said: Said, stops: list[str]) -> bool:
        ended = [(said.text.index(s) + len(s), -len(s), s) for s in stops if s in said.text]
        if ended:
            end, _, stop = min(ended)
            said.text = said.text[: end if self.body.get("include_stop_str_in_output") else end - len(stop)]
        elif said.ids[-1] in self.body.get("stop_token_ids", []):
            said.text = decode(said.ids[:-1])
        else:
            return False
        said.reason = "stop"
        return True

    def _forced(self, said: Said) -> list[int]:
        """Structured output of the only shapes that the cases ask for."""
        body = self.body
        said.thought = thought_of(body)
        said.calls = calls_for(body, self.limit)
        if said.calls:
            return encode("x")
        if body.get("response_format", {}).get("type", "text") != "text":
            schema = body["response_format"].get("json_schema", {}).get("schema", {})
            return encode(FITTING.get(schema.get("title", ""), '{"open": true}'))
        fitting = {"choice": "beta", "structured_outputs": "beta", "regex": "aba", "grammar": "yes"}
        return next((encode(text) for name, text in fitting.items() if name in body), [])

    def usage(self, choices: list[Said]) -> dict[str, Any]:
        images = str(self.body.get("messages")).count("'image_url': {")
        prompt = sum(map(len, self.prompts)) + IMAGE_TOKENS * images
        best_of = max(1, self.body.get("best_of", 1) // self.body.get("n", 1))
        thought = sum(len(choice.thought) for choice in choices)
        completion = sum(len(choice.steps) for choice in choices) * best_of + thought
        made: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        return made | ({"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {})

    # Spelling

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": 1_700_000_000, "model": "toy"}

    def whole(self, choices: list[Said]) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        spelled_choices = [self._whole(choice) for choice in choices]
        document = {**self._head(kind), "choices": spelled_choices, "usage": self.usage(choices)}
        if self.chat and self.body.get("return_token_ids"):
            document["prompt_token_ids"] = self.prompts[0]
        receipts = self._receipts(choices)
        if len(receipts) > 1:
            document["receipts"] = receipts
        elif receipts:
            document["receipt"] = receipts[0]
        return document

    def _whole(self, choice: Said) -> dict[str, Any]:
        made: dict[str, Any] = {"index": choice.index, "finish_reason": choice.reason, "logprobs": None}
        if self.chat:
            made["message"] = {"role": "assistant", "content": None if choice.calls else choice.text}
            if choice.calls:
                made["message"]["tool_calls"] = [call.whole for call in choice.calls]
            if choice.thought:
                made["message"]["reasoning_content"] = choice.thought
        else:
            made["text"] = choice.echo + choice.text
        if self._logprobs is not None:
            made["logprobs"] = self._spelled_logprobs(choice)
        if self.body.get("return_token_ids"):
            made |= {"token_ids": choice.ids, "prompt_token_ids": choice.prompt}
        return made

    def _receipts(self, choices: list[Said]) -> list[dict[str, Any]]:
        if not self.body.get("receipt"):
            return []
        n = self.body.get("n", 1)
        return [
            receipt_of(self.body, self.id, self.seed_origin, prompt, choices[at * n : at * n + n])
            for at, prompt in enumerate(self.prompts)
        ]

    @property
    def _logprobs(self) -> int | None:
        if self.chat:
            return self.body.get("top_logprobs", 0) if self.body.get("logprobs") else None
        return self.body.get("logprobs")

    def _spelled_logprobs(self, choice: Said) -> dict[str, Any]:
        count = self._logprobs or 0
        if self.chat:
            return {"content": [_entry(s.token, s.logprob, s.top[:count]) for s in choice.steps]}
        steps: list[Step | None] = [None] * (len(choice.prompt) if choice.echo else 0)
        tokens = [*(choice.prompt if choice.echo else []), *choice.ids]
        steps += choice.steps
        offsets = [len(decode(tokens[:at])) for at in range(len(tokens))]
        return {
            "tokens": [decode([token]) for token in tokens],
            "token_logprobs": [s.logprob if s else None for s in steps],
            "top_logprobs": [{decode([i]): x for i, x in s.top[: max(count, 1)]} if s else None for s in steps],
            "text_offset": offsets,
        }

    def events(self, choices: list[Said]) -> list[dict[str, Any]]:
        """Some characters at a time, so that stops and tokens are cut everywhere."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        made: list[dict[str, Any]] = []
        for choice in choices:
            text = choice.text if self.chat else choice.echo + choice.text
            parts = [text[at : at + 3] for at in range(0, len(text), 3)]
            if self.chat:
                made.append({"index": choice.index, "delta": {"role": "assistant", "content": ""}})
                made += _tool_and_thought_pieces(choice)
            for part in [] if choice.calls else parts or [""]:
                made.append(_piece(self.chat, choice.index, part))
            if self._logprobs is not None:
                made[-1]["logprobs"] = self._spelled_logprobs(choice)
            made.append({**_piece(self.chat, choice.index, ""), "finish_reason": choice.reason})
        chunks = [{**self._head(kind), "choices": [{"logprobs": None, "finish_reason": None, **m}]} for m in made]
        chunks += [{**self._head(kind), "choices": [], "receipt": one} for one in self._receipts(choices)]
        if self.body.get("stream_options", {}).get("include_usage"):
            chunks.append({**self._head(kind), "choices": [], "usage": self.usage(choices)})
        return chunks


def _piece(chat: bool, index: int, text: str) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text} if text else {}} if chat else {"index": index, "text": text}


def _tool_and_thought_pieces(choice: Said) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"reasoning_content": part} for part in choice.thought]
    for index, call in enumerate(choice.calls):
        deltas += [{"tool_calls": [piece]} for piece in call.pieces(index)]
    return [{"index": choice.index, "delta": delta} for delta in deltas]


def _entry(token: int, logprob: float, top: list[tuple[int, float]]) -> dict[str, Any]:
    def one(i: int, x: float) -> dict[str, Any]:
        return {"token": decode([i]), "logprob": x, "bytes": list(spelled(i))}

    return {**one(token, logprob), "top_logprobs": [one(i, x) for i, x in top]}


def render(messages: list[dict[str, Any]]) -> str:
    roles = {"developer": "system"}
    return "\n".join(f"{roles.get(m['role'], m['role'])}: {_text(m.get('content') or '')}" for m in messages)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else _seen(part["image_url"].get("url")) for part in content)


def _seen(url: Any) -> str:
    """Nothing: the tokens of a picture are counted apart. Raises `Refused` for what is no small PNG."""
    try:
        data = base64.b64decode(str(url).removeprefix("data:image/png;base64,"), validate=True)
        width, height = struct.unpack(">II", data[16:24])
    except (ValueError, struct.error):
        raise Refused("messages has an image that is not a PNG in a data URI", "messages") from None
    if not data.startswith(b"\x89PNG") or width * height > 10**7:
        raise Refused("messages has an image that is no PNG, or too large", "messages")
    return ""


def embedding(ids: list[int], size: int) -> list[float]:
    """The direction that each token has by chance, added up: near texts are near."""
    total = [0.0] * 16
    for token in ids:
        chance = random.Random(token)
        total = [a + chance.gauss(0, 1) for a in total]
    return total[:size]
