"""The agents that `launch` knows: how each takes an address, a key and a model, by its environment or its flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

NO_KEY = "none"
"""For a server without keys: the clients want one."""

CONFIG_HERE = "{config}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`root` is the server's address without `/v1`."""

    root: str
    model: str
    key: str
    context_length: int

    @property
    def base(self) -> str:
        return f"{self.root}/v1"

    @property
    def answer(self) -> int:
        """Tokens for an answer, where a client wants to know."""
        return max(1, min(32_000, self.context_length // 4))


@dataclass(frozen=True, slots=True)
class Invocation:
    """`config` is the text of a file that the program is given in place of `CONFIG_HERE`. `without` are variables that
    would lead it elsewhere, or send a key of somebody else to our server."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """`needs` is about the context for a first turn and its answer."""

    title: str
    program: str
    package: str
    needs: int
    invocation: Callable[[Endpoint], Invocation]


def _claude(at: Endpoint) -> Invocation:
    every_size = ("OPUS", "SONNET", "HAIKU")
    return Invocation(
        environment={
            "ANTHROPIC_BASE_URL": at.root,
            "ANTHROPIC_AUTH_TOKEN": at.key,
            "ANTHROPIC_MODEL": at.model,
            **{f"ANTHROPIC_DEFAULT_{size}_MODEL": at.model for size in every_size},
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        without=("ANTHROPIC_API_KEY", *(f"CLAUDE_CODE_USE_{other}" for other in ("BEDROCK", "VERTEX", "FOUNDRY"))),
    )


def _codex(at: Endpoint) -> Invocation:
    provider = {
        "name": "Drivetrain", "base_url": at.base, "env_key": "DRIVETRAIN_API_KEY", "wire_api": "responses",
    }  # fmt: skip
    told = {f"model_providers.drivetrain.{name}": json.dumps(value) for name, value in provider.items()}
    told |= {"model_provider": '"drivetrain"', "model_context_window": str(at.context_length)}
    told["web_search"] = '"disabled"'  # a tool of its makers' server: offered wherever commands may reach the network
    flags = [part for name, value in told.items() for part in ("-c", f"{name}={value}")]
    return Invocation((*flags, "-m", at.model), {"DRIVETRAIN_API_KEY": at.key})


def _opencode(at: Endpoint) -> Invocation:
    limits = {"context": at.context_length, "output": at.answer}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Drivetrain",
        "options": {"baseURL": at.base, "apiKey": at.key},
        "models": {at.model: {"name": at.model, "limit": limits}},
    }
    model = f"drivetrain/{at.model}"
    config = {"provider": {"drivetrain": provider}, "model": model, "small_model": model}
    return Invocation(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _qwen(at: Endpoint) -> Invocation:
    environment = {"OPENAI_BASE_URL": at.base, "OPENAI_API_KEY": at.key, "OPENAI_MODEL": at.model}
    environment["QWEN_CODE_MAX_OUTPUT_TOKENS"] = str(at.answer)
    return Invocation(("--auth-type", "openai"), environment)


def _continue(at: Endpoint) -> Invocation:
    """JSON is YAML."""
    model = {
        "name": at.model,
        "provider": "openai",
        "model": at.model,
        "apiBase": at.base,
        "apiKey": at.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": at.context_length, "maxTokens": at.answer},
    }
    config = {"name": "Drivetrain", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Invocation(("--config", CONFIG_HERE), config=json.dumps(config, indent=2) + "\n")


CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        title="Claude Code", program="claude", package="@anthropic-ai/claude-code", needs=32_768, invocation=_claude
    ),
    "codex": Client(title="Codex", program="codex", package="@openai/codex", needs=16_384, invocation=_codex),
    "opencode": Client(title="opencode", program="opencode", package="opencode-ai", needs=16_384, invocation=_opencode),
    "qwen": Client(title="Qwen Code", program="qwen", package="@qwen-code/qwen-code", needs=24_576, invocation=_qwen),
    "cn": Client(title="Continue", program="cn", package="@continuedev/cli", needs=8_192, invocation=_continue),
}
