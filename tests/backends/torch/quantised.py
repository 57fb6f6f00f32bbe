"""Tiny checkpoints whose matrices are stored in other forms."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tests.real_ranks import TINY

Entry = tuple[str, str, torch.Tensor]
"""Name, type as it is written, and numbers."""
KINDS = {"F16": torch.float16, "BF16": torch.bfloat16}


def with_fp8(family: str, directory: Path) -> str:
    """A checkpoint with the matrices of its layers as 8-bit floats."""

    def entries(name: str, kind: str, numbers: torch.Tensor) -> Iterator[Entry]:
        projected = "proj" in name and numbers.ndim == 2 and "layers" in name
        if not projected:
            yield name, kind, numbers
            return
        scale = numbers.float().abs().max() / 300.0
        blocks = [-(-length // 128) for length in numbers.shape]
        yield name, "F8_E4M3", (numbers.float() / scale).to(torch.float8_e4m3fn)
        yield f"{name}_scale_inv", "F32", torch.full(blocks, float(scale))

    model = shutil.copytree(TINY / family, directory / family)
    file = model / "model.safetensors"
    write(file, (made for each in read(file) for made in entries(*each)))
    quantisation = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    configure(model, quantization_config=quantisation)
    return str(model)


def with_mxfp4(directory: Path) -> str:
    """A gpt-oss with random experts as they are published, of 32 inner numbers: whole groups."""
    experts, width = 6, 32

    def entries(name: str, kind: str, numbers: torch.Tensor) -> Iterator[Entry]:
        if name.endswith("gate_up_proj_bias"):
            yield name, kind, numbers[:, : 2 * width]
        elif name.endswith(("gate_up_proj", "down_proj")):
            outputs = 2 * width if "gate" in name else 32
            codes = torch.randint(0, 256, (experts, outputs, 1, 16), dtype=torch.uint8)
            yield f"{name}_blocks", "U8", codes
            scales = torch.randint(118, 123, (experts, outputs, 1), dtype=torch.uint8)
            yield f"{name}_scales", "U8", scales
        else:
            yield name, kind, numbers

    model = shutil.copytree(TINY / "gptoss", directory / "gptoss")
    file = model / "model.safetensors"
    write(file, (made for each in read(file) for made in entries(*each)))
    configure(model, intermediate_size=width, quantization_config={"quant_method": "mxfp4"})
    return str(model)


def read(file: Path) -> Iterator[Entry]:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name in sorted(header):
        if name != "__metadata__":
            kind, shape = header[name]["dtype"], header[name]["shape"]
            start, end = (8 + size + offset for offset in header[name]["data_offsets"])
            raw = torch.frombuffer(bytearray(data[start:end]), dtype=KINDS[kind])
            yield name, kind, raw.view(shape)


def write(file: Path, entries: Iterable[Entry]) -> None:
    header: dict[str, object] = {}
    parts, at = [], 0
    for name, kind, numbers in entries:
        raw = numbers.contiguous().view(torch.uint8).numpy().tobytes()
        offsets = [at, at + len(raw)]
        header[name] = {"dtype": kind, "shape": list(numbers.shape), "data_offsets": offsets}
        parts.append(raw)
        at += len(raw)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(parts))


def configure(model: Path, **changes: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
