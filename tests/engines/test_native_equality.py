"""Greedy ids and logprobs of the native engine are those of `model.generate`: alone, in any company, cached or not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tiny
from contract.native_rig import NativeRig, at_once
from drivetrain.core.errors import LoadFailed
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.kv.blocks import most_blocks
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.worker.worker import EngineWorker
from probe import stepper_of
from tiny import causal

TOKENS = 16
LOGPROB = 1e-4

GROUPED, EXPERTS = causal.GROUPED, causal.EXPERTS
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": ("Granite", {"logits_scaling": 8.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5}),
    "cohere2": ("Cohere2", {"sliding_window": 16, "logit_scale": 0.5}),
    "gpt_oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16}),
    "starcoder2": ("Starcoder2", {"sliding_window": 16}),
    "olmo3": ("Olmo3", {"sliding_window": 16}),
    "smollm3": ("SmolLM3", {}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 32}),
    "phi": ("Phi", {}),
}
"""Architectures beyond those of `tiny`, each with something of its own: scaled logits, sinks, windows a layer, …"""

REFUSED = {
    "falcon": "attention by itself",
    "bloom": "attention by itself",
    "gptj": "attention by itself",
    "deepseek_v3": "compressed keys",
    "llama4_text": "chunks",
    "mamba": "no list of keys",
    "longrope": "longest text",
    "diffllama": "off by",
}
RUNS = [name for name in (*tiny.CAUSAL, *MORE) if name not in REFUSED]

_BUILT: dict[str, tuple[str, dict[str, Any]]] = {
    **MORE,
    "gptj": ("GPTJ", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 512, "rotary_dim": 8}),
    "deepseek_v3": ("DeepseekV3", {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 32, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1}),
    "llama4_text": ("Llama4Text", {"head_dim": 16, "num_local_experts": 2, "attention_chunk_size": 16}),
    "mamba": ("Mamba", {}),
    "longrope": ("Phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6,
                 "long_factor": [2.0] * 6, "original_max_position_embeddings": 256}}),
    "diffllama": ("DiffLlama", {}),
}  # fmt: skip


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of `tiny`, or one of those above."""

    @functools.cache
    def make(name: str) -> Path:
        if name not in _BUILT:
            return checkpoint(name)
        family, extra = _BUILT[name]
        made = tmp_path_factory.mktemp(name)
        with quiet_library():
            causal.build(made, family, causal._byte_level, **{**GROUPED, **extra})
        return made

    return make


@dataclass(frozen=True)
class Plain:
    """What the library says by itself."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def plainly(folder: Path, texts: tuple[str, ...], tokens: int) -> list[Plain]:
    import torch
    import transformers as hf

    said = []
    with quiet_library():
        model = hf.AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        for text in texts:
            row = torch.tensor([tokenizer(text).input_ids])
            out = model.generate(
                row,
                attention_mask=torch.ones_like(row),
                do_sample=False,
                num_beams=1,
                max_new_tokens=tokens,
                output_logits=True,
                return_dict_in_generate=True,
            )
            ids = out.sequences[0, row.shape[1] :]
            logprobs = torch.log_softmax(torch.cat(out.logits), dim=-1).gather(1, ids[:, None])[:, 0]
            said.append(Plain(tuple(row[0].tolist()), tuple(ids.tolist()), tuple(logprobs.tolist())))
    return said


@pytest.fixture(scope="session")
def plain(folder: Callable[[str], Path]) -> Callable[[str], list[Plain]]:
    return functools.cache(lambda name: plainly(folder(name), tiny.TEXT, TOKENS))


def same(choice: Choice, wanted: Plain) -> None:
    assert choice.token_ids == wanted.ids
    assert choice.logprobs is not None
    # A stop's own logprob is not listed: it is no part of the text.
    found = [entry.logprob for entry in choice.logprobs]
    assert found == pytest.approx(wanted.logprobs[: len(found)], abs=LOGPROB)


async def ask(worker: EngineWorker, wanted: Plain, **more: Any) -> Choice:
    request: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "logprobs": 0, **more}
    return (await worker.generate(prompt_token_ids=list(wanted.prompt), **request)).choices[0]


@asynccontextmanager
async def opened(
    folder: Callable[[str], Path], name: str, *, budget: TokenBudget | None = None, **settings: Any
) -> AsyncIterator[EngineWorker]:
    async with NativeRig(folder, name).open(**settings) as worker:
        if budget is not None:
            scheduler_of(worker).budget = budget
        yield worker


def scheduler_of(worker: EngineWorker) -> Scheduler:
    return stepper_of(worker).scheduler


@pytest.mark.parametrize("name", RUNS)
async def test_alone_and_in_a_batch_of_16(
    name: str, folder: Callable[[str], Path], plain: Callable[[str], list[Plain]]
) -> None:
    """Arrivals at any time, chunks of prompts beside decodes, and a quarter of the requests go away half-way."""
    wanted = plain(name)
    assert len({said.ids for said in wanted}) > 10  # else the test would prove nothing
    async with opened(folder, name, budget=TokenBudget(alone=24, beside=7), max_running=16) as worker:
        for said in wanted[:4]:
            same(await ask(worker, said), said)

        async def one(i: int) -> None:
            await asyncio.sleep(0.01 * (i % 5))
            said = wanted[i % len(wanted)]
            if i % 4:
                same(await ask(worker, said), said)
                return
            ids: list[int] = []
            stream = worker.stream(prompt_token_ids=list(said.prompt), temperature=0, max_tokens=TOKENS)
            async for event in stream:
                if isinstance(event, Delta):
                    ids += event.token_ids
                if len(ids) > i % 7:
                    break
            await stream.aclose()
            assert tuple(ids) == said.ids[: len(ids)]

        await asyncio.gather(*(one(i) for i in range(32)))
        assert scheduler_of(worker).num_preemptions == 0


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
async def test_preempted_ones_say_the_same(
    name: str, folder: Callable[[str], Path], plain: Callable[[str], list[Plain]]
) -> None:
    """The cache holds the largest request and hardly more, so requests lose their blocks again and again."""
    wanted = plain(name)
    async with opened(folder, name, options={"context_length": 256}) as worker:
        scheduler = scheduler_of(worker)
        scheduler.pool.chunk = 16
        for group in scheduler.pool.groups:
            group.num_blocks = 2 * most_blocks(256, group.window, scheduler.pool.chunk)
        scheduler._headroom = 1
        long = {"max_tokens": 150, "ignore_eos": True}
        alone = [await ask(worker, said, **long) for said in wanted[:6]]
        for said, choice in zip(wanted, alone, strict=False):
            assert choice.token_ids[: len(said.ids)] == said.ids
        together = await at_once(worker, *(ask(worker, said, **long) for said in wanted[:6]))
        assert scheduler.num_preemptions > 0
        for one, other in zip(alone, together, strict=True):
            assert one.token_ids == other.token_ids


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
async def test_a_cached_beginning_changes_nothing(
    name: str, folder: Callable[[str], Path], plain: Callable[[str], list[Plain]]
) -> None:
    wanted = plain(name)
    shared = list(wanted[0].prompt) * 8
    prompts = [(shared + list(said.prompt))[:400] for said in wanted[:6]]
    answers: dict[bool, list[Choice]] = {}
    for cached in (True, False):
        async with opened(folder, name, options={"prefix_cache": cached}) as worker:
            results = []
            for ids in prompts:
                results.append(
                    await worker.generate(
                        prompt_token_ids=ids, temperature=0, max_tokens=8, logprobs=0, ignore_eos=True
                    )
                )
            found = [result.usage.cached_tokens for result in results]
            assert found[0] == 0
            assert all(count >= len(shared) // 16 * 16 for count in found[1:]) if cached else not any(found)
            answers[cached] = [result.choices[0] for result in results]
            again = await asyncio.gather(
                *(
                    worker.generate(prompt_token_ids=ids, temperature=0, max_tokens=8, ignore_eos=True)
                    for ids in prompts
                )
            )
            assert [r.choices[0].token_ids for r in again] == [choice.token_ids for choice in answers[cached]]
    for one, other in zip(answers[True], answers[False], strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert [e.logprob for e in one.logprobs] == pytest.approx([e.logprob for e in other.logprobs], abs=LOGPROB)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
async def test_prompt_logprobs_are_those_of_one_plain_pass(
    name: str, folder: Callable[[str], Path], plain: Callable[[str], list[Plain]]
) -> None:
    """Chunked or not, and in company; the soft cap or the scale of the logits included."""
    import torch
    import transformers as hf

    wanted = plain(name)[:6]
    with quiet_library():
        model = hf.AutoModelForCausalLM.from_pretrained(folder(name))
    async with opened(folder, name, budget=TokenBudget(alone=24, beside=7)) as worker:

        async def one(said: Plain) -> None:
            result = await worker.generate(
                prompt_token_ids=list(said.prompt),
                echo=True,
                prompt_logprobs=2,
                logprobs=2,
                temperature=0,
                max_tokens=1,
            )
            entries = result.choices[0].logprobs
            assert entries is not None
            row = torch.tensor([said.prompt])
            with torch.no_grad():
                logprobs = torch.log_softmax(model(row).logits[0], dim=-1)
            own = logprobs[:-1].gather(1, row[0, 1:, None])[:, 0].tolist()
            assert entries[0].logprob is None
            assert [e.logprob for e in entries[1 : len(said.prompt)]] == pytest.approx(own, abs=LOGPROB)

        await asyncio.gather(*(one(said) for said in wanted))


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_run_here_is_refused_with_advice(name: str, folder: Callable[[str], Path]) -> None:
    with pytest.raises(LoadFailed) as caught:
        async with opened(folder, name):
            pass
    assert REFUSED[name] in str(caught.value)
    assert "--engine transformers" in str(caught.value)


async def test_more_context_than_the_cache_holds_is_refused(folder: Callable[[str], Path]) -> None:
    async with opened(folder, "llama", options={"kv_cache_gb": 1e-4}) as worker:
        assert worker.capabilities.context_length < 512
        assert any("kv_cache_gb" in note for note in worker.metadata.notes)
    from drivetrain.core.errors import InvalidSetting

    with pytest.raises(InvalidSetting):
        async with opened(folder, "llama", options={"kv_cache_gb": 1e-4, "context_length": 512}):
            pass
