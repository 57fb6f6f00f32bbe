"""GPUDirect Storage: parts of a disk tier, read straight into an accelerator's memory.

File names, format and verification are the disk tier's (docs/kv-format.md).
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
