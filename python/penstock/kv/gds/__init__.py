"""GPUDirect Storage: reads KV parts (one KV head of a chunk, one file each) of a disk tier directly
into GPU memory.

File names, file format and verification are the same as without GPUDirect Storage
(docs/kv-format.md).
"""

from penstock.kv.gds.contract import (
    DeviceMemory,
    Memory,
    Part,
    PartDamagedError,
    PartMissingError,
    PartsError,
)
from penstock.kv.gds.kvikio import KvikioParts

__all__ = [
    "DeviceMemory",
    "KvikioParts",
    "Memory",
    "Part",
    "PartDamagedError",
    "PartMissingError",
    "PartsError",
]
