"""`guidellm`, the load generator, as a user runs it. It needs torch and transformers, which our environment has: so it
runs there, with what else it needs in front."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from clients.conftest import PYTHON, ROOT

PARTS = Path(os.environ.get("DRIVETRAIN_GUIDELLM", ROOT / ".venv-clients" / "guidellm"))
ASKED = {"Name a river.": 12, "Count to five.": 9, "What is tin?": 7, "Say a colour.": 5}
"""Each prompt, and how many tokens are asked for."""


@pytest.mark.shows("guidellm", "a load by /v1/chat/completions, /v1/completions and /v1/responses")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_load(url: str, path: str, tmp_path: Path) -> None:
    before = answered(url, path)
    prompts, report = tmp_path / "prompts.json", tmp_path / "report.json"
    prompts.write_text(json.dumps([{"prompt": text, "output_tokens_count": count} for text, count in ASKED.items()]))
    options = [
        "--backend", f"kind=openai_http,target={url.removesuffix('/v1')},request_format={path}",
        "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={len(ASKED)}",
        "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}", "--disable-console",
    ]  # fmt: skip
    ran = subprocess.run(
        [PYTHON, "-m", "guidellm", "run", *options], capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(PARTS), "HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert answered(url, path) == before + len(ASKED)
    (made,) = json.loads(report.read_text())["benchmarks"]
    assert [kind for kind, requests in made["requests"].items() if requests] == ["successful"]
    counts = [request["output_tokens"] for request in made["requests"]["successful"]]
    assert not Counter(counts) - Counter(ASKED.values()), "it asks for as many, and believes the usage"
    assert len(counts) >= len(ASKED) - 1, "on a busy machine it was seen to end before it had collected the last one"


def answered(url: str, path: str) -> int:
    """How many requests the server has answered well."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    head = re.escape(f'drivetrain_http_responses_total{{method="POST",path="{path}",status="200"}}')
    found = re.search(rf"^{head} (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0
