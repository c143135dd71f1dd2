"""The slash commands of a chat, and what they do to the conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivetrain.cli.chat.conversation import Conversation
from drivetrain.cli.flags.prompts import image_part
from drivetrain.cli.flags.request_options import CHAT, check_alone, read_value
from drivetrain.cli.terminal import output
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import InvalidRequest, Unsupported

HELP = """/image PATH|URL    show the model an image with the next message
/system TEXT       set the system message; without TEXT, remove it
/set NAME VALUE    set a request parameter, such as temperature 0.2; without VALUE, reset it; alone, list all
/undo              forget the last question and its answer
/reset             start a new chat; the system message and the parameters stay
/help              show this list
/exit, /bye        leave (or press Ctrl-D)
Ctrl-C stops an answer. A line that begins with // is sent with one slash. Put a message of several lines between
triple quotes."""


class Leave(Exception):
    """The user typed /exit or /bye."""


class ChatCommands:
    """Raises `InvalidRequest` for what cannot be done, and `Leave`."""

    def __init__(self, conversation: Conversation, capabilities: Capabilities) -> None:
        self._conversation = conversation
        self._capabilities = capabilities
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/image": self._image,
            "/system": self._system,
            "/set": self._set,
            "/undo": self._undo,
            "/reset": self._reset,
            "/help": lambda rest: output.note(HELP),
            "/exit": self._leave,
            "/bye": self._leave,
            "/quit": self._leave,
        }

    def run(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise InvalidRequest(f"there is no command {name}; /help lists them")
        command(rest.strip())

    def _image(self, source: str) -> None:
        if not self._capabilities.vision:
            raise Unsupported("this model does not support images", param="images")
        if not source:
            raise InvalidRequest("which image? Give /image PATH or /image URL", param="images")
        self._conversation.images.append(image_part(source))
        output.note(f"({len(self._conversation.images)} for the next message)")

    def _system(self, text: str) -> None:
        self._conversation.system = text or None
        output.note("(system message set)" if text else "(no system message)")

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if not name:
            self._list()
            return
        name = name.replace("-", "_")
        if name not in CHAT:
            raise Unsupported(f"{name} is not a parameter of a chat; choose from {', '.join(CHAT)}", param=name)
        if not text.strip():
            self._conversation.parameters.pop(name, None)
            output.note(f"({name} is back to its default)")
            return
        value = read_value(name, text.strip())
        check_alone(name, value, self._capabilities)
        self._conversation.parameters[name] = value
        output.note(f"({name} is {value!r})")

    def _list(self) -> None:
        lines = [f"{name} {value!r}" for name, value in self._conversation.parameters.items()]
        output.note("\n".join(lines) if lines else f"(nothing is set; choose from {', '.join(CHAT)})")

    def _undo(self, rest: str) -> None:
        output.note("(forgotten)" if self._conversation.undo() else "(nothing to undo)")

    def _reset(self, rest: str) -> None:
        self._conversation.reset()
        output.note("(a new chat)")

    def _leave(self, rest: str) -> None:
        raise Leave
