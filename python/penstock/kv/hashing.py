"""Digests that name KV blocks. A block's digest covers all tokens from the start of its sequence to
the end of the block.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from penstock.core import InvalidValueError
from penstock.core.transfer import GROUP_BYTES

UNIT = 16
"""Tokens per unit. The hash rule (`crates/kv/prefix`) computes one digest for each unit."""


class HashChain(Protocol):
    """Function that returns a digest for each full unit of `tokens`, which follow the unit with
    digest `parent`: `penstock._native.hash_chain`.
    """

    def __call__(
        self, identity: bytes, parent: bytes | None, tokens: array[int], /
    ) -> list[bytes]: ...


class HashRoot(Protocol):
    """Function that returns the parent of a chain's first unit, from an adapter and a cache salt:
    `penstock._native.hash_root`.
    """

    def __call__(self, identity: bytes, adapter: bytes, salt: bytes, /) -> bytes: ...


class BlockHasher:
    """Computes the digests of blocks. A block's digest is the digest of its last unit."""

    def __init__(
        self, block_size: int, identity: bytes, hash_chain: HashChain, hash_root: HashRoot
    ) -> None:
        if block_size < UNIT or block_size % UNIT:
            raise InvalidValueError("block_size", block_size, f"a multiple of {UNIT}")
        self.block_size = block_size
        self._identity = identity
        self._hash_chain = hash_chain
        self._hash_root = hash_root

    def digests(
        self, tokens: array[int], known: list[bytes], salt: bytes, adapter: int = 0
    ) -> list[bytes]:
        """Digests of the full blocks of `tokens` that follow the blocks with the `known` digests.
        `adapter` is the LoRA adapter's number; 0 means none.
        """
        size = self.block_size
        start, end = len(known) * size, len(tokens) // size * size
        if start == end:
            return []
        parent = known[-1] if known else self._root(salt, adapter)
        units = self._hash_chain(self._identity, parent, tokens[start:end])
        per_block = size // UNIT
        return units[per_block - 1 :: per_block]

    def salt_group(self, salt: bytes) -> bytes:
        """The first GROUP_BYTES bytes of all digests with this cache salt; zeros without a salt."""
        return (self._root(salt) or bytes(GROUP_BYTES))[:GROUP_BYTES]

    def _root(self, salt: bytes, adapter: int = 0) -> bytes | None:
        name = adapter.to_bytes(4, "little") if adapter else b""
        return self._hash_root(self._identity, name, salt) if salt or name else None
