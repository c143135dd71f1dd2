"""A limit on the threads of llama.cpp that may change while it computes. Needs the standard library only.

llama.cpp plans its threads when it loads, and then takes as many as OpenMP gives it for each graph (`GOMP_parallel`).
So its calls of that function go through a few instructions of ours, which read the limit from memory that the parent
shares. They hold no lock, and nothing of Python runs in llama.cpp's threads. Whatever is not as expected leaves the
library as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

FUNCTION = b"GOMP_parallel"

_LOAD, _DYNAMIC = 1, 2
_STRINGS, _SYMBOLS, _JUMPS, _JUMPS_SIZE = 5, 6, 23, 2
_JUMP_SLOT = 7
"""Names of elf(5): kinds of segments, tags of the dynamic section, and the relocation of an imported function."""


class NotAdjustable(Exception):
    """The number of threads stays as it was at load; the message says why."""


def possible() -> bool:
    """Whether this is a kind of system on which it was tried."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def limit_threads(library: str, shared: int) -> None:
    """From now on, the loaded `library` computes with at most as many threads as the first 32 bits of the file `shared`
    say. Raises `NotAdjustable`."""
    if not possible():
        raise NotAdjustable(f"unknown for {platform.machine()} on {sys.platform}")
    try:
        _limit_threads(library, shared)
    except NotAdjustable:
        raise
    except Exception as exc:  # reading a library in a form that we do not know
        raise NotAdjustable(f"{type(exc).__name__}: {exc}") from exc


def _limit_threads(library: str, shared: int) -> None:
    mapped = mapped_at(library)
    slot = mapped.bias + slot_of(library, FUNCTION)
    if slot not in mapped:
        raise NotAdjustable("its import table is not where its file says")
    real = ctypes.cast(getattr(ctypes.CDLL(library), FUNCTION.decode()), ctypes.c_void_p).value
    imported = ctypes.c_uint64.from_address(slot)
    if not real or not (imported.value == real or imported.value in mapped):
        raise NotAdjustable("its import of OpenMP does not look as expected")  # neither bound nor still to be bound
    limit = ctypes.c_uint32.from_buffer(mmap.mmap(shared, mmap.PAGESIZE))
    code = ctypes.addressof(_executable(trampoline(ctypes.addressof(limit), real)))
    _KEPT.append(limit)
    page = slot & ~(mmap.PAGESIZE - 1)
    _protect(page, mmap.PROT_READ | mmap.PROT_WRITE)
    imported.value = code  # one aligned store: a call goes the old way or the new one
    if not mapped.writable(slot):
        _protect(page, mmap.PROT_READ)


_KEPT: list[object] = []
"""What the instructions read and are. Never freed: any thread of the library may be about to use it."""


def trampoline(limit: int, real: int) -> bytes:
    """Calls `real` with its own arguments, but the third (edx), the threads wanted, at most `limit`. 0 wants as many as
    there are: less one, it is the largest of all numbers."""
    return b"".join(
        (
            b"\xf3\x0f\x1e\xfa",  # endbr64
            b"\x48\xb8" + struct.pack("<Q", limit),  # mov rax, limit
            b"\x8b\x00",  # mov eax, [rax]
            b"\x44\x8d\x42\xff",  # lea r8d, [rdx-1]
            b"\x41\x39\xc0",  # cmp r8d, eax
            b"\x0f\x43\xd0",  # cmovae edx, eax
            b"\x48\xb8" + struct.pack("<Q", real),  # mov rax, real
            b"\xff\xe0",  # jmp rax
        )
    )


def _executable(code: bytes) -> ctypes.Array[ctypes.c_char]:
    """In a page that is written first and executable after that, never both."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(code)
    held = (ctypes.c_char * len(code)).from_buffer(page)
    _protect(ctypes.addressof(held), mmap.PROT_READ | mmap.PROT_EXEC)
    _KEPT.append(held)
    return held


def _protect(page: int, allowed: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), allowed):
        raise NotAdjustable(f"memory cannot be made so: {os.strerror(ctypes.get_errno())}")


@dataclass(frozen=True, slots=True)
class Mapped:
    """Where a library lies: its parts by their first and last byte and their rights, and what to add to its own
    addresses."""

    parts: tuple[tuple[int, int, str], ...]
    bias: int

    def __contains__(self, address: int) -> bool:
        return any(start <= address < end for start, end, _ in self.parts)

    def writable(self, address: int) -> bool:
        return any(start <= address < end and "w" in rights for start, end, rights in self.parts)


def mapped_at(library: str) -> Mapped:
    """Raises `NotAdjustable` if this process has not loaded it."""
    parts, offsets = [], []
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5] == os.path.realpath(library):
                start, end = (int(number, 16) for number in fields[0].split("-"))
                parts.append((start, end, fields[1]))
                offsets.append(int(fields[2], 16))
    if not parts or offsets[0] != 0:
        raise NotAdjustable("the library is not loaded from its file")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        first = next((address for offset, address, _ in _segments(elf, _LOAD) if offset == 0), None)
    if first is None:
        raise NotAdjustable("the library does not begin with its head")
    return Mapped(tuple(parts), parts[0][0] - first)


def slot_of(library: str, name: bytes) -> int:
    """The address, as the file counts, of the slot through which the library calls this function of another one."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        if elf[:6] != b"\x7fELF\x02\x01":
            raise NotAdjustable("not a 64-bit ELF library")
        segments = list(_segments(elf, _LOAD))

        def place(address: int) -> int:
            return next(o + address - a for o, a, size in segments if a <= address < a + size)

        dynamic = next(_segments(elf, _DYNAMIC))
        tags = dict(struct.unpack_from("<qQ", elf, dynamic[0] + at) for at in range(0, dynamic[2], 16))
        symbols, strings, jumps = place(tags[_SYMBOLS]), place(tags[_STRINGS]), place(tags[_JUMPS])
        for at in range(jumps, jumps + tags[_JUMPS_SIZE], 24):
            address, kind, symbol = struct.unpack_from("<QII", elf, at)
            (named,) = struct.unpack_from("<I", elf, symbols + 24 * symbol)
            begin = strings + named
            if kind == _JUMP_SLOT and elf[begin : begin + len(name) + 1] == name + b"\0":
                return int(address)
    raise NotAdjustable("it does not call OpenMP through its import table")


def _segments(elf: mmap.mmap, kind: int) -> Iterator[tuple[int, int, int]]:
    """Of this kind: place in the file, address, size in the file."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    (count,) = struct.unpack_from("<H", elf, 56)
    for number in range(count):
        of, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", elf, table + 56 * number)
        if of == kind:
            yield offset, address, size
