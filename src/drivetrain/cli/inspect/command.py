"""`drivetrain inspect MODEL`: what would happen to a request, without loading the weights."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.prompts import add_input, read_input
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.parameters import PARAMETERS

if TYPE_CHECKING:
    from drivetrain.cli.inspect.dry_run import Inspection
    from drivetrain.worker.sources import Resolved

_EPILOG = """examples:
  drivetrain inspect smollm2-135m
  drivetrain inspect ./my-model --system "Be brief." --message "Good morning"
  drivetrain inspect ./my-model --family chatml --json
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "inspect",
        aliases=("show",),
        help="show what would run: the engine, the prompt, its tokens",
        description="Show what is known of a model without loading its weights: the engine and the prompt form, with "
        "the reason for each; the rendered prompt; the stops, defaults and capabilities.",
        usage="%(prog)s MODEL [option ...]",
        epilog=_EPILOG,
    )
    options.add_model(parser)
    options.add_remote(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_input(parser, for_request=False)
    options.add_settings(parser)
    parser.show_first("--message", "--system", "--prompt", "--family", "--engine", "--json", "--explain")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    resolved = options.read_settings(args)
    if args.explain:
        return options.explain(args, resolved)
    given = read_input(args, resolved.settings)
    from drivetrain.cli.inspect.dry_run import inspect_model
    from drivetrain.cli.terminal.progress import progress_line

    with progress_line(quiet=args.quiet) as progress:
        found = inspect_model(args.model, resolved.settings, given=given, progress=progress)
    if args.json:
        output.document({**plain(found), "settings": options.explained(resolved)})
    else:
        output.line("\n".join(_lines(found, resolved)))
    return 0


def _lines(found: Inspection, resolved: Resolved) -> list[str]:
    rows = [
        ("model", f"{found.name}  {found.format} from {found.source}"),
        ("engine", f"{found.engine}: {found.engine_why}"),
        *([] if found.engine_ready else [("", f"not installed; run: {found.install}")]),
        *_weights(found),
        ("architecture", found.architecture or "not known"),
        ("family", _family(found)),
        ("answer form", f"{found.answer_form}: {found.answer_form_why}"),
        ("tool form", f"{found.tool_form}: {found.tool_form_why}"),
        ("context", f"{found.context_length} tokens" if found.context_length else "not known before loading"),
        ("stops", _stops(found)),
        ("answer", f"at most {found.max_tokens} tokens" if found.max_tokens else "up to the end of the context"),
        *_sampling(found),
        *_capabilities(found),
        *_settings(resolved),
        *(("missing", text) for text in found.missing),
    ]
    width = max(len(name) for name, _ in rows)
    return [*(f"{name:<{width}}  {text}".rstrip() for name, text in rows), *_prompt(found)]


def _weights(found: Inspection) -> list[tuple[str, str]]:
    """In which types a folder's tensors are stored, and how they are quantized."""
    types, stated = ", ".join(found.stored_types), found.quantization
    if not types and stated is None:
        return []
    if stated is None:
        return [("weights", f"{types}, not quantized")]
    if stated.over_floats:
        return [("weights", f"{types}, not quantized, though config.json says {stated.in_words}")]
    rows = [("weights", f"quantized: {stated.in_words}" + (f"; stored as {types}" if types else ""))]
    needs = " and ".join(stated.needs)
    if stated.missing:
        rows.append(("", f"native and transformers need {needs} for them; run: {stated.install}"))
    elif needs:
        rows.append(("", f"native and transformers need {needs} for them, which is installed"))
    return rows


def _family(found: Inspection) -> str:
    if found.family_is_fallback:
        return f"{found.family}, a fallback, and perhaps not what this model was trained on: {found.family_why}"
    return f"{found.family}: {found.family_why}"


def _stops(found: Inspection) -> str:
    strings = [repr(text) for text in found.stop]
    tokens = [f"{text} ({i})".strip() for i, text in found.stop_tokens.items()]
    return ", ".join([*strings, *tokens]) or "none known"


def _sampling(found: Inspection) -> list[tuple[str, str]]:
    """The values that somebody chose; all others are neutral."""
    decided = {name: entry for name, entry in found.sampling.items() if entry["origin"] != "neutral"}
    rows = [("sampling", f"{name} {entry['value']}  ({entry['origin']})") for name, entry in decided.items()]
    return rows or [("sampling", "neutral: nothing is set")]


def _capabilities(found: Inspection) -> list[tuple[str, str]]:
    known = found.capabilities
    if known is None:
        return [("can", "not known before loading")]
    able = {"text": known.generation, "chat": known.chat and known.generation, "images": known.vision}
    able |= {"infill": "suffix" in known.parameters}
    able |= {"embeddings": known.embeddings, f"rerank ({known.rerank})": known.rerank is not None}
    return [
        ("can", ", ".join(name for name, can in able.items() if can)),
        ("parameters", _parameters(known.parameters)),
        *([("variables", ", ".join(sorted(known.template_variables)))] if known.template_variables else []),
    ]


def _parameters(honoured: frozenset[str]) -> str:
    """Those that are honoured or those that are not, whichever list is shorter."""
    refused = PARAMETERS.keys() - honoured
    if len(refused) >= len(honoured):
        return ", ".join(sorted(honoured))
    return f"all but {', '.join(sorted(refused))}" if refused else "all"


def _settings(resolved: Resolved) -> list[tuple[str, str]]:
    return [
        ("setting", f"{name} {value!r}  ({resolved.origins[name]})")
        for name, value in options.changed(resolved).items()
    ]


def _prompt(found: Inspection) -> list[str]:
    if found.prompt is None:
        return []
    ids: Any = found.prompt.token_ids
    head = "prompt" if ids is None else f"prompt of {len(ids)} tokens"
    lines = ["", f"{head}:", *(f"  | {line}" for line in found.prompt.text.split("\n"))]
    return lines if ids is None else [*lines, "", "token ids:", f"  {' '.join(map(str, ids))}"]
