"""The catalogue's data, and a short name whose files come from the hub: exactly these, or nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from store_loopback import Loopback, serving
from store_samples import gguf_bytes
from test_store_hub import COMMIT, files_in, serve_repo

from drivetrain.core.errors import LoadFailed
from drivetrain.core.sampling import Sampling
from drivetrain.store.catalogue import CATALOGUE, HubModel, KnownFile, WheelModel, short_name
from drivetrain.store.hub import Hub
from drivetrain.store.store import Store

WEIGHTS, VISION = gguf_bytes(seed=1), gguf_bytes(seed=2)
FILES = {"tiny-Q8_0.gguf": WEIGHTS, "mmproj-tiny.gguf": VISION, "tiny-Q4_0.gguf": gguf_bytes(seed=3), "x.json": b"{}"}
KNOWN = HubModel(
    name="tiny-1b",
    alias="tiny",
    licence="Tiny",
    terms="https://tiny.example/terms",
    weights="Q8_0",
    sampling={"temperature": 0.3},
    repo="org/tiny",
    revision=COMMIT,
    files=tuple(
        KnownFile(name, hashlib.sha256(FILES[name]).hexdigest(), len(FILES[name]))
        for name in ("tiny-Q8_0.gguf", "mmproj-tiny.gguf")
    ),
)


@pytest.mark.parametrize("model", CATALOGUE.values(), ids=lambda model: str(model.name))
def test_what_is_known_of_each(model: WheelModel | HubModel) -> None:
    assert model.name == model.name.lower() or ":" in model.name
    assert model.purpose in {"chat", "images", "embedding", "rerank"}
    assert model.licence in {"Apache-2.0", "MIT", "Gemma", "Llama 3.2"}
    assert (model.terms is None) == (model.licence in {"Apache-2.0", "MIT"})
    assert model.context is not None
    assert model.weights
    assert set(model.sampling) <= {one.name for one in fields(Sampling)}
    assert model.size_bytes > 10**7
    if isinstance(model, HubModel):
        assert re.fullmatch(r"[0-9a-f]{40}", model.revision)
        assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) for file in model.files)
        assert all(re.fullmatch(r"[\w.-]+\.(?:gguf|safetensors|json)", file.name) for file in model.files)
        assert model.is_gguf == (model.weights != "BF16")


def test_names_and_families_are_told_apart() -> None:
    aliases = [model.alias for name, model in CATALOGUE.items() if model.alias and ":" not in name]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(CATALOGUE)
    assert all(CATALOGUE[short_name(alias, CATALOGUE) or ""].name.startswith(alias) for alias in aliases)
    assert short_name("nothing", CATALOGUE) is None


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    pytest.importorskip("huggingface_hub")
    with serving() as running:
        yield running


@pytest.fixture
def store(loopback: Loopback, tmp_path: Path) -> Store:
    hub = Hub(endpoint=loopback.url, cache_dir=tmp_path / "cache", timeout_s=5)
    return Store(tmp_path / "home", hub=hub, catalogue={KNOWN.name: KNOWN})


def test_exactly_its_files_are_fetched_under_its_name(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, FILES, revision=COMMIT)
    seen: list[str] = []
    model = store.pull("tiny", lambda message, share: seen.append(message))
    assert (model.name, model.path.name, model.sampling) == ("tiny-1b", "tiny-Q8_0.gguf", {"temperature": 0.3})
    assert model.source == f"huggingface.co org/tiny@{COMMIT}"
    assert files_in(model.path.parent) == ["drivetrain.json", "mmproj-tiny.gguf", "tiny-Q8_0.gguf"]
    assert [line.name for line in store.list()] == ["tiny-1b"]
    (said,) = (message for message in seen if message.startswith("note: "))
    assert said.startswith("note: tiny-1b is under the Tiny licence")
    assert "https://tiny.example/terms" in said
    assert "HF_TOKEN" in said
    assert seen.index(said) < seen.index("looking for tiny-1b"), "before anything is fetched"
    seen.clear()
    assert store.pull("tiny-1b", lambda message, share: seen.append(message)) == model
    assert seen == []


@pytest.mark.parametrize("there", [{**FILES, "tiny-Q8_0.gguf": FILES["tiny-Q4_0.gguf"]}, {"tiny-Q4_0.gguf": WEIGHTS}])
def test_other_files_of_the_name_are_refused_before_the_download(
    store: Store, loopback: Loopback, tmp_path: Path, there: dict[str, bytes]
) -> None:
    serve_repo(loopback, there, revision=COMMIT)
    with pytest.raises(
        LoadFailed, match=r"tiny-1b is not fetched: tiny-Q8_0\.gguf in org/tiny is not, or no"
    ) as caught:
        store.pull("tiny")
    assert caught.value.message.endswith("run: drivetrain pull org/tiny:Q8_0")
    assert not [request.path for request in loopback.requests if "/resolve/" in request.path]
    assert files_in(tmp_path / "home") == []


def test_other_contents_than_the_hub_told_are_refused_too(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, FILES, revision=COMMIT)
    resource = loopback.resources[f"/org/tiny/resolve/{COMMIT}/tiny-Q8_0.gguf"]
    resource.body = resource.body[:-1] + b"?"
    with pytest.raises(LoadFailed, match=r"tiny-Q8_0\.gguf of org/tiny arrived damaged and was deleted"):
        store.pull("tiny")
    assert store.list() == []


def test_a_whole_model_of_many_files_has_no_variant_to_name() -> None:
    files = (KnownFile("model.safetensors", "0" * 64), KnownFile("config.json", "1" * 64))
    assert replace(KNOWN, files=files).unpinned == "org/tiny"
