#!/usr/bin/env python3
"""Writes the golden frames beside this file from field lists typed after docs/wire.md, without the
codec.

One line of hex for each field, with its name behind `#`. Usage: make.py [DIRECTORY]
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

FORMATS = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i16": "h",
    "i32": "i",
    "f32": "f",
    "f64": "d",
}

# (width, name, value). A `str` or `bytes` has its length in front; `raw` has not.
Field = tuple[str, str, object]


def field_bytes(kind: str, value: object) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return value if kind == "raw" else struct.pack("<I", len(value)) + value
    items = value if isinstance(value, list) else [value]
    return struct.pack(f"<{len(items)}{FORMATS[kind]}", *items)


HELLO: list[Field] = [
    ("raw", "magic", b"PSTK"),
    ("u16", "wire version", 8),
    ("u32", "pid", 305_419_896),
]

STAGE: list[Field] = [
    ("str", "name", "weights packed"),
    ("f64", "seconds", 0.625),
    ("str", "detail", "97 MB → 8-bit"),
]

READY: list[Field] = [
    ("u32", "max_model_len", 8192),
    ("u32", "max_num_seqs", 32),
    ("u32", "max_num_batched_tokens", 2048),
    ("u32", "max_queue", 256),
    ("u32", "block_size", 16),
    ("u32", "num_blocks", 2912),
    ("u64", "kv_bytes", 5_368_709_120),
    ("u32", "vocab_size", 49152),
    ("u32", "eos_token_ids, count", 2),
    ("u32", "eos_token_ids", [2, 128_009]),
    ("raw", "cache identity", bytes(range(100, 132))),
    ("str", "numerics", "w4a8-bf16"),
    ("str", "device", "avx512-vnni"),
    ("u32", "threads", 2),
    ("u8", "kv_tiers, ram and remote", 5),
    ("u8", "pooler output, an embedding of length 1", 2),
    ("u32", "vector size", 576),
    ("u8", "pooled only", 1),
]

FATAL: list[Field] = [
    ("str", "message", "tensor blk.3.attn_q.weight ends at byte 77, the file has 64 — truncated")
]

# Four outputs: a first token with log-probabilities of itself and of the prompt and with hits in
# tiers, a stop, a rejection; and the end of a pooled request.
STEP: list[Field] = [
    ("u64", "step", 4_294_967_301),
    ("u32", "running", 2),
    ("u32", "waiting", 7),
    ("u32", "blocks_used", 33),
    ("u32", "blocks_total", 2912),
    ("u64", "preemptions_total", 4),
    ("u64", "prefix_query_tokens_total", 5_000_000_000),
    ("u64", "prefix_hit_tokens_total", 4_000_000_000),
    ("u64", "masks_total", 5_000_000_000),
    ("f64", "mask_seconds_total", 0.625),
    ("f64", "mask_wait_seconds_total", 0.125),
    ("u32", "batch_tokens", 514),
    ("f32", "step_ms", 12.5),
    ("u32", "n", 4),
    ("u64", "request id", [1, 2**63 + 5, 3, 4]),
    ("u8", "finish", [0, 1, 5, 1]),
    ("i32", "stop_token", [-1, 2, -1, -1]),
    ("u32", "cached_tokens", [48, 0, 0, 0]),
    ("u32", "queue_us", [1500, 0, 4_000_000_000, 0]),
    ("u16", "count", [1, 3, 0, 0]),
    ("u32", "token ids", [17, 400, 49151, 2]),
    ("u32", "extras", 5),
    ("u32", "extra 0: output index", 0),
    ("u8", "extra 0: kind, log-probabilities of the output", 1),
    ("u32", "extra 0: payload bytes", 4 + 12 + 2 * 8),
    ("u32", "extra 0: rows", 1),
    ("f32", "row 0: logprob", -0.75),
    ("u32", "row 0: rank", 2),
    ("u32", "row 0: k", 2),
    ("u32", "row 0: token", 90),
    ("f32", "row 0: logprob", -0.5),
    ("u32", "row 0: token", 17),
    ("f32", "row 0: logprob", -0.75),
    ("u32", "extra 1: output index", 0),
    ("u8", "extra 1: kind, log-probabilities of the prompt", 2),
    ("u32", "extra 1: payload bytes", 4 + 12 + 12 + 8),
    ("u32", "extra 1: rows", 2),
    ("f32", "row 0: logprob", -3.25),
    ("u32", "row 0: rank", 12),
    ("u32", "row 0: k", 0),
    ("f32", "row 1: logprob", float("-inf")),
    ("u32", "row 1: rank", 49152),
    ("u32", "row 1: k", 1),
    ("u32", "row 1: token", 5),
    ("f32", "row 1: logprob", -0.125),
    ("u32", "extra 2: output index", 0),
    ("u8", "extra 2: kind, tokens by tier", 4),
    ("u32", "extra 2: payload bytes", 12),
    ("u32", "ram", 32),
    ("u32", "disk", 0),
    ("u32", "remote", 8),
    ("u32", "extra 3: output index", 2),
    ("u8", "extra 3: kind, error message", 3),
    ("bytes", "extra 3: payload", "die Schlange ist voll ✗"),
    ("u32", "extra 4: output index", 3),
    ("u8", "extra 4: kind, vector", 5),
    ("u32", "extra 4: payload bytes", 3 * 4),
    ("f32", "vector", [0.5, -0.25, 1.5]),
]

HEARTBEAT: list[Field] = [
    ("u64", "step", 9),
    ("u32", "running", 0),
    ("u32", "waiting", 0),
    ("u32", "blocks_used", 0),
    ("u32", "blocks_total", 64),
    ("u64", "preemptions_total", 1),
    ("u64", "prefix_query_tokens_total", 2),
    ("u64", "prefix_hit_tokens_total", 3),
    ("u64", "masks_total", 0),
    ("f64", "mask_seconds_total", 0.0),
    ("f64", "mask_wait_seconds_total", 0.0),
    ("u32", "batch_tokens", 0),
    ("f32", "step_ms", 0.0),
    ("u32", "n", 0),
    ("u32", "extras", 0),
]

ADD: list[Field] = [
    ("u64", "id", 2**63 + 5),
    ("u32", "prompt, count", 4),
    ("u32", "prompt", [1, 49151, 0, 2_147_483_647]),
    ("u32", "resumed", 2),
    ("u32", "max_tokens", 700),
    ("u32", "min_tokens", 3),
    ("i16", "prompt_logprobs", 20),
    ("u8", "flags, do not read the prefix cache, pool", 14),
    ("u32", "adapter", 3),
    ("i32", "priority", -7),
    ("u32", "stop_token_ids, count", 2),
    ("u32", "stop_token_ids", [2, 7]),
    ("bytes", "cache_salt", b"tenant\x00\xff"),
    ("u32", "sampling, bytes", 103),
    ("u8", "sampling: version", 2),
    ("f32", "sampling: temperature", 0.75),
    ("u32", "sampling: top_k", 40),
    ("f32", "sampling: top_p", 0.875),
    ("f32", "sampling: min_p", 0.25),
    ("u64", "sampling: seed", 2**64 - 2),
    ("u32", "sampling: choice", 3),
    ("i16", "sampling: logprobs", -1),
    ("f32", "sampling: repetition_penalty", 1.5),
    ("f32", "sampling: presence_penalty", -0.5),
    ("f32", "sampling: frequency_penalty", 0.125),
    ("u32", "sampling: suppressed_until", 12),
    ("u32", "sampling: suppressed, count", 1),
    ("u32", "sampling: suppressed", [2]),
    ("u32", "sampling: allowed, count", 2),
    ("u32", "sampling: allowed", [5, 6]),
    ("u32", "sampling: bias, count", 1),
    ("u32", "sampling: bias, token", 5),
    ("f32", "sampling: bias", -100.0),
    ("u32", "sampling: banned, count", 2),
    ("u32", "sampling: banned, count of run", 1),
    ("u32", "sampling: banned", [9]),
    ("u32", "sampling: banned, count of run", 2),
    ("u32", "sampling: banned", [9, 10]),
    ("u32", "grammar, bytes", 4),
    ("u8", "grammar: kind, a regular expression", 2),
    ("raw", "grammar: text", "é+".encode()),
]

CANCEL: list[Field] = [("u32", "ids, count", 2), ("u64", "ids", [7, 2**63 + 5])]

TIERS: list[Field] = [("str", "report", '{"tiers": [{"name": "disk:/var/kv é"}]}')]

KV: list[Field] = [
    ("u64", "id", 2**63 + 5),
    ("u8", "action, pin", 4),
    ("u32", "tokens, count", 3),
    ("u32", "tokens", [1, 49151, 2_147_483_647]),
    ("bytes", "cache_salt", b"tenant\x00\xff"),
]

KV_REPLY: list[Field] = [
    ("u64", "id", 2**63 + 5),
    ("u8", "outcome, refused", 1),
    ("str", "text", "half of the RAM tier is pinned – unpin something first"),
]

FRAMES: dict[str, tuple[int, list[Field]]] = {
    "hello": (0x01, HELLO),
    "stage": (0x02, STAGE),
    "ready": (0x03, READY),
    "fatal": (0x04, FATAL),
    "step": (0x20, STEP),
    "heartbeat": (0x20, HEARTBEAT),
    "add": (0x10, ADD),
    "cancel": (0x11, CANCEL),
    "shutdown": (0x12, []),
    "tiers": (0x21, TIERS),
    "kv": (0x13, KV),
    "kv_reply": (0x22, KV_REPLY),
}


def lines(kind: int, fields: list[Field]) -> str:
    body = [(name, field_bytes(width, value)) for width, name, value in fields]
    length = 1 + sum(len(data) for _, data in body)
    rows = [("length", struct.pack("<I", length)), ("type", bytes([kind])), *body]
    return "".join(f"{data.hex()}  # {name}\n" for name, data in rows)


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, (kind, fields) in FRAMES.items():
        (directory / f"{name}.hex").write_text(lines(kind, fields), encoding="utf-8")


if __name__ == "__main__":
    main()
