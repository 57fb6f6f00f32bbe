"""Keys and values that leave a decoder's pool and come back: what is computed with them is the
same.
"""

from __future__ import annotations

import json
import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock._native import Decoder, KvMover
from penstock.core.plan import LogprobRow, StepPlan
from penstock.core.transfer import RAM, Transfer, TransferKind, TransferResult
from tests.fakes.plans import one_sequence, registration
from tests.limits import HANG

BLOCK = 16
VOCAB = 256
PROMPT = [(7 * i + 3) % VOCAB for i in range(40)]
WHOLE = registration(prompt_logprobs=VOCAB)


def load(repository: Path, kv_dtype: str = "auto") -> Decoder:
    specs = json.loads((repository / "tests/fixtures/specs/llama.json").read_text())
    options = {
        "threads": 1,
        "max_num_seqs": 4,
        "max_batched_tokens": 64,
        "block_size": BLOCK,
        "kv_dtype": kv_dtype,
        "quantization": "auto",
        "dtype": "auto",
        "isa": None,
    }
    path = str(repository / "tests/fixtures/tiny/llama")
    decoder = Decoder(
        json.dumps(specs["spec"]), json.dumps(specs["weights"]), [path], json.dumps(options)
    )
    decoder.allocate([16])
    return decoder


@pytest.fixture
def decoder(repository: Path) -> Decoder:
    return load(repository)


@contextmanager
def moving(
    decoder: Decoder, *tiers: dict[str, object], slots: int = 8, cache: str = "ab"
) -> Iterator[KvMover]:
    options = {"cache": cache * 32, "ram_slots": slots, "tiers": list(tiers)}
    mover = KvMover(decoder, json.dumps(options))
    try:
        yield mover
    finally:
        mover.close(HANG)


def disk(path: Path) -> dict[str, object]:
    return {"kind": "disk", "path": str(path), "limit_bytes": 1 << 30}


def plan(tokens: list[int], start: int, blocks: list[int]) -> StepPlan:
    targets = [-1] * (len(tokens) - 1) + [0]
    return one_sequence(1, tokens, start, blocks, new=WHOLE, sample=False, targets=targets)


def compute(decoder: Decoder, tokens: list[int], start: int, blocks: list[int]) -> LogprobRow:
    """The log-probabilities of the whole vocabulary after the last of `tokens`."""
    result = decoder.submit(plan(tokens, start, blocks)).result(HANG)
    (row,) = result.prompt_logprobs[0]
    assert len(row[2]) == VOCAB
    return row


def move(mover: KvMover, transfer: Transfer) -> TransferResult:
    mover.submit(transfer)
    (moved,) = mover.take(HANG)
    assert moved.id == transfer.id
    return moved


def ram(kind: TransferKind, blocks: list[int], slots: list[int]) -> Transfer:
    return Transfer(1, kind, RAM, blocks=array("i", blocks), slots=array("i", slots))


def chunk(kind: TransferKind, name: int, blocks: list[int], tier: int = 1) -> Transfer:
    return Transfer(1 << 40, kind, tier, blocks=array("i", blocks), keys=bytes([name]) * 32)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float32"])
def test_what_ram_kept_computes_the_same(repository: Path, kv_dtype: str) -> None:
    decoder = load(repository, kv_dtype)
    with moving(decoder) as mover:
        compute(decoder, PROMPT, 0, [3, 1, 6])
        moved = move(mover, ram(TransferKind.STORE, [3, 1, 6], [7, 0, 2]))
        assert moved.done
        assert (moved.bytes > 0, moved.error) == (True, "")
        expected = compute(decoder, [5], 40, [3, 1, 6])
        other = compute(decoder, PROMPT[::-1], 0, [3, 1, 6])
        assert compute(decoder, [5], 40, [3, 1, 6]) != expected != other
        assert move(mover, ram(TransferKind.LOAD, [9, 4, 11], [7, 0, 2])).done
        assert compute(decoder, [5], 40, [9, 4, 11]) == expected
        # A slot that nothing was stored to.
        assert move(mover, ram(TransferKind.LOAD, [4], [5])).done
        assert compute(decoder, [5], 40, [9, 4, 11]) != expected


def test_what_a_disk_kept_computes_the_same_in_another_engine(
    repository: Path, tmp_path: Path
) -> None:
    first = load(repository)
    with moving(first, disk(tmp_path), slots=0) as mover:
        compute(first, PROMPT, 0, [3, 1, 6])
        assert move(mover, chunk(TransferKind.STORE, 1, [3, 1])).done
        assert move(mover, chunk(TransferKind.STORE, 2, [6])).done
        expected = compute(first, [5], 40, [3, 1, 6])
    second = load(repository)
    with moving(second, disk(tmp_path), slots=0) as mover:
        probe = Transfer(
            3,
            TransferKind.PROBE,
            1,
            keys=bytes([1]) * 32 + bytes([2]) * 32 + bytes([9]) * 32,
            counts=array("i", [2, 1, 1]),
        )
        assert move(mover, probe).found == b"\1\1\0"
        assert move(mover, chunk(TransferKind.LOAD, 1, [8, 2])).done
        assert move(mover, chunk(TransferKind.LOAD, 2, [5])).done
        assert compute(second, [5], 40, [8, 2, 5]) == expected
        missing = move(mover, chunk(TransferKind.LOAD, 9, [8, 2]))
        assert (missing.done, missing.error) == (False, "")
        assert move(mover, Transfer(4, TransferKind.REMOVE, keys=bytes([1]) * 32)).done
        assert not move(mover, chunk(TransferKind.LOAD, 1, [8, 2])).done
        assert move(mover, Transfer(5, TransferKind.CLEAR, keys=bytes([1]) * 4)).done
        assert move(mover, chunk(TransferKind.LOAD, 2, [5])).done
        told = Transfer(6, TransferKind.STORE, 1, array("i", [5]), keys=bytes([7]) * 32)
        told.parent = bytes([2]) * 32
        assert move(mover, told).done
        assert move(mover, Transfer(7, TransferKind.CLEAR, keys=bytes([7]) * 4)).done
        assert not move(mover, chunk(TransferKind.LOAD, 7, [5])).done
    with moving(second, disk(tmp_path), slots=0, cache="cd") as mover:
        assert not move(mover, chunk(TransferKind.LOAD, 2, [5])).done


@contextmanager
def silent_redis() -> Iterator[tuple[str, threading.Event]]:
    """A server that lets clients in, and says no more until the event is set; then it ends."""
    speak = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            heard = b""
            while b"UNLINK" not in heard:
                heard += client.recv(1 << 16)
            client.sendall(b":1\r\n:1\r\n")
            speak.wait(HANG)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0", speak
    finally:
        speak.set()
        listener.close()
        thread.join(HANG)


def test_a_plan_with_a_lent_block_is_refused(decoder: Decoder) -> None:
    with silent_redis() as (url, speak), moving(decoder, {"kind": "redis", "url": url}) as mover:
        mover.submit(chunk(TransferKind.LOAD, 1, [2, 3]))
        assert mover.take() == []
        with pytest.raises(ValueError, match="block 3 is lent for writing"):
            decoder.submit(plan(PROMPT, 0, [5, 6, 3])).result(HANG)
        second = move(mover, ram(TransferKind.STORE, [4, 2], [0, 1]))
        assert not second.done
        assert "block 2 is not to be had" in second.error
        compute(decoder, PROMPT, 0, [5, 6, 7])
        speak.set()
        (moved,) = mover.take(HANG)
        assert not moved.done
        assert "redis" in moved.error
        compute(decoder, PROMPT, 0, [5, 6, 3])


def test_the_report_has_the_counters_of_the_chunk_tiers(decoder: Decoder, tmp_path: Path) -> None:
    with moving(decoder, disk(tmp_path)) as mover:
        assert move(mover, chunk(TransferKind.STORE, 1, [3, 1])).done
        (tier,) = json.loads(mover.report())["tiers"]
        assert (tier["name"], tier["damaged"], tier["hanging"]) == (f"disk:{tmp_path}", 0, 0)
        assert tier["counters"]["used_bytes"] > 0


def test_a_transfer_that_makes_no_sense_is_an_error(decoder: Decoder) -> None:
    with moving(decoder) as mover:
        with pytest.raises(ValueError, match="33 bytes are not names"):
            mover.submit(Transfer(1, TransferKind.REMOVE, keys=bytes(33)))
        with pytest.raises(ValueError, match="a group has 4 bytes"):
            mover.submit(Transfer(1, TransferKind.CLEAR, keys=bytes(5)))
        with pytest.raises(ValueError, match="parent has 31 bytes"):
            mover.submit(Transfer(1, TransferKind.STORE, 1, parent=bytes(31)))
        assert "no names" in move(mover, Transfer(1, TransferKind.REMOVE)).error
        with pytest.raises(ValueError, match="9 is no kind"):
            mover.submit(Transfer(1, 9))  # type: ignore[arg-type]
        assert "tier 1" in move(mover, chunk(TransferKind.LOAD, 1, [1])).error
        mover.submit(Transfer(0, TransferKind.CANCEL, ids=array("q", [1, 2])))
        assert mover.take() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cache": "x", "ram_slots": 0, "tier": []}, "unknown field `tier`"),
        ({"ram_slots": 0}, "cache"),
        ({"cache": "x", "ram_slots": 0, "tiers": [{"kind": "tape"}]}, "unknown variant `tape`"),
        (
            {
                "cache": "x",
                "ram_slots": 0,
                "tiers": [{"kind": "disk", "path": "/proc/1/kv", "limit_bytes": 1 << 40}],
            },
            "/proc/1/kv",
        ),
        ({"cache": "x", "ram_slots": 1 << 60}, "--kv-tier ram"),
    ],
)
def test_what_cannot_be_started_is_named(
    decoder: Decoder, options: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        KvMover(decoder, json.dumps(options))
