"""`drivetrain chat MODEL`: a conversation in the terminal. One bad request does not end it, nor does Ctrl-C."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.constraint_options import naming_its_flag
from drivetrain.cli.flags.request_options import CHAT, add_request, check_early, read_request
from drivetrain.cli.terminal import output
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import Delta

if TYPE_CHECKING:
    from drivetrain import sync
    from drivetrain.cli.chat.conversation import Conversation
    from drivetrain.cli.terminal.answers import AnswerPrinter
    from drivetrain.cli.terminal.interrupts import Interrupts
    from drivetrain.core.results import Result

_EPILOG = """examples:
  drivetrain chat smollm2-135m
  drivetrain chat ./my-model --system "You are a patient teacher." --temperature 0.7 --max-tokens 400
  drivetrain chat org/reasoner --reasoning-effort low --max-reasoning-tokens 500
  drivetrain chat org/vision-model       then: /image cat.png
  drivetrain chat smollm2-135m --json-schema door.json       later: /set constraint {"regex": "[a-z ]+"}

In the chat, /help lists the commands. Lines can also be piped in; each one is a message.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "chat",
        help="chat with a model in the terminal",
        description="Talk to a model. Ctrl-C stops an answer; Ctrl-D, or Ctrl-C twice, leaves.",
        usage="%(prog)s MODEL [option ...]",
        epilog=_EPILOG,
    )
    options.add_model(parser)
    options.add_remote(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_request(parser, CHAT)
    options.add_settings(parser, without=options.shadowed())
    parser.show_first("--system", "--max-tokens", "--temperature", "--seed", "--json-schema", "--engine", "--quiet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    resolved = options.read_settings(args)
    if args.explain:
        return options.explain(args, resolved)
    from drivetrain.cli.chat.conversation import Conversation
    from drivetrain.cli.start_worker import opened
    from drivetrain.cli.terminal.interrupts import Interrupts

    conversation = Conversation(system=args.system, parameters=read_request(args))
    with naming_its_flag(args):
        check_early(conversation.request(conversation.question("")), resolved.settings)
    with opened(args.model, resolved.settings, quiet=args.quiet) as worker, Interrupts(spare=1) as interrupts:
        Chat(worker, conversation, interrupts).run()
    return 0


class Chat:
    """Reads lines and acts on them until the user leaves."""

    def __init__(self, worker: sync.Worker, conversation: Conversation, interrupts: Interrupts) -> None:
        from drivetrain.cli.chat.lines import Lines
        from drivetrain.cli.chat.slash_commands import ChatCommands

        self._worker = worker
        self._conversation = conversation
        self._interrupts = interrupts
        self._commands = ChatCommands(conversation, worker.capabilities)
        self._lines = Lines()

    def run(self) -> None:
        from drivetrain.cli.chat.slash_commands import Leave

        if self._lines.interactive:
            metadata = self._worker.metadata
            output.note(
                f"{metadata.name} on {metadata.engine}, prompt form {metadata.family}; /help lists the commands"
            )
        while (line := self._next_line()) is not None:
            try:
                self._take(line)
            except Leave:
                return
            except KeyboardInterrupt:
                self._interrupts.reset()
                output.note("(stopped)")
            except DrivetrainError as exc:
                output.note(f"drivetrain: {output.one_line(exc.message)}")

    def _next_line(self) -> str | None:
        """The next line; None when the user leaves: the end of the input, or two interrupts at an empty prompt."""
        warned = False
        while True:
            try:
                line = self._lines.next()
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                self._interrupts.reset()
                output.line()
                if self._lines.unfinished():
                    continue
                if warned:
                    return None
                warned = True
                output.note("(press Ctrl-C again or Ctrl-D to leave)")
                continue
            if line is None and self._lines.interactive:
                output.line()
            return line

    def _take(self, line: str) -> None:
        text = line.lstrip()
        if text.startswith("//"):
            self._answer(text[1:])
        elif text.startswith("/"):
            self._commands.run(text)
        elif text:
            self._answer(line)

    def _answer(self, text: str) -> None:
        """An answer that an interrupt cut short is kept, so that the chat goes on from what the user saw."""
        from drivetrain.cli.terminal.answers import AnswerPrinter, cut_off

        question, printer = self._conversation.question(text), AnswerPrinter()
        try:
            result = self._print(self._conversation.request(question), printer)
        except DrivetrainError:
            if self._conversation.drop_images():
                output.note("(the images were dropped)")
            raise
        if result is None or not result.choices or not printer.started:
            output.note("(no answer)")
            return
        if printer.content:
            self._conversation.keep(question, printer.content)
        asked, length = self._conversation.parameters.get("max_tokens"), self._worker.capabilities.context_length
        if said := cut_off(result, length, asked=asked, more="/set max_tokens N allows more"):
            output.note(said)

    def _print(self, request: dict[str, Any], printer: AnswerPrinter) -> Result | None:
        """Print the answer as it comes. Returns all of it, or what there was when the user stopped it."""
        stream: sync.SyncStream | None = None
        stopped = False
        try:
            with self._worker.stream(**request) as stream:
                for event in stream:
                    if isinstance(event, Delta):
                        printer.take(event)
        except KeyboardInterrupt:
            self._interrupts.reset()
            stopped = True
        except DrivetrainError:
            if printer.started:  # the error gets a line of its own
                output.line()
            raise
        if printer.started:
            printer.finish()
        if stopped:
            output.note("(stopped)")
        return stream.result() if stream is not None else None
