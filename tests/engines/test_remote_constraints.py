"""Constraints through the remote engine: which upstreams take them, and what becomes of an answer that breaks one."""

from __future__ import annotations

from typing import Any

import pytest
from remote_rigs import PATIENT, ends, says, scripted, stream, worker_at

from contract.llamacpp_server import running
from drivetrain.core.errors import Unsupported
from drivetrain.engines.llama_server import completion
from drivetrain.engines.remote.dialects.drivetrain import DrivetrainDialect
from drivetrain.store.store import Store
from server.serving import fake, serving

ASKED: dict[str, Any] = {"prompt": "Once", "max_tokens": 30, "temperature": 1.0, "seed": 2}


async def test_our_own_server_takes_them() -> None:
    with serving(fake(repeat=True)) as served:
        async with worker_at(f"{served.base}/v1", model=served.model, timeouts=PATIENT) as worker:
            assert "constraint" in worker.capabilities.parameters
            assert (await worker.generate(**ASKED, constraint={"regex": "[0-9]{3}é"})).text.endswith("é")


async def test_an_answer_that_breaks_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream is asked without it, as if it ignored the field."""
    body = DrivetrainDialect.body

    def forgotten(*asked: Any) -> dict[str, Any]:
        made = body(*asked)
        del made["structured_outputs"]
        return made

    with serving(fake(repeat=True)) as served:
        async with worker_at(f"{served.base}/v1", model=served.model, timeouts=PATIENT) as worker:
            monkeypatch.setattr(DrivetrainDialect, "body", forgotten)
            with pytest.raises(Unsupported, match="does not keep"):
                await worker.generate(**ASKED, constraint={"regex": "[0-9]{3}é"})


async def test_a_server_that_only_gives_text_is_not_asked_for_one() -> None:
    async with scripted(stream(says("yes"), ends())) as upstream, worker_at(upstream.url, timeouts=PATIENT) as worker:
        assert any("constraints are refused" in note for note in worker.metadata.notes)
        with pytest.raises(Unsupported) as caught:
            await worker.generate(messages=[{"role": "user", "content": "Well?"}], constraint={"choice": ["yes"]})
        assert caught.value.param == "constraint"


@pytest.mark.slow
async def test_llamacpps_server_takes_them_and_is_watched(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Store().pull(smollm2).path) as server:
        async with worker_at(server.url, model="smollm2", timeouts=PATIENT) as worker:
            assert "constraint" in worker.capabilities.parameters
            text = "déjà 🙂 vu"
            assert (await worker.generate(**ASKED, constraint={"choice": [text]})).text == text
            monkeypatch.setattr(completion, "LARK", "%llguidance {}\nstart: missing\n")
            with pytest.raises(Unsupported, match="does not keep") as caught:
                await worker.generate(**ASKED, constraint={"choice": [text]})
            assert caught.value.param == "constraint"
