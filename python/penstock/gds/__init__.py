"""Parts of a disk tier moved straight between files and an accelerator's memory: GPUDirect Storage.

Files, names, room and damage are the disk tier's own (docs/kv-format.md).
"""

from penstock.gds.contract import (
    DeviceMemory,
    DirectParts,
    HostCopy,
    Memory,
    Part,
    PartDamagedError,
    PartMissingError,
    PartsError,
    PartsFullError,
)
from penstock.gds.kvikio import KvikioParts

__all__ = [
    "DeviceMemory",
    "DirectParts",
    "HostCopy",
    "KvikioParts",
    "Memory",
    "Part",
    "PartDamagedError",
    "PartMissingError",
    "PartsError",
    "PartsFullError",
]
