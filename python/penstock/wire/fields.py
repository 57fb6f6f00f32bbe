"""Fields of one frame body: columns are little-endian `array.array` bytes, everything else a
`struct`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Any

from penstock.wire.errors import FrameError

U8, U16, U32, U64, F64 = map(Struct, ("<B", "<H", "<I", "<Q", "<d"))


def column_bytes(column: array[int]) -> bytes:
    """The items of `column`, little-endian."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def list_bytes(typecode: str, items: Sequence[int]) -> bytes:
    return U32.pack(len(items)) + column_bytes(array(typecode, items))


def sized(payload: bytes) -> bytes:
    """A `bytes` field."""
    return U32.pack(len(payload)) + payload


def text(value: str) -> bytes:
    """A `str` field."""
    return sized(value.encode())


class FieldReader:
    """Reads the fields of a body in order. A failure is a `FrameError` with the field's name and
    offset.
    """

    __slots__ = ("_body", "_frame", "offset")

    def __init__(self, frame: str, body: bytes) -> None:
        self._frame = frame
        self._body = body
        self.offset = 0

    def error(self, field: str, problem: str, *, back: int = 0) -> FrameError:
        """The error of a field that starts `back` bytes before the current place."""
        return FrameError(self._frame, field, self.offset - back, problem)

    def take(self, field: str, size: int) -> bytes:
        end = self.offset + size
        if end > len(self._body):
            left = len(self._body) - self.offset
            raise self.error(field, f"{size} bytes are needed, {left} are left in the frame")
        taken = self._body[self.offset : end]
        self.offset = end
        return taken

    def unpack(self, field: str, layout: Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(field, layout.size))

    def number(self, field: str, layout: Struct) -> Any:
        return self.unpack(field, layout)[0]

    def column(self, field: str, typecode: str, count: int) -> array[int]:
        column = array(typecode)
        column.frombytes(self.take(field, count * column.itemsize))
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def list(self, field: str, typecode: str) -> array[int]:
        return self.column(field, typecode, self.number(field, U32))

    def sized(self, field: str) -> bytes:
        return self.take(field, self.number(field, U32))

    def text(self, field: str) -> str:
        payload = self.sized(field)
        try:
            return payload.decode()
        except UnicodeDecodeError:
            raise self.error(field, "the text is not UTF-8", back=len(payload)) from None

    def end(self) -> None:
        left = len(self._body) - self.offset
        if left:
            raise self.error("end", f"{left} bytes follow the last field")
