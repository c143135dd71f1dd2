"""Hugging Face ids: the real `huggingface_hub` against a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_loopback import Loopback, Resource, serving
from store_samples import gguf_bytes, safetensors_bytes

from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import DrivetrainError, LoadFailed, MissingExtra, ModelNotFound
from drivetrain.store import hub
from drivetrain.store.hub import Hub
from drivetrain.store.hub_files import RemoteFile, choose
from drivetrain.store.references import HubId
from drivetrain.store.store import Store

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": safetensors_bytes(100_000),
    "consolidated.safetensors": safetensors_bytes(100_000),
    "pytorch_model.bin": b"\x80\x04.",
    "modeling_tiny.py": b"raise SystemExit",
    "model.pkl": b"\x80\x04.",
    "README.md": b"# tiny",
    "onnx/model.onnx": b"x",
    "original/params.json": b"{}",
}
WANTED = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    pytest.importorskip("huggingface_hub")
    with serving() as running:
        yield running


@pytest.fixture
def store(loopback: Loopback, tmp_path: Path) -> Store:
    return Store(tmp_path / "home", hub=Hub(endpoint=loopback.url, cache_dir=tmp_path / "cache", timeout_s=5))


def serve_repo(loopback: Loopback, files: dict[str, bytes], repo: str = "org/tiny", revision: str = "main") -> None:
    siblings = []
    tree = []
    for name, body in files.items():
        sha256 = hashlib.sha256(body).hexdigest()
        lfs = {"sha256": sha256, "oid": sha256, "size": len(body), "pointerSize": 100}
        siblings.append({"rfilename": name, "size": len(body), "blobId": sha256[:40], "lfs": lfs})
        tree.append({"type": "file", "path": name, "size": len(body), "oid": sha256[:40], "lfs": lfs})
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(body))}
        loopback.resources[f"/{repo}/resolve/{COMMIT}/{name}"] = Resource(body, etag=f'"{sha256}"', headers=headers)
    info = Resource(json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), "application/json")
    for path in ("", f"/revision/{revision}"):
        loopback.resources[f"/api/models/{repo}{path}"] = info
    loopback.resources[f"/api/models/{repo}/tree/{COMMIT}"] = Resource(json.dumps(tree).encode(), "application/json")


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_pull_takes_weights_and_descriptions_and_no_code(
    store: Store, loopback: Loopback, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    serve_repo(loopback, FILES)
    seen: list[str] = []
    threads = set(threading.enumerate())
    model = store.pull("org/tiny", lambda message, share: seen.append(message))
    assert (model.name, model.format) == ("org/tiny", WeightsFormat.SAFETENSORS)
    assert files_in(model.path) == sorted([*WANTED, "drivetrain.json"])
    assert (model.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert model.source == f"huggingface.co org/tiny@{COMMIT}"
    assert seen[0] == "looking for org/tiny"
    requests = len(loopback.requests)
    assert store.resolve("org/tiny") == store.pull("org/tiny") == model
    assert len(loopback.requests) == requests
    assert [line.name for line in store.list()] == ["org/tiny"]
    assert store.remove("org/tiny") > len(FILES["model.safetensors"])
    assert files_in(tmp_path / "home") == []
    assert capfd.readouterr().err == ""  # no progress bar but the caller's
    assert not [t for t in set(threading.enumerate()) - threads if t.name.startswith("drivetrain")]


def test_revision(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, FILES, revision="v1")
    model = store.pull("org/tiny@v1")
    assert model.path.name == "org--tiny@v1"
    with pytest.raises(ModelNotFound, match="org/tiny is not pulled yet; run: drivetrain pull org/tiny"):
        store.resolve("org/tiny")


def test_gguf_choice(store: Store, loopback: Loopback) -> None:
    serve_repo(
        loopback, {"tiny.Q8_0.gguf": gguf_bytes(seed=1), "tiny-Q4_K_M.gguf": gguf_bytes(seed=2), "a.json": b"{}"}
    )
    usual = store.pull("org/tiny")
    assert usual.path.name == "tiny-Q4_K_M.gguf"
    assert usual.digest == hashlib.sha256(gguf_bytes(seed=2)).hexdigest()
    assert store.pull("org/tiny:q8_0").path.name == "tiny.Q8_0.gguf"
    with pytest.raises(ModelNotFound, match=r"choose one by org/tiny:VARIANT \(there: tiny-Q4_K_M.gguf, tiny.Q8_0"):
        store.pull("org/tiny:Q2_K")


@pytest.mark.parametrize(
    ("names", "variant", "expected"),
    [
        (["model.safetensors", "consolidated.safetensors", "x.gguf"], None, ["model.safetensors"]),
        (["only.safetensors", "config.json"], None, ["config.json", "only.safetensors"]),
        (["model.safetensors", "m.Q8_0.gguf"], "Q8_0", ["m.Q8_0.gguf"]),
        (["m-Q4_0.gguf", "mmproj-m-f16.gguf", "m-F16-00001-of-00002.gguf"], None, ["m-Q4_0.gguf"]),
        (["odd.gguf", "config.json"], None, ["odd.gguf"]),
        (["model.safetensors", "../../evil.json", "/etc/x.json", "a\\b.json", ".json"], None, ["model.safetensors"]),
        (["model.safetensors", "additional_chat_templates/tool.jinja"], None, None),
    ],
)
def test_what_is_chosen(names: list[str], variant: str | None, expected: list[str] | None) -> None:
    chosen = choose([RemoteFile(name, 1, None) for name in names], HubId("org/tiny", None, variant))
    assert [file.name for file in chosen] == (sorted(names) if expected is None else expected)


def test_only_pickles(store: Store, loopback: Loopback, tmp_path: Path) -> None:
    serve_repo(loopback, {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(LoadFailed, match="no safetensors or GGUF weights"):
        store.pull("org/tiny")
    assert files_in(tmp_path / "home") == []


def test_broken_download_goes_on_with_what_is_there(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, {**FILES, "tokenizer.json": b" " * 200_000})
    tokenizer, weights = (f"/org/tiny/resolve/{COMMIT}/{name}" for name in ("tokenizer.json", "model.safetensors"))
    loopback.resources[weights].statuses = [403] * 50
    with pytest.raises(LoadFailed, match="answers HTTP 403"):
        store.pull("org/tiny")
    assert store.list() == []
    loopback.resources[weights].statuses = []
    store.pull("org/tiny")
    assert loopback.sent_bytes(tokenizer) == 200_000


def test_damaged_file_is_deleted(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, FILES)
    resource = loopback.resources[f"/org/tiny/resolve/{COMMIT}/model.safetensors"]
    resource.body = resource.body[:-1] + b"?"
    with pytest.raises(LoadFailed, match=r"model\.safetensors of org/tiny arrived damaged and was deleted"):
        store.pull("org/tiny")
    assert store.list() == []


def test_partly_filled_folder_without_a_network_is_not_complete(
    store: Store, loopback: Loopback, tmp_path: Path
) -> None:
    content = store.layout.partial("org--tiny") / "content"
    content.mkdir(parents=True)
    (content / "config.json").write_bytes(FILES["config.json"])
    (content / "model.safetensors").write_bytes(FILES["model.safetensors"])
    offline = Store(tmp_path / "home", hub=Hub(endpoint=unreachable(), cache_dir=tmp_path / "cache", timeout_s=5))
    with pytest.raises(LoadFailed, match="the Hugging Face hub cannot be reached") as caught:
        offline.pull("org/tiny")
    assert "\n" not in caught.value.message
    assert "give the path of the copied model" in caught.value.message
    assert offline.list() == []


def unreachable() -> str:
    with serving() as gone:
        return gone.url


def test_leftovers_of_another_revision_do_not_come_along(store: Store, loopback: Loopback) -> None:
    serve_repo(loopback, FILES)
    content = store.layout.partial("org--tiny") / "content"
    (content / "sub").mkdir(parents=True)
    for name in ("old.safetensors", "sub/evil.py", "drivetrain.json", "config.json"):
        (content / name).write_bytes(b"old")
    model = store.pull("org/tiny")
    assert files_in(model.path) == sorted([*WANTED, "drivetrain.json"])
    assert (model.path / "config.json").read_bytes() == FILES["config.json"]


def test_too_little_space(loopback: Loopback, tmp_path: Path) -> None:
    serve_repo(loopback, FILES)
    small = Hub(endpoint=loopback.url, cache_dir=tmp_path / "cache", free_bytes=lambda folder: 1000)
    with pytest.raises(LoadFailed, match="not enough disk space"):
        Store(tmp_path / "home", hub=small).pull("org/tiny")


def fill_cache(cache: Path, files: dict[str, bytes]) -> Path:
    """As `huggingface_hub` lays it out: a ref, a snapshot of links, blobs."""
    repo = cache / "models--org--tiny"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "blobs").mkdir()
    for name, body in files.items():
        blob = repo / "blobs" / hashlib.sha256(body).hexdigest()
        blob.write_bytes(body)
        (snapshot / name).symlink_to(blob)
    return snapshot


def test_what_the_users_cache_holds_is_used_there(store: Store, loopback: Loopback, tmp_path: Path) -> None:
    snapshot = fill_cache(tmp_path / "cache", {name: FILES[name] for name in WANTED})
    model = store.resolve("org/tiny")
    assert (model.path, model.source) == (snapshot, "Hugging Face cache")
    assert store.pull("org/tiny") == model
    assert loopback.requests == []
    assert store.list() == []


def test_incomplete_cache_is_not_used(store: Store, tmp_path: Path) -> None:
    fill_cache(tmp_path / "cache", {"config.json": FILES["config.json"]})
    with pytest.raises(ModelNotFound, match="is not pulled yet"):
        store.resolve("org/tiny")


def test_cached_gguf_keeps_its_name(store: Store, tmp_path: Path) -> None:
    snapshot = fill_cache(tmp_path / "cache", {"tiny.gguf": gguf_bytes()})
    assert store.resolve("org/tiny").path == snapshot / "tiny.gguf"


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (404, "RepoNotFound", ModelNotFound, "the Hugging Face hub has no model org/tiny, or it is private"),
        (403, "GatedRepo", LoadFailed, "org/tiny is gated: accept its terms"),
        (404, "RevisionNotFound", ModelNotFound, "org/tiny has no revision v9"),
        (403, "", LoadFailed, "answers HTTP 403"),
        (500, "", LoadFailed, "answers HTTP 500"),
    ],
)
def test_answers_of_the_hub(
    status: int, code: str, error: type[DrivetrainError], words: str, store: Store, loopback: Loopback, tmp_path: Path
) -> None:
    refusal = Resource(statuses=[status] * 20, headers={"X-Error-Code": code} if code else {})
    loopback.resources["/api/models/org/tiny/revision/v9"] = refusal
    with pytest.raises(error, match=words) as caught:
        store.pull("org/tiny@v9")
    assert "\n" not in caught.value.message
    assert loopback.url not in caught.value.message
    assert files_in(tmp_path / "home") == []


def test_every_error_of_the_library_is_translated(loopback: Loopback) -> None:
    """Those that a download can raise; the rest belong to uploads, jobs, inference and commands."""
    from huggingface_hub import errors

    foreign = hub.foreign_errors()
    elsewhere = (
        *(
            "Inference",
            "Text",
            "Validation",
            "Overloaded",
            "IncompleteGeneration",
            "Unknown",
            "OIDC",
            "OAuth",
            "Device",
        ),
        *("Bucket", "Job", "DDUF", "Strict", "CLI", "Confirmation", "Sandbox", "Safetensors", "NotASafetensors"),
    )
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    ours = [kind for kind in kinds if not kind.__name__.startswith(elsewhere) and kind.__module__ == errors.__name__]
    assert len(ours) > 15
    unmapped = [kind.__name__ for kind in ours if not issubclass(kind, foreign)]
    assert unmapped == []
    for kind in ours:
        exc = kind.__new__(kind)
        Exception.__init__(exc, "first line\nsecond line")
        translated = hub.translate(exc, HubId("org/tiny"))
        assert isinstance(translated, ModelNotFound | LoadFailed)
        assert "\n" not in translated.message
        assert "org/tiny" in translated.message


def test_switched_off_network_is_named() -> None:
    errors = pytest.importorskip("huggingface_hub.errors")
    outer = errors.LocalEntryNotFoundError("not here")
    outer.__cause__ = errors.OfflineModeIsEnabled("off")
    assert "HF_HUB_OFFLINE is set; unset it" in hub.translate(outer, HubId("org/tiny")).message


def test_without_the_package(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (store.resolve, store.pull):
        with pytest.raises(MissingExtra, match=r"pip install '\.\[hub\]'"):
            call("org/tiny")
