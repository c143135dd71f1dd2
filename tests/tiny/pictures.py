"""Two small pictures that nobody would mix up, the same on every machine, and ways to write them down."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw


def circle(width: int = 56, height: int = 56) -> Image.Image:
    """A blue circle on white."""
    image = Image.new("RGB", (width, height), (255, 255, 255))
    ImageDraw.Draw(image).ellipse((width // 8, height // 8, width * 7 // 8, height * 7 // 8), fill=(20, 60, 220))
    return image


def stripes(width: int = 56, height: int = 56) -> Image.Image:
    """Black and red stripes, getting brighter to the right."""
    image = Image.new("RGB", (width, height), (0, 0, 0))
    draw = ImageDraw.Draw(image)
    for left in range(0, width, 8):
        draw.rectangle((left, 0, left + 3, height), fill=(255, left * 255 // width, 0))
    return image


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()


def data_uri(image: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")
