"""vLLM's own server as far as words go, over a real tokenizer: it says the ids that it is told to say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from remote_rigs import Asked, Scripted, body, error, scripted, stream

from drivetrain.engines.remote.errors import Refused

MODEL = "m"


class VllmToy:
    """`says` are the ids of each answer, `steps` how many come in one event."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, says: Sequence[int] = (), steps: int = 1) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.says = says
        self.steps = steps
        self.trials = 0

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        assert body is not None
        return self.answer(path, body)

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        if path == "/detokenize":
            return {"prompt": self.tokenizer.decode(body["tokens"])}
        if path == "/tokenize":
            ids = self._split(body)
            return {"tokens": ids, "token_strs": self.tokenizer.convert_ids_to_tokens(ids)}
        assert path == "/v1/completions"
        self.trials += 1
        return {"choices": [self._trial(body)]}

    def events(self, body: Mapping[str, Any]) -> list[str]:
        """A streamed answer, with the text as vLLM's detokenizer gives it: without special tokens."""
        made, said = [], ""
        ids = list(self.says)
        for at in range(0, len(ids), self.steps):
            text = self._text(ids[: at + self.steps])
            some, over = ids[at : at + self.steps], at + self.steps >= len(ids)
            choice = {"index": 0, "text": text[len(said) :], "token_ids": some}
            if "logprobs" in body:
                choice["logprobs"] = _logprobs(some)
            made.append(json.dumps({"choices": [choice | {"finish_reason": "length" if over else None}]}))
            said = text
        return made

    def _split(self, body: Mapping[str, Any]) -> list[int]:
        if "messages" in body:
            ids = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"]).input_ids
        return [int(i) for i in ids]

    def _trial(self, body: Mapping[str, Any]) -> dict[str, Any]:
        bias = {int(i): b for i, b in body.get("logit_bias", {}).items()}
        if any(i >= self.vocab_size for i in bias):
            raise Refused(400, f"token_id(s) {list(bias)} contain out-of-vocab ids. Vocabulary size: {self.vocab_size}")
        said = next((i for i, b in bias.items() if b == 100.0), 65)
        ends = said == self.tokenizer.eos_token_id
        ids = [said] if ends else [said] * body["max_tokens"]
        found: dict[str, Any] = {
            "text": self._text(ids),
            "finish_reason": "stop" if ends else "length",
            "token_ids": ids,
        }
        if "logprobs" in body:
            found["logprobs"] = _logprobs([*body["prompt"], *ids])
        return found

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _logprobs(ids: Sequence[int]) -> dict[str, Any]:
    return {"token_logprobs": [-1.0] * len(ids), "top_logprobs": [{f"token_id:{i}": -1.0} for i in ids]}


@asynccontextmanager
async def served(toy: VllmToy) -> AsyncIterator[Scripted]:
    """Over a real socket."""
    models = {"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 2048}]}
    async with scripted(models=models) as upstream:

        async def answer(asked: Asked, writer: Any) -> None:
            if asked.method == "GET":
                await body(json.dumps(models))(writer)
            elif asked.body.get("stream"):
                await stream(*toy.events(asked.body))(writer)
            else:
                try:
                    await body(json.dumps(toy.answer(asked.path, asked.body)))(writer)
                except Refused as exc:
                    await error(exc.status, exc.message)(writer)

        upstream._answer = answer  # type: ignore[method-assign]  # a server of another kind
        yield upstream
