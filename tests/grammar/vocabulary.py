"""A tokenizer whose tokens are the 256 bytes."""

from __future__ import annotations

import json
from pathlib import Path


def byte_characters() -> list[str]:
    """The printable character for each byte in byte-level vocabularies (GPT-2's table)."""
    shown = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + at) for at, byte in enumerate(hidden)
    }
    return [table[byte] for byte in range(256)]


def write_tokenizer(directory: Path, config: dict[str, object] | None = None) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    model = {
        "type": "BPE",
        "vocab": {c: byte for byte, c in enumerate(byte_characters())},
        "merges": [],
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
    }
    (directory / "tokenizer.json").write_text(json.dumps({**tokenizer, "model": model}))
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}))
