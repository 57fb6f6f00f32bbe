"""Digests of KV blocks, computed from all tokens up to the end of a block."""

from __future__ import annotations

from array import array
from typing import Protocol

from penstock.core import InvalidValueError
from penstock.core.transfer import GROUP_BYTES

UNIT = 16
"""Tokens for each digest of the hash rule (`crates/kv/prefix`)."""


class HashChain(Protocol):
    """Digests of each full unit of `tokens` after `parent`: `penstock._native.hash_chain`."""

    def __call__(
        self, identity: bytes, parent: bytes | None, tokens: array[int], /
    ) -> list[bytes]: ...


class HashRoot(Protocol):
    """First parent of a chain for an adapter and a cache salt: `penstock._native.hash_root`."""

    def __call__(self, identity: bytes, adapter: bytes, salt: bytes, /) -> bytes: ...


class BlockHasher:
    """Digests of blocks. A block's digest is the digest of its last unit."""

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
        """Digests of the full blocks of `tokens` after the `known` ones. `adapter` 0 means none."""
        size = self.block_size
        start, end = len(known) * size, len(tokens) // size * size
        if start == end:
            return []
        parent = known[-1] if known else self._root(salt, adapter)
        units = self._hash_chain(self._identity, parent, tokens[start:end])
        per_block = size // UNIT
        return units[per_block - 1 :: per_block]

    def salt_group(self, salt: bytes) -> bytes:
        """First bytes of all digests with this salt."""
        return (self._root(salt) or bytes(GROUP_BYTES))[:GROUP_BYTES]

    def _root(self, salt: bytes, adapter: int = 0) -> bytes | None:
        name = adapter.to_bytes(4, "little") if adapter else b""
        return self._hash_root(self._identity, name, salt) if salt or name else None
