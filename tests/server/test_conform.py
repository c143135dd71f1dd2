"""Our own server under `drivetrain conform`: full marks on every engine, and nothing hidden behind «not offered»."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import drivetrain
from contract.remote_rig import RemoteRig
from drivetrain.core.capabilities import Reproducibility
from drivetrain.http.address import Address
from drivetrain.tools.conform.case import Area
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.cases.schemas import SCHEMAS
from drivetrain.tools.conform.client import Client
from drivetrain.tools.conform.report import ConformReport
from drivetrain.tools.conform.runner import run
from drivetrain.tools.conform.survey import Survey
from drivetrain.tools.conform.verdict import Outcome
from server.conftest import can
from server.serving import Served, fake, filling, serving, thoughtful

KEY = "a-key"

NEEDS = {
    "completions.list_order": "n", "completions.list_streamed": "n",
    "parameters.seed_repeats": "seed", "parameters.seeds_differ": "seed", "parameters.logit_bias_forces": "logit_bias",
    "parameters.logit_bias_bans": "logit_bias", "parameters.top_k": "top_k", "parameters.top_p": "top_p",
    "parameters.min_p": "min_p", "parameters.presence_penalty": "presence_penalty",
    "parameters.frequency_penalty": "frequency_penalty", "parameters.repetition_penalty": "repetition_penalty",
    "parameters.n": "n", "parameters.min_tokens": "min_tokens", "parameters.ignore_eos": "ignore_eos",
    "structured.json_object": "response_format", "structured.json_object_streamed": "response_format",
    "structured.json_schema": "response_format", "structured.choice": "choice", "structured.regex": "regex",
    "structured.choice_of_vllm": "structured_outputs", "structured.grammar": "grammar",
    **{f"structured.schema_{name}": "response_format" for name in SCHEMAS},
}  # fmt: skip
"""The capability that makes a case one that must be offered."""

LATER = {"completions.best_of"}

TOO_QUICK = {"cancel.streamed", "cancel.whole", "cancel.many"}
SAYS_ASCII = {"stops.unicode", "streaming.characters"}
NEVER_ENDS = {"chat.eos", "parameters.ignore_eos"}
HALF_FIRST = {"stops.at_once"}
"""A model whose answer begins with half a character."""
NO_END = {"structured.json_object", "structured.json_object_streamed"}
"""A model that writes any JSON for ever."""
DIGITS = {"structured.schema_number"}
OWN_KIND = {"structured.schema_recursive"}
"""A model that puts an object into an object for ever."""
SMALL_CONTEXT = {f"tools.{name}" for name in ("named", "allowed", "allowed_auto", "strict", "round_trip_streamed")}
SMALL_CONTEXT |= {case.id for case in ALL if case.area is Area.AGENTS}
"""A context of 512 tokens, each a byte or two: two tools do not fit."""

CACHE_NOTHING = {"fake", "remote"}
"""The second stands for the fake."""

NOT_FOUND_OUT = {
    "fake": TOO_QUICK | SAYS_ASCII | NEVER_ENDS | DIGITS,
    "remote": TOO_QUICK | SAYS_ASCII | NEVER_ENDS | DIGITS,
    "llamacpp": TOO_QUICK | NO_END | OWN_KIND,
    "native": TOO_QUICK | HALF_FIRST | NO_END | DIGITS | SMALL_CONTEXT,
    "transformers": TOO_QUICK | HALF_FIRST | NO_END | DIGITS | SMALL_CONTEXT,
}
"""What each engine's small test model cannot show; `test_emoji_are_whole_and_a_stop` shows some of it for all."""


def client_of(served: Served) -> Client:
    return Client(Address.parse(served.base), served.key, 60.0)


@functools.cache
def surveyed(served: Served) -> Survey:
    """One for all areas, as in a run of all."""
    return Survey(client_of(served), served.model)


async def conform(served: Served, area: Area) -> ConformReport:
    report = ConformReport(url=served.base, model=served.model, began="", version="")
    # Elsewhere an answer may change as other requests come and go, and so may a sample.
    known = surveyed(served) if served.worker.capabilities.reproducibility is Reproducibility.EXACT else None
    cases = [case for case in ALL if case.area is area]
    await run(client_of(served), served.model, cases, report, lambda what, share: None, known)
    return report


def may_be_missing(served: Served) -> set[str]:
    """What this engine does not have: only that may be refused."""
    missing = {case for case, name in NEEDS.items() if not can(served, name)}
    if not served.worker.capabilities.vision:
        missing |= {case.id for case in ALL if case.area is Area.IMAGES}
    if not served.worker.capabilities.embeddings:
        missing |= {case.id for case in ALL if case.area is Area.EMBEDDINGS}
    if served.worker.metadata.engine in CACHE_NOTHING:
        missing.add("agents.continued")
    if served.worker.capabilities.rerank is None:
        missing |= {case.id for case in ALL if case.area is Area.RERANK}
    if not can(served, "suffix"):
        missing |= {case.id for case in ALL if case.id.startswith("completions.suffix")}
    if not can(served, "tools", "response_format"):
        missing |= {case.id for case in ALL if case.area is Area.TOOLS}
    missing |= {case.id for case in ALL if case.area is Area.REASONING}  # no model here does; another test has one
    if "prompt_logprobs" not in served.worker.capabilities.parameters:
        missing.add("logprobs.completions_echo")
    return missing | LATER


@pytest.mark.parametrize("area", [area for area in Area if area is not Area.AUTH])
async def test_full_marks(served: Served, area: Area) -> None:
    await check_full_marks(served, area)


@pytest.fixture(scope="module")
def far() -> Iterator[Served]:
    """Its engine is another server of ours."""
    rig = RemoteRig()
    with serving(lambda: rig.open(max_waiting=256)) as made:
        yield made


@pytest.mark.parametrize("area", [area for area in Area if area is not Area.AUTH])
async def test_full_marks_in_front_of_another_server(far: Served, area: Area) -> None:
    await check_full_marks(far, area)


async def check_full_marks(served: Served, area: Area) -> None:
    report = await conform(served, area)
    assert [(r.case.id, r.reason) for r in report.of(Outcome.FAIL)] == []
    assert {r.case.id for r in report.of(Outcome.NOT_OFFERED)} <= may_be_missing(served)
    unknown = {r.case.id: r.reason for r in report.of(Outcome.NOT_RUN)}
    not_found_out = NOT_FOUND_OUT[served.worker.metadata.engine]
    assert unknown.keys() <= not_found_out, unknown
    asked = {case.id for case in ALL if case.area is area}
    assert report.of(Outcome.PASS) or asked <= may_be_missing(served) | not_found_out


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_agents_in_a_context_that_holds_them(
    checkpoint: Callable[[str], Path], tmp_path: Path, engine: str
) -> None:
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "long")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    with serving(lambda: drivetrain.Worker.open(folder, engine=engine, dtype="float32", max_waiting=16)) as served:
        report = await conform(served, Area.AGENTS)
    left = {result.case.id: result.reason for result in report.results if result.outcome is not Outcome.PASS}
    assert left.keys() <= ({"agents.continued"} if engine == "transformers" else set()), left


async def test_with_a_key() -> None:
    with serving(fake(), api_keys=(KEY,)) as locked:
        report = await conform(locked, Area.AUTH)
    assert {r.case.id: r.outcome for r in report.results} == {
        case.id: Outcome.PASS for case in ALL if case.area is Area.AUTH
    }


async def test_reasoning_on_a_model_that_reasons() -> None:
    said = "<think>7 times 13 is 91, so it is a product, and no prime.</think>No, it is not."
    with serving(thoughtful(text=said)) as thinking:
        report = await conform(thinking, Area.REASONING)
    assert [(r.case.id, r.outcome, r.reason) for r in report.results if r.outcome is not Outcome.PASS] == []


async def test_suffixes_on_a_model_that_fills_in_the_middle() -> None:
    with serving(filling()) as filler:
        report = await conform(filler, Area.COMPLETIONS)
    assert {r.case.id for r in report.results if r.outcome is not Outcome.PASS} == LATER


async def test_images_on_a_model_that_sees() -> None:
    with serving(fake(vision=True)) as seeing:
        report = await conform(seeing, Area.IMAGES)
    assert [(r.case.id, r.outcome, r.reason) for r in report.results if r.outcome is not Outcome.PASS] == []


async def test_emoji_are_whole_and_a_stop() -> None:
    with serving(fake(text="Hällo 🌍🎉你好, 世界! And so on and on.")) as speaker:
        for area in (Area.STOPS, Area.STREAMING):
            report = await conform(speaker, area)
            assert [(r.case.id, r.outcome, r.reason) for r in report.results if r.outcome is Outcome.FAIL] == []
            passed = {r.case.id for r in report.of(Outcome.PASS)}
            assert passed >= ({"stops.unicode"} if area is Area.STOPS else {"streaming.characters"})


async def test_a_server_that_ignores_is_found_out() -> None:
    with serving(fake(), unknown_fields="warn") as lax:
        report = await conform(lax, Area.PARAMETERS)
    failed = {r.case.id: r.reason for r in report.of(Outcome.FAIL)}
    left_out = ("top_p", "presence_penalty", "frequency_penalty")  # what the fake does not do, and says so elsewhere
    biased = ("logit_bias_bans", "logit_bias_forces", "logit_bias_beyond")
    assert failed.keys() == {f"parameters.{name}" for name in ("unknown", *left_out, *biased)}
    assert "was accepted" in failed["parameters.unknown"]
    shown = next(r for r in report.of(Outcome.FAIL) if r.case.id == "parameters.unknown").exchanges[-1]
    assert json.loads(shown.request.partition("\n\n")[2])["drivetrain_conform_no_such_field"] == 1
