"""The golden frames, byte for byte: what the Rust codec reads and writes too."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from penstock.core import (
    Decisions,
    Durations,
    EngineStats,
    KvAction,
    KvCommand,
    KvOutcome,
    KvReply,
    Request,
    SamplingParams,
    StepOutputs,
    TierKind,
    TierKinds,
    TierReport,
    TierState,
    TierStats,
    TierTokens,
)
from penstock.wire import (
    Cancel,
    EngineFrame,
    Fatal,
    FrontFrame,
    Hello,
    Ready,
    Shutdown,
    Stage,
    Step,
    decode_engine_frame,
    decode_front_frame,
    encode,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"
BIG_ID = 2**63 + 5

FRAMES: dict[str, EngineFrame | FrontFrame] = {
    "hello": Hello(pid=305_419_896),
    "stage": Stage("weights packed", 0.625, "97 MB → 8-bit"),
    "ready": Ready(
        max_model_len=8192,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        max_queue=256,
        block_size=16,
        num_blocks=2912,
        kv_bytes=5_368_709_120,
        vocab_size=49152,
        eos_token_ids=(2, 128_009),
        cache_identity=bytes(range(100, 132)),
        numerics="w4a8-bf16",
        isa="avx512-vnni",
        threads=2,
        kv_tiers=TierKinds.RAM | TierKinds.REMOTE,
    ),
    "fatal": Fatal("tensor blk.3.attn_q.weight ends at byte 77, the file has 64 — truncated"),
    "step": Step(
        step=4_294_967_301,
        stats=EngineStats(2, 7, 33, 2912, 4, 5_000_000_000, 4_000_000_000),
        batch_tokens=514,
        step_ms=12.5,
        outputs=StepOutputs(
            ids=array("Q", [1, BIG_ID, 3]),
            finish=array("B", [0, 1, 5]),
            stop_tokens=array("i", [-1, 2, -1]),
            cached_tokens=array("I", [48, 0, 0]),
            queue_us=array("I", [1500, 0, 4_000_000_000]),
            counts=array("H", [1, 3, 0]),
            tokens=array("I", [17, 400, 49151, 2]),
            logprobs={0: [(-0.75, 2, [(90, -0.5), (17, -0.75)])]},
            prompt_logprobs={0: [(-3.25, 12, []), (float("-inf"), 49152, [(5, -0.125)])]},
            errors={2: "die Schlange ist voll ✗"},
            tier_tokens={0: TierTokens(ram=32, remote=8)},
        ),
    ),
    "heartbeat": Step(step=9, stats=EngineStats(0, 0, 0, 64, 1, 2, 3)),
    "add": Request(
        id=BIG_ID,
        prompt=array("i", [1, 49151, 0, 2_147_483_647]),
        params=SamplingParams(
            max_tokens=700,
            min_tokens=3,
            temperature=0.75,
            top_k=40,
            top_p=0.875,
            seed=2**64 - 2,
            choice=3,
            logprobs=20,
            stop_token_ids=(2, 7),
        ),
        read_prefix_cache=False,
        cache_salt=b"tenant\x00\xff",
    ),
    "cancel": Cancel((7, BIG_ID)),
    "shutdown": Shutdown(),
    "tiers": TierReport(
        tiers=[
            TierStats("ram", TierKind.RAM),
            TierStats(
                "disk:/var/kv é",
                TierKind.DISK,
                TierState.SKIPPED,
                used_bytes=3 * 2**40,
                capacity_bytes=4 * 2**40,
                hits=11,
                misses=12,
                hit_tokens=2816,
                loaded_bytes=5_000_000_001,
                stored_bytes=5_000_000_002,
                errors=13,
                evicted_chunks=14,
                quarantined_chunks=15,
                dropped_stores=16,
                load=Durations(1.75, array("Q", range(100, 117))),
            ),
        ],
        lookup_tokens=6_000_000_000,
        decisions=Decisions(load=7, compute=8, both=9),
        pinned_blocks=10,
        miss_curve=[(2**30, 0.75), (2**40, 0.0)],
    ),
    "kv": KvCommand(BIG_ID, KvAction.PIN, array("i", [1, 49151, 2_147_483_647]), b"tenant\x00\xff"),
    "kv_reply": KvReply(
        BIG_ID, KvOutcome.REFUSED, "half of the RAM tier is pinned – unpin something first"
    ),
}
ENGINE_FRAMES = (Hello, Stage, Ready, Fatal, Step, TierReport, KvReply)


def golden_bytes(name: str) -> bytes:
    text = (GOLDEN / f"{name}.hex").read_text(encoding="utf-8")
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


def test_every_golden_frame_is_tested() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == FRAMES.keys()


@pytest.mark.parametrize("name", FRAMES)
def test_encodes_to_the_golden_bytes(name: str) -> None:
    assert encode(FRAMES[name]) == golden_bytes(name)


@pytest.mark.parametrize("name", FRAMES)
def test_decodes_the_golden_bytes(name: str) -> None:
    frame = FRAMES[name]
    decode = decode_engine_frame if isinstance(frame, ENGINE_FRAMES) else decode_front_frame
    data = golden_bytes(name)
    assert decode(data[4], data[5:]) == frame


def test_the_script_writes_the_committed_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(GOLDEN / "make.py"), str(tmp_path)], check=True)
    for path in GOLDEN.glob("*.hex"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
