"""An HTTP/1.1 answer taken apart as it arrives; no input or output of its own."""

from __future__ import annotations


class Answer:
    """`feed` gives the parts of the body that have arrived; a chunk of a chunked body is given whole."""

    def __init__(self) -> None:
        self.status = 0
        self.over = False
        self._data = b""
        self._left: int | None = None
        self._chunked = False

    @property
    def ends_with_connection(self) -> bool:
        return self.status != 0 and not self._chunked and self._left is None

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `ValueError` for what is no HTTP."""
        self._data += data
        if not self.status and not self._head():
            return []
        return self._chunks() if self._chunked else self._plain()

    def _head(self) -> bool:
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return False
        status_line, *fields = head.split(b"\r\n")
        for field in fields:
            name, _, value = field.partition(b":")
            if name.lower() == b"content-length":
                self._left = int(value)
            elif name.lower() == b"transfer-encoding":
                self._chunked = b"chunked" in value.lower()
        self.status = int(status_line.split(b" ", 2)[1])
        self._data = rest
        return True

    def _plain(self) -> list[bytes]:
        data, self._data = self._data, b""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.over = self._left == 0
        return [data] if data else []

    def _chunks(self) -> list[bytes]:
        data, at = self._data, 0
        parts: list[bytes] = []
        while (line_end := data.find(b"\r\n", at)) >= 0:
            start = line_end + 2
            end = start + int(data[at:line_end].partition(b";")[0], 16)
            if len(data) < end + 2:
                break
            at = end + 2
            if start == end:
                self.over = True
                break
            parts.append(data[start:end])
            if at == len(data):  # nearly always the first chunk is the only one
                break
        self._data = data[at:]
        return parts
