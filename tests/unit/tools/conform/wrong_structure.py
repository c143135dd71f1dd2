"""Wrong servers for the cases of structured output."""

from __future__ import annotations

from typing import Any

from toy_server import Faults, Reply
from wrongs import Wrong, asked, errors, ignores, says

from drivetrain.tools.conform.cases import explosive, schema_refusals, schemas, tool_refusals

SCHEMA_CASES = tuple(f"schema_{name}" for name in schemas.SCHEMAS)
EXPLOSIVE_CASES = tuple(case.id.partition(".")[2] for case in explosive.CASES)


def _without_schema(body: dict[str, Any]) -> None:
    if "response_format" in body:
        body["response_format"] = {"type": "json_object"}


def _explodes(path: str, body: Any, made: Reply) -> Reply:
    if made.status >= 400 or "regex" in body:
        return Reply(500, {"error": {"message": "no", "type": "e", "param": None, "code": None}})
    return made


def _never_recovers() -> Faults:
    broken: list[bool] = []

    def reply(path: str, body: Any, made: Reply) -> Reply:
        if "multipleOf" in str(body):
            broken.append(True)
        elif broken:
            made.status = 503
        return made

    return Faults(reply=reply)


def _nameless(made: Reply) -> None:
    made.document["error"]["param"] = None


STRUCTURE = (
    Wrong(
        "free text",
        ignores(
            "response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls", "choice", "regex",
            "grammar",
        ),
        says("not JSON", "structured", "json_object", "json_object_streamed", "json_schema", *SCHEMA_CASES)
        | says("is ignored", "structured", "choice", "choice_of_vllm", "regex", "grammar")
        | says("was accepted", "structured", *schema_refusals.FAULTS)
        | says("is ignored", "tools", "required", "named", "allowed", "one_at_a_time", "strict", "ids", "many")
        | says("is ignored", "tools", "streamed", "streamed_heads", "streamed_finish", "streamed_usage")
        | says("was accepted", "tools", *tool_refusals.FAULTS),
    ),
    Wrong("any JSON for a schema", asked(_without_schema), says("does not fit", "structured", *SCHEMA_CASES)),
    Wrong(
        "fits only when whole",
        asked(lambda body: _without_schema(body) if body.get("stream") else None),
        says("the streamed answer does not fit", "structured", *SCHEMA_CASES),
    ),
    Wrong("explodes", lambda: Faults(reply=_explodes), says("status 500", "structured", *EXPLOSIVE_CASES)),
    Wrong("never recovers", _never_recovers, {"structured.explosive_multiple": "plain request has status 503"}),
    Wrong(
        "no param for what cannot be honoured",
        errors(_nameless),
        {"structured.error_param": "error.param", "tools.error_param": "error.param is None"},
    ),
)  # fmt: skip
