"""The kernels compiled for GPUs of three generations, without one: they fit, and do not spill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

REPOSITORY = Path(__file__).parents[4]
# Bytes of shared memory that a program may have. 8.9 and 12.0 are here for the kernels that are
# larger than theirs elsewhere.
SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
# Bytes of spilled registers of a thread: some in the widest tiles of 8.0, which has no 8-bit floats
# and keeps what it multiplies in registers.
STACK = {80: 256, 89: 32, 90: 32, 100: 32, 120: 32}
# So that two programs of the widest tile fit a multiprocessor of 9.0; the loop spills nothing.
TWO_PROGRAMS = {"experts mxfp4 65536": {90: 96}}
ALL_KERNELS = (80, 90, 100)
MULTIPLY = ("decode", "prefill", "latent", "experts", "skinny", "few")
# Machine instructions of a tile, with room for another compiler's: 340 to 450 of decode, 440 to 620
# of prefill, of which only a tile with a mask runs 80 to 100. With a look-up for each token there
# were 650.
DECODE_LOOP = 500
PREFILL_LOOP = {90: 680, 100: 680}
# 770 of 64 heads that share latents, 128 of which never run. Where each warp group computed all
# scores there were 970.
LATENT_LOOP = 840
# 78, 94 and 56 for each KiB of codes, the last of twice as many warps. Before codes lay in words
# there were 125 for the first, 85 and 90 of twice as many warps for the others.
EXPERTS_LOOP = {"experts mxfp4 2048": 720, "experts mxfp4 4096": 460, "experts mxfp4 65536": 300}
# Of a tile of 16 KiB for 8 rows: 97 to 150 of each of four warps, 125 to 180 of each of two. That
# is at most 37 and 23 for each KiB, of 275 that a multiprocessor of 9.0 has time for while the
# memory sends it. With products and sums of single numbers there were 59 for one row.
SKINNY_LOOP = {"skinny 16x8": 160, "skinny 32x8": 190, "few plain": 190}
# Keys and values of the next tile, and the numbers of the blocks after it.
READ_AHEAD = 3


def check(architecture: int, size: str, cache: Path) -> None:
    script = Path(__file__).with_name("compiled.py")
    paths = os.pathsep.join([str(REPOSITORY), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(script), str(architecture), str(SHARED[architecture]), size],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for each in found:
        print(" ".join(f"{value}" for value in each.values()))
        name = each["name"]
        assert each["registers"] <= 255
        most = {**STACK, **TWO_PROGRAMS.get(name, {})}
        assert each["stack"] <= most[architecture], name
        assert each["shared"] <= SHARED[architecture], name
        assert bool(each["products"]) == name.startswith(MULTIPLY), name
        check_attention(architecture, **each)


def check_attention(
    architecture: int,
    name: str,
    products: list[str],
    loop: int,
    copies: int,
    awaited: int,
    shared: int,
    waits: int,
    spills: int,
    stores: int,
    **_: int,
) -> None:
    """Tiles come as asynchronous copies of 16 bytes a thread, one while another is computed."""
    if name.startswith("decode"):
        assert products == ["mma.sync"], name
        assert copies >= 8, name
        assert loop <= DECODE_LOOP, name
        assert awaited >= READ_AHEAD, name
        # Three programs of each multiprocessor, but for 8.0.
        assert 3 * (shared + 1024) <= 228 << 10, name
    if name in EXPERTS_LOOP and architecture == 90:
        assert products == ["wgmma.mma_async"], name
        assert loop <= EXPERTS_LOOP[name], name
        assert spills == 0, name
    if name.startswith("widened"):
        assert stores >= 8, name
    if name.startswith("prefill") and architecture in PREFILL_LOOP:
        assert products == ["wgmma.mma_async" if architecture == 90 else "tcgen05.mma"], name
        assert copies >= 4, name
        assert loop <= PREFILL_LOOP[architecture] or "256" in name, name
        # Only for the scores: values are multiplied while the next weights are found.
        assert waits == (architecture == 90), name
        assert spills == 0, name
        assert awaited >= READ_AHEAD or "256" in name, name
    for begin, most in SKINNY_LOOP.items():
        if name.startswith(begin):
            assert products == ["mma.sync"], name
            assert copies >= 12, name
            assert loop <= most, name
            assert awaited >= READ_AHEAD, name
            assert 3 * (shared + 1024) <= 228 << 10, name
    if name.startswith("latent") and architecture in PREFILL_LOOP:
        assert copies >= (16 if name == "latent 16" else 8), name
        assert awaited >= READ_AHEAD, name
        assert spills == 0, name
    if name == "latent 128" and architecture == 90:
        assert products == ["wgmma.mma_async"], name
        assert loop <= LATENT_LOOP, name
        # For both parts of the scores and for the values, not for each product.
        assert waits == 3, name


# Half a minute to a minute of two cores for each architecture: `make test` compiles for one.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, marks=[] if each == 90 else pytest.mark.slow) for each in ALL_KERNELS],
)
def test_kernels_fit_the_gpu(architecture: int, tmp_path: Path) -> None:
    check(architecture, "quick", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", [89, 120])
def test_latent_attention_fits_a_gpu_of_less_shared_memory(
    architecture: int, tmp_path: Path
) -> None:
    check(architecture, "latent", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ALL_KERNELS)
def test_other_shapes_fit_the_gpu(architecture: int, tmp_path: Path) -> None:
    check(architecture, "full", tmp_path)
