"""What the kernels need on real GPUs, compiled without one: a program of its own, so that a
compiler's memory is given back.

Usage: python compiled.py ARCHITECTURE SHARED latent|quick|full, with the bytes of shared memory
that a program may have. Prints JSON of `Compiled`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.backends.torch.kernels import (
    activation,
    checksum,
    decode,
    gather,
    grouped,
    latent,
    merge,
    mixture,
    norm,
    prefill,
    rotation,
    router,
    rows,
    skinny,
    widen,
)
from penstock.backends.torch.kernels.narrow import TABLE, _list, _narrow
from penstock.backends.torch.kernels.route import Rule, _route, _sort, choice_constants
from penstock.backends.torch.kernels.sample import _draw_rows, _scan

OPTIONS = ("num_warps", "num_stages", "maxnreg")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
NUMBERS = ("q", "k", "v", "out", "pool", "x", "residual", "normed", "total", "gate_up", "qkv")
NUMBERS += ("bias", "queries", "latents")
WIDE = ("sinks", "parts", "sums", "weight", "weights", "logits", "correction", "factors", "cos")
WIDE += ("sin", "q_norm", "k_norm", "temperature", "top_p", "min_p")
WIDTHS = ("width", "hidden", "inputs", "outputs", "vocabulary", "share")
SCALARS = ("scale", "softcap", "eps", "epsilon", "limit", "alpha", "offset")


@dataclass
class Build:
    name: str
    function: Any
    constants: dict[str, Any]
    types: dict[str, str] = field(default_factory=dict)

    def signature(self) -> dict[str, str]:
        return {name: self._type(name) for name in self.function.arg_names}

    def _type(self, name: str) -> str:
        if name in self.constants:
            return "constexpr"
        if name in self.types:
            return self.types[name]
        if name in NUMBERS:
            return "*bf16"
        if name in WIDE:
            return "*fp32"
        if name in SCALARS:
            return "fp32"
        return (
            "i32"
            if re.match(
                "stride|.*_stride|width|each|inputs|outputs|count|programs|exp|sort|voc",
                name,
            )
            else "*i32"
        )


@dataclass
class Compiled:
    name: str
    registers: int
    stack: int
    """Bytes of a thread's: registers that were spilled."""
    shared: int
    """Bytes of shared memory."""
    products: list[str]
    """Instructions of PTX by which the tensor cores multiply matrices."""
    loop: int
    """Machine instructions of the innermost loop with such a product."""
    copies: int
    """Those of them that copy 16 bytes to shared memory beside the computation."""
    awaited: int
    """Groups of copies that may be under way when a tile is computed, at most."""
    waits: int
    """Times that loop waits for products of the tensor cores of 9.0."""
    spills: int
    """Reads and writes of spilled registers in that loop."""
    stores: int
    """Those of the whole kernel that write 16 bytes to the memory of the GPU."""


def attention(size: str, room: int) -> Iterator[Build]:
    shapes = [(4, 128, 32)]
    if size == "full":
        shapes += [
            (8, 64, 16),
            (2, 128, 64),
            (4, 128, 64),
            (4, 256, 64),
            (1, 128, 64),
            (16, 128, 16),
        ]
    for group, d, tokens in shapes:
        rule = {"WINDOW": 0, "CHUNK": 0, "SOFTCAP": False, "SINKS": group == 8}
        shared = {"HQ": 8 * group, "GROUP": group, "D": d, "DV": d, "TOKENS": tokens, **rule}
        for splits, least in ((1, 0), (4, 0), (4, decode.SPLIT_TOKENS)):
            sizes = decode.decode_sizes(group, d, d, 2, room)
            constants = {**shared, "SPLIT": splits > 1, "LEAST": least, "MOST": 32, **sizes}
            name = f"decode {group}x{d}/{'counted' if least else splits}"
            yield Build(name, decode._attend_decode, constants)
        constants = {**shared, **prefill.prefill_sizes(group, d, d, 2, 4096, room)}
        yield Build(f"prefill {group}x{d}", prefill._attend_prefill, constants)


def latents(architecture: int, room: int) -> Iterator[Build]:
    for heads in (128, 16):
        shared = {"HQ": heads, "WIDTH": 576, "VALUE": 512, "TOKENS": 64}
        sizes = latent.latent_sizes(heads, 576, 512, 2, room, architecture == 100)
        yield Build(f"latent {heads}", latent._attend_latent, {**shared, **sizes})


def products(architecture: int, size: str) -> Iterator[Build]:
    shared = {"BLOCK_E": 128, "ORDERED": True, "BIAS": False, "FACTORS": "output"}
    native = architecture >= 89
    forms = {"plain": "*bf16", "fp8_block": "*fp8e4nv" if native else "*u8", "mxfp4": "*i32"}
    for form, codes in forms.items():
        for places in (2048, 4096, 65536) if size == "full" or form == "mxfp4" else (2048,):
            constants = {**shared, "FORM": form, "NATIVE": native or form == "plain"}
            constants["BY_F32"] = architecture < 100
            constants |= grouped.grouped_sizes(places, 128, form, 2)
            if form == "mxfp4" and places == 65536 and architecture == 90:
                constants["maxnreg"] = 128
            scales = "*u8" if form == "mxfp4" else "*fp32"
            types = {"codes": codes, "scales": scales, "first": "i32", "last": "i32"}
            yield Build(f"experts {form} {places}", grouped._grouped, constants, types)
        if form != "plain":
            constants = {"FORM": form, "NATIVE": native, **widen.SIZES}
            yield Build(f"widened {form}", widen._widen, constants, {**types, "out": "*bf16"})


def few_rows(architecture: int, size: str) -> Iterator[Build]:
    types = {"counts": "*i32", "out": "*bf16", "rows": "i32", "splits": "i32", "parts": "*fp32"}
    types |= {"weight": "*bf16", "share": "i32"}
    counts = (8, 16) if size == "full" else (8,)
    for tiling, count in itertools.product(skinny.TILINGS, counts):
        sizes = {"BLOCK_K": tiling.inputs, "PARTS": tiling.parts, "STAGES": skinny.STAGES}
        sizes |= {"ROWS": count, "num_warps": tiling.parts, "BIAS": False}
        name = f"skinny {tiling.outputs}x{count}"
        block = {"BLOCK_N": tiling.outputs, "KIND": ""}
        yield Build(f"{name} split", skinny._product, {**sizes, **block, "SPLIT": True}, types)
        block = {"BLOCK_N": tiling.outputs // 2, "KIND": "silu", "SPLIT": False}
        yield Build(f"{name} gated", skinny._product, {**sizes, **block}, types)
    native = architecture >= 89
    forms = {"plain": "*bf16", "fp8_block": "*fp8e4nv" if native else "*u8", "mxfp4": "*i32"}
    types |= {"weights": "*fp32", "inner": "*bf16", "beside": "*bf16", "gate": "*fp32"}
    types |= {"hidden": "i32"}
    for form, codes in forms.items():
        if form != "plain" and size != "full":
            continue
        tiling = mixture._TILINGS[form]
        sizes = {"BLOCK_K": tiling.inputs, "PARTS": tiling.parts, "STAGES": mixture.STAGES}
        sizes |= {"FORM": form, "NATIVE": native or form == "plain", "ROWS": 8, "EXPERTS": 128}
        sizes |= {"BY_F32": architecture < 100, "BIAS": True, "num_warps": tiling.parts}
        types = {**types, "codes": codes, "scales": "*u8" if form == "mxfp4" else "*fp32"}
        gated = {"KIND": "silu", "ON_INPUT": False, "BLOCK_N": tiling.outputs // 2}
        yield Build(f"few {form} inner", mixture._inner_rows, {**sizes, **gated}, types)
        rules = {"K": 8, "FACTORS": True, "BESIDE": True, "GATE": True, "BLOCK_N": tiling.outputs}
        yield Build(f"few {form} output", mixture._output_rows, {**sizes, **rules}, types)
    constants = choice_constants(
        Rule("sigmoid", groups=8, keep=4, best=2, epsilon=0.0), 256, 8, None
    )
    constants |= {"CORRECTED": True, "BIAS": False, "BY_LOGIT": False, "GATE": True, "SPLITS": 8}
    constants |= {"ROWS": 8, "BLOCK_N": 16, "BLOCK_J": 128, "PARTS": 4, "STAGES": skinny.STAGES}
    types = {**types, "bias": "*fp32", "total": "i32", "programs": "i32"}
    yield Build("few router", router._route_rows, {**constants, "num_warps": 4}, types)


def others(size: str) -> Iterator[Build]:
    rules = {"SUM": True, "AFTER": True, "CENTRED": False, "BIAS": False}
    types = {"bias": "*fp32", "after": "*fp32", "after_eps": "fp32"}
    yield Build("norm", norm._norm, {**rules, "BLOCK": 4096, "num_warps": 8}, types)
    kind = {"KIND": "silu", "BLOCK": 1024, "num_warps": 4}
    yield Build("activation", activation._activate, kind, {"out": "*bf16"})
    heads = {"HQ": 32, "HK": 8, "D": 128, "DV": 128, "HALF": 64, "TOKENS": 64, "NORM": "before"}
    blocks = {"BIAS": False, "FACTORS": False, "BLOCK": 128, "BLOCK_V": 128, "num_warps": 1}
    yield Build("rotation", rotation._rotate, {**heads, **blocks})
    constants = {"RANK": 512, "ROPE": 64, "HALF": 32, "TOKENS": 64, "BLOCK": 512, "BLOCK_R": 64}
    yield Build("store of latents", rotation._store_latent, {**constants, "num_warps": 4})
    constants = {"SPLITS": 32, "WIDTH": 128, "SINKS": True, "BLOCK_S": 32, "BLOCK_W": 128}
    for counted in (False, True):
        own = {**constants, "COUNTED": counted, "num_warps": 2}
        yield Build("merge, counted" if counted else "merge", merge._merge, own)
    constants = choice_constants(
        Rule("sigmoid", groups=8, keep=4, best=2, epsilon=0.0), 256, 8, None
    )
    constants |= {"CORRECTED": True, "BIAS": True, "BY_LOGIT": False, "num_warps": 1}
    yield Build("routing", _route, constants, {"scale": "fp32", "bias": "*fp32"})
    sizes = {"BLOCK": 1024, "num_warps": 4}
    types = {"order": "*i32", "inverse": "*i32", "experts": "i32"}
    yield Build("order by expert", _sort, sizes, types)
    types = {"order": "*i32", "hidden": "i32", "experts": "i32", "gate": "*fp32"}
    types |= {"outputs": "*bf16", "beside": "*bf16"}
    constants = {"BLOCK": 1024, "num_warps": 4}
    yield Build("gathered rows", gather._gather, {**constants, "FACTORS": True}, types)
    constants |= {"K": 8, "INVERSE": True, "FACTORS": True, "BIAS": True}
    yield Build("sum", gather._combine, {**constants, "BESIDE": True, "GATE": True}, types)
    types = {"rows": "i32"}
    constants = {"GROUPS": 2, "SIZE": 64, "BLOCK": 128, "num_warps": 4}
    yield Build("rows", rows._find_rows, constants, types)
    sizes = {"LANES": 8, "STEPS": 4, "num_warps": 4}
    words = {"data": "*i64", "out": "*i64", "parts": "*i64", "tables": "*i64"}
    yield Build("checksum of segments", checksum._segments, sizes, words)
    sizes = {"FIRST": 12, "BITS": 6, "num_warps": 4}
    yield Build("checksum", checksum._joined, sizes, words)
    yield from sampling((False, True) if size == "full" else (False,))


def sampling(caps: Sequence[bool]) -> Iterator[Build]:
    """All kernels, for rows of up to 2048 parts and 64 chunks, without or with a soft cap."""
    types = {"logits": "*bf16", "maxima": "*fp32", "sums": "*fp32", "parts": "i32"}
    types |= {"tops": "*fp32", "above": "*fp32", "table": "*i64", "uniforms": "*fp64"}
    types |= {"seeds": "*i64", "states": "*bf16", "instead": "i32", "chunks": "i32"}
    for cap in caps:
        name, shared = "capped " * cap, {"CAP": cap, "TABLE": TABLE, "num_warps": 4}
        parts = {**shared, "PART": 128}
        yield Build(f"{name}parts of logits", _scan, {**parts, "EACH": 32}, types)
        chunks = {**shared, "CHUNK": 4096, "BLOCK_C": 64}
        yield Build(f"{name}cuts of logits", _narrow, {**chunks, "FEW": 4096}, types)
        yield Build(f"{name}list of logits", _list, {**chunks, "ROOM": 8192}, types)
        parts |= {
            "num_warps": 8,
            "WIDTH": 4096,
            "LAST": True,
            "BLOCK": 512,
            "BLOCK_P": 2048,
            "BLOCK_W": 4096,
        }
        yield Build(f"{name}sampling", _draw_rows, {**parts, "ROOM": 8192}, types)


def compiled(build: Build, architecture: int) -> Compiled:
    constants = dict(build.constants)
    options = {n: constants.pop(n) for n in OPTIONS if n in constants}
    signature = Build(build.name, build.function, constants, build.types).signature()
    # Pointers and strides are multiples of 16 in a pool, and so are the widths of most models.
    varying = build.function.do_not_specialize
    whole = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if (kind.startswith("*") or "stride" in name or name in WIDTHS) and name not in varying
    }
    source = ASTSource(build.function, signature, constants, whole)
    target = GPUTarget("cuda", architecture, 32)
    kernel = triton.compile(source, target=target, options={**options, "enable_fp_fusion": True})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, code = (_shown(file.name, what) for what in ("--dump-resource-usage", "-sass"))
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    ptx, loop = kernel.asm["ptx"], _loop(code)
    return Compiled(
        build.name,
        registers=int(found[1]),
        stack=int(found[2]),
        shared=kernel.metadata.shared,
        products=sorted(set(re.findall(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync", ptx))),
        loop=len(loop),
        copies=sum("LDGSTS" in each and ".128" in each for each in loop),
        waits=sum("WARPGROUP.DEPBAR" in each for each in loop),
        spills=sum(bool(re.search(r"\b(LDL|STL)\b", each)) for each in loop),
        stores=len(re.findall(r"STG\.E\.128", code)),
        awaited=max(map(int, re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx)), default=0),
    )


def _shown(path: str, what: str) -> str:
    """What the tool says of a compiled kernel. It looks for its disassembler in the path."""
    paths = os.pathsep.join([str(TOOLS), os.environ.get("PATH", "")])
    command = [str(TOOLS / "cuobjdump"), what, path]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": paths}
    )
    return done.stdout


def _loop(code: str) -> list[str]:
    """The shortest backward branch over a product of matrices, with what is in it."""
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", code, re.MULTILINE)
    instructions = [(int(address, 16), text) for address, text in lines]
    loops = []
    for end, text in instructions:
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < end:
            inside = [each for at, each in instructions if int(target[1], 16) <= at <= end]
            if any(re.search(r"H(G?)MMA|UTC\w*MMA", each) for each in inside):
                loops.append(inside)
    return min(loops, key=len, default=[])


def main(architecture: int, room: int, size: str) -> None:
    builds = [*latents(architecture, room)]
    if size != "latent":
        builds += [*attention(size, room), *products(architecture, size)]
        builds += [*others(size), *few_rows(architecture, size)]
    print(json.dumps([asdict(compiled(build, architecture)) for build in builds]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
