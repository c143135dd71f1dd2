"""How the prompts of a model spell an image: what its chat template, or its prompt form, writes in its place."""

from __future__ import annotations

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.families import registry
from drivetrain.text.templates import ChatTemplate

DEFAULT = "<__media__>"
"""llama.cpp's own, for prompts that an application writes whole."""

_MARK = "5028317946620183"


def image_token(template: str | None, *, named: dict[str, str], specials: frozenset[str], model: str, kind: str) -> str:
    """`named` are the template's own names for tokens, `model` and `kind` the model's name and architecture."""
    written = None if template is None else _written(template, named, specials)
    if written is not None:
        return written
    family, _ = registry.guess(architecture=kind, name=model)
    return family.image_token or DEFAULT


def _written(source: str, named: dict[str, str], specials: frozenset[str]) -> str | None:
    """By example: what two images add, twice the same."""
    try:
        template = ChatTemplate(source, special_tokens=named, special_strings=specials)
        if not template.takes_images:
            return None
        none, one, two = (_rendered(template, images) for images in range(3))
    except DrivetrainError:
        return None
    start = next((i for i, (a, b) in enumerate(zip(none, one, strict=False)) if a != b), len(none))
    token = one[start : start + len(one) - len(none)].strip()
    if not token or none.count(token) or one.count(token) != 1 or two.count(token) != 2:
        return None
    return token


def _rendered(template: ChatTemplate, images: int) -> str:
    pictures = tuple(ImagePart(data=b"") for _ in range(images))
    return template.render([Message("user", (*pictures, TextPart(_MARK)))]).text
