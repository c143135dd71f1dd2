"""What is wrong with a server, what that means and what to do about it: judged from a report alone."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.tools.doctor.amounts import many, percent, span
from drivetrain.tools.doctor.findings_model import of_model
from drivetrain.tools.doctor.page import REFUSED
from drivetrain.tools.doctor.report import Finding, ServerKind, ServerReport, Severity, Unread

SLOW_S = 0.5
VERY_SLOW_S = 2.0
"""Answering `/health` costs a server next to nothing."""

CLOCKS_APART_S = 30.0
LEAST_MEMORY = 0.05
"""The least share of the host's memory that should be free."""

INVALID = 0.2
MIN_REQUESTS = 20
"""With fewer, a share means little."""

KEY_HINT = (
    "give the key: --api-key-file FILE, or DRIVETRAIN_API_KEY in the environment (--api-key-env for another name)"
)


def findings(report: ServerReport) -> tuple[Finding, ...]:
    """Those that need action come first."""
    found = [*_way_in(report), *_answers(report)]
    if report.kind is ServerKind.OURS:
        ready = report.ready is not False
        found += [f for model in report.models for f in of_model(model, ready=ready, uptime_s=report.uptime_s)]
        found += [*_not_ready(report, found), *_memory(report), *_invalid(report)]
    return tuple(sorted(found, key=lambda finding: finding.level is not Severity.ACT))


def _way_in(report: ServerReport) -> Iterator[Finding]:
    if report.kind is ServerKind.LOCKED:
        yield Finding(
            code="locked",
            level=Severity.ACT,
            what="The server refuses this key." if report.sent_key else "The server requires a key.",
            means="Without a valid key it only shows that it is running.",
            remedy=KEY_HINT,
        )
    elif report.silent:
        yield Finding(
            code="silent",
            level=Severity.ACT,
            what=f"There is no answer: {report.unread[0].why}.",
            means="Something accepts the connection, but it hangs, is overloaded, or is not an HTTP server.",
            remedy="check its process and its log; if it is only slow, try a longer --timeout",
        )
    elif report.kind is not ServerKind.OURS:
        yield _not_ours(report)
    if report.needs_key is False and not report.local and report.kind is ServerKind.OURS:
        yield Finding(
            code="no_key",
            level=Severity.ACT,
            what="It requires no key, and other machines can reach it.",
            means="Anyone who can reach this address can use the models and see the metrics.",
            remedy="serve with --api-key-file FILE or DRIVETRAIN_API_KEY, or listen on 127.0.0.1 behind a proxy",
        )
    if report.sent_key and not report.encrypted and not report.local:
        yield Finding(
            code="key_in_clear",
            level=Severity.NOTE,
            what="The key goes over the network unencrypted.",
            means="Anyone listening on the network can read it.",
            remedy="put a TLS proxy in front, and use its https:// address",
        )


def _not_ours(report: ServerReport) -> Finding:
    peer = report.kind is ServerKind.PEER
    return Finding(
        code="not_ours",
        level=Severity.ACT,
        what="This is not a Drivetrain server." + (" It speaks the OpenAI API." if peer else ""),
        means="It has none of our metrics, so no more can be said."
        if peer
        else "Nothing that it returns is known here.",
        remedy="run drivetrain conform URL to see how well it keeps the API"
        if peer
        else "check the address and the path: give the server's own address, or one that ends with /v1",
    )


def _answers(report: ServerReport) -> Iterator[Finding]:
    if report.latency_s is not None and report.latency_s >= SLOW_S:
        yield Finding(
            code="slow",
            level=Severity.ACT if report.latency_s >= VERY_SLOW_S else Severity.NOTE,
            what=f"/health took {span(report.latency_s)}.",
            means="The network is slow, or the server's process is short of CPU time.",
            remedy="try from its own machine; if it is slow there too, give the engine fewer --threads",
        )
    if report.clock_ahead_s is not None and abs(report.clock_ahead_s) >= CLOCKS_APART_S:
        where = "ahead of" if report.clock_ahead_s > 0 else "behind"
        yield Finding(
            code="clocks",
            level=Severity.NOTE,
            what=f"The server's clock is {span(abs(report.clock_ahead_s))} {where} this machine's.",
            means="Times in the logs and traces of the two machines do not match.",
            remedy="synchronize both machines with a time server",
        )
    if report.kind is ServerKind.OURS:
        yield from (_unread(page, report) for page in report.unread)


def _unread(page: Unread, report: ServerReport) -> Finding:
    refused = page.status in REFUSED
    admin = page.path == "/admin/models"
    remedy = "read the server's log"
    if admin and refused:
        remedy = "pass a key from the server's own admin key file: --admin-key-file FILE"
    elif refused:
        remedy = KEY_HINT
    elif page.status == 404:
        remedy = "upgrade the server: newer ones have it"
    elif not page.status:
        remedy = "try again with a longer --timeout; if that does not help, read the server's log"
    return Finding(
        code="unread",
        level=Severity.NOTE
        if page.status == 404 or (admin and refused and not report.sent_admin_key)
        else Severity.ACT,
        what=f"{page.path} could not be read: {page.why}.",
        means="Why a load failed and which models are pinned is not known."
        if admin
        else "What it shows is missing here.",
        remedy=remedy,
    )


def _not_ready(report: ServerReport, found: list[Finding]) -> Iterator[Finding]:
    """Unless a finding about a model says why."""
    if report.ready is False and not any(one.model and one.level is Severity.ACT for one in found):
        yield Finding(
            code="not_ready",
            level=Severity.ACT,
            what="The server is not ready.",
            means="It is starting or shutting down, and refuses requests.",
            remedy="try again in a moment; /ready says when it is ready",
        )


def _memory(report: ServerReport) -> Iterator[Finding]:
    for memory in report.memory:
        if memory.device == "cpu" and memory.available_bytes < LEAST_MEMORY * memory.total_bytes:
            yield Finding(
                code="memory",
                level=Severity.ACT,
                what=f"Only {percent(memory.available_bytes / memory.total_bytes)} of the host's memory is left.",
                means="The system may kill the process, or start to swap.",
                remedy="fewer models (--max-loaded), fewer --slots, a smaller --kv-cache-gb or --context-length",
            )


def _invalid(report: ServerReport) -> Iterator[Finding]:
    codes = {InvalidRequest.code, Unsupported.code}
    refused = [refusal for refusal in report.refusals if refusal.reason in codes]
    number = sum(refusal.count for refusal in refused)
    total = max(number, sum(model.ended for model in report.models))
    if total >= MIN_REQUESTS and number >= INVALID * total:
        most = f", most for {refused[0].param}" if refused[0].param else ""
        yield Finding(
            code="invalid_requests",
            level=Severity.NOTE,
            what=f"{many(number, 'request')} of about {total:,} were refused as invalid{most}.",
            means="A client asks for something that this model or server does not support.",
            remedy="the error names the field; /v1/models/NAME lists what the model supports",
        )
