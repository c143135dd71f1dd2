"""What was wrong in the vLLM generation of the replaced system (S3), asserted absent on vLLM itself."""

from __future__ import annotations

from typing import Any

from contract.rigs import PROMPT
from drivetrain.core.results import FinishReason
from drivetrain.worker.worker import EngineWorker

GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 24}


async def test_a_stop_id_does_not_match_text_that_only_looks_the_same(worker: EngineWorker) -> None:
    free = (await worker.generate(**GREEDY)).choices[0]
    tokenizer = worker.info.tokenizer
    spelled = [
        i
        for i in range(worker.metadata.vocab_size)
        if i not in free.token_ids and len(text := tokenizer.decode([i])) > 1 and text in free.text
    ]
    assert spelled
    choice = (await worker.generate(**GREEDY, stop_token_ids=spelled[:10])).choices[0]
    assert choice.text == free.text
    assert choice.finish_reason is FinishReason.LENGTH


async def test_the_callers_lists_are_left_as_they_are(worker: EngineWorker) -> None:
    ids, stop = [1], ["never"]
    await worker.generate(**GREEDY, stop_token_ids=ids, stop=stop)
    assert ids == [1]
    assert stop == ["never"]


async def test_the_benchmark_mode_is_two_request_parameters(worker: EngineWorker) -> None:
    """EOS ignored, and of a prompt that is too long the last ids are what is computed."""
    context = worker.capabilities.context_length
    ids = [i % 1000 + 300 for i in range(context + 50)]
    eos = worker.metadata.eos_ids[0]
    request: dict[str, Any] = {
        "prompt_token_ids": ids,
        "max_tokens": 20,
        "overflow": "truncate_left",
        "logit_bias": {eos: 100.0},
    }
    result = await worker.generate(**request, temperature=0, ignore_eos=True)
    assert result.usage.completion_tokens == 20
    assert set(result.choices[0].token_ids) == {eos}
    assert result.prompt_token_ids == tuple(ids[-(context - 20) :])
    ended = await worker.generate(**request, temperature=0)
    assert ended.choices[0].token_ids == (eos,)


async def test_echo_of_a_prompt_given_as_ids(worker: EngineWorker) -> None:
    text = await worker.generate(**GREEDY, echo=True)
    rest = {name: value for name, value in GREEDY.items() if name != "prompt"}
    by_ids = await worker.generate(**rest, prompt_token_ids=text.prompt_token_ids, echo=True)
    assert by_ids.text == text.text
    assert by_ids.text.startswith(PROMPT)


async def test_echo_is_off_unless_asked_for(worker: EngineWorker) -> None:
    assert PROMPT not in (await worker.generate(**GREEDY)).text


async def test_penalties_and_top_k_are_honoured(worker: EngineWorker) -> None:
    free = (await worker.generate(**GREEDY)).choices[0].token_ids
    penalties: list[dict[str, Any]] = [{"repetition_penalty": 5.0}, {"presence_penalty": 2.0, "frequency_penalty": 2.0}]
    for penalty in penalties:
        long: dict[str, Any] = {**GREEDY, "max_tokens": 60}
        assert (await worker.generate(**long, **penalty)).choices[0].token_ids != (
            await worker.generate(**long)
        ).choices[0].token_ids
    hot = {**GREEDY, "temperature": 2.0, "seed": 4}
    assert (await worker.generate(**hot, top_k=1)).choices[0].token_ids == free
    assert (await worker.generate(**hot)).choices[0].token_ids != free


async def test_several_answers_stay_several(worker: EngineWorker) -> None:
    result = await worker.generate(**{**GREEDY, "temperature": 1.0}, n=3, seed=1)
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert all(choice.finish_reason is FinishReason.LENGTH for choice in result.choices)
    assert len({choice.text for choice in result.choices}) == 3
    assert result.usage.completion_tokens == 72


async def test_a_choice_has_the_seed_of_its_place(worker: EngineWorker) -> None:
    hot = {**GREEDY, "temperature": 1.0}
    both = await worker.generate(**hot, n=2, seed=10)
    second = await worker.generate(**hot, seed=11)
    assert both.choices[1].token_ids[:8] == second.choices[0].token_ids[:8]
