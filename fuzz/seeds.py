"""Writes the seeds of each fuzz target into fuzz/corpus: past findings, fixtures of tests, files.

    python fuzz/seeds.py

Inputs that fuzzing adds to fuzz/corpus stay there; git ignores the folder.
"""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden"
# Fixtures that hold one JSON document for each seed.
DOCUMENTS = {
    "http_body": "crates/server/api-types/tests/bodies.json",
    "tokenizer_json": "crates/base/tokenizer/tests/tokenizers.json",
}

# Types of GGUF's metadata.
I32, F32, STRING, ARRAY = 5, 6, 8, 9
# Types of GGUF's tensors, and the bytes of 256 elements.
TENSORS = {0: 1024, 2: 144, 8: 272, 14: 210, 30: 512}
# A vocabulary with the types of its tokens.
PIECES = {"<s>": 3, "</s>": 3, "a": 1, "b": 1, "ab": 1, "Ġ": 1, "▁": 1}


def text(value: str) -> bytes:
    """A string of GGUF."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(key: str, kind: int, items: list[bytes]) -> bytes:
    """An entry of GGUF's metadata whose value is an array."""
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)


def gguf(model: str, ranks: bytes) -> bytes:
    """A GGUF file with a vocabulary, its merges or scores, and a tensor of each kind of type."""
    names = {"general.architecture": "llama", "tokenizer.ggml.model": model}
    entries = [text(key) + struct.pack("<I", STRING) + text(name) for key, name in names.items()]
    entries.append(array("tokenizer.ggml.tokens", STRING, [text(piece) for piece in PIECES]))
    kinds = [struct.pack("<i", kind) for kind in PIECES.values()]
    entries += [array("tokenizer.ggml.token_type", I32, kinds), ranks]
    rows, at = [], 0
    for kind, size in TENSORS.items():
        rows.append(text(f"t{kind}") + struct.pack("<IQQIQ", 2, 256, 1, kind, at))
        at += -(-size // 32) * 32
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(rows), len(entries))
    head = header + b"".join(entries + rows)
    return head + bytes(-len(head) % 32 + at)


def safetensors() -> bytes:
    """A file with tensors of two types, one of them empty."""
    header = (
        b'{"__metadata__":{"format":"pt"},'
        b'"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"BF16","shape":[0,2],"data_offsets":[8,8]},'
        b'"c":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]}}'
    )
    return struct.pack("<Q", len(header)) + header + bytes(range(11))


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and bytes of each seed."""
    for target, fixture in DOCUMENTS.items():
        for name, document in json.loads((ROOT / fixture).read_text()).items():
            yield target, name, json.dumps(document, ensure_ascii=False).encode()
    scores = [struct.pack("<f", -rank) for rank in range(len(PIECES))]
    yield "gguf", "llama", gguf("llama", array("tokenizer.ggml.scores", F32, scores))
    yield "gguf", "gpt2", gguf("gpt2", array("tokenizer.ggml.merges", STRING, [text("a b")]))
    yield "safetensors", "three", safetensors()
    for flags in (6, 2, 4, 1):  # an unchanged header, another payload
        yield "kv_chunk", f"flags-{flags}", bytes([flags]) + bytes(136) + bytes(range(256))
    for path in sorted((GOLDEN / "sse").glob("*.sse")):  # pieces of 64 bytes, events of 255
        yield "sse", path.stem, b"\x40\xff" + path.read_bytes()[:1500]
    for path in sorted((GOLDEN / "wire").glob("*.hex")):
        digits = "".join(line.split("#")[0] for line in path.read_text().splitlines())
        yield "wire_frame", path.stem, bytes.fromhex(digits)[4:]  # after its length


def main() -> None:
    shutil.copytree(ROOT / "fuzz/regressions", ROOT / "fuzz/corpus", dirs_exist_ok=True)
    for target, name, data in seeds():
        (ROOT / "fuzz/corpus" / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
