"""The block-hash rule once more, in plain Python: from the text in `crates/kv/prefix` and the paper
on BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020). The golden vectors are made with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

UNIT, GROUP = 16, 4
_IV = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_BLOCK, _ROUNDS = 64, 7
_START, _END, _ROOT, _KEYED, _CONTEXT, _MATERIAL = 1, 2, 8, 16, 32, 64
"""Flags of a block: first and last of its chunk, the whole input's last; then the modes."""


def _turn(word: int, by: int) -> int:
    return (word >> by | word << (32 - by)) & 0xFFFFFFFF


def _mix(state: list[int], at: tuple[int, ...], x: int, y: int) -> None:
    a, b, c, d = at
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        state[a] = (state[a] + state[b] + word) & 0xFFFFFFFF
        state[d] = _turn(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) & 0xFFFFFFFF
        state[b] = _turn(state[b] ^ state[c], second)


def _compress(value: Sequence[int], block: bytes, flags: int) -> list[int]:
    """The next chaining value, for the first chunk of an input."""
    state = [*value, *_IV[:4], 0, 0, len(block), flags]
    words = list(struct.unpack("<16I", block.ljust(_BLOCK, b"\0")))
    for _ in range(_ROUNDS):
        for number, at in enumerate(_COLUMNS_AND_DIAGONALS):
            _mix(state, at, words[2 * number], words[2 * number + 1])
        words = [words[at] for at in _ORDER]
    return [low ^ high for low, high in zip(state[:8], state[8:], strict=True)]


def _hash(key: Sequence[int], message: bytes, mode: int) -> bytes:
    """Digest of at most 1024 bytes: one BLAKE3 chunk, no tree."""
    assert len(message) <= 1024
    blocks = [message[at : at + _BLOCK] for at in range(0, len(message), _BLOCK)] or [b""]
    value = list(key)
    for number, block in enumerate(blocks):
        flags = (
            mode
            | (_START if number == 0 else 0)
            | (_END | _ROOT if number == len(blocks) - 1 else 0)
        )
        value = _compress(value, block, flags)
    return struct.pack("<8I", *value)


def keyed(key: bytes, message: bytes) -> bytes:
    return _hash(struct.unpack("<8I", key), message, _KEYED)


def derive_key(context: str, material: bytes) -> bytes:
    key = _hash(_IV, context.encode(), _CONTEXT)
    return _hash(struct.unpack("<8I", key), material, _MATERIAL)


def root(identity: bytes, adapter: bytes, salt: bytes) -> bytes:
    if not adapter and not salt:
        return bytes(32)
    key = derive_key("penstock prefix root v1", identity)
    return keyed(key, struct.pack("<I", len(adapter)) + adapter + salt)


def chain(identity: bytes, parent: bytes | None, tokens: Sequence[int]) -> Iterator[bytes]:
    key = derive_key("penstock prefix unit v1", identity)
    link = parent or bytes(32)
    for at in range(0, len(tokens) - UNIT + 1, UNIT):
        unit = struct.pack(f"<{UNIT}I", *tokens[at : at + UNIT])
        link = link[:GROUP] + keyed(key, link + unit)[GROUP:]
        yield link
