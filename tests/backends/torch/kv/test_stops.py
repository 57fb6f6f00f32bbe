"""Stops of the mover of a GPU while copies are on their way, hang, or wait for one another."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.backends.torch import async_copy as copies_module
from penstock.backends.torch.kv import mover as mover_module
from penstock.backends.torch.kv import staging
from penstock.backends.torch.kv.staging import CHUNKS
from penstock.core import DeviceLostError
from penstock.core.transfer import RAM, Fault
from tests.backends.torch.kv.held_copies import HeldCopies
from tests.backends.torch.kv.test_staging import LOAD, STORE, Moving
from tests.e2e.server import eventually
from tests.executor.worker.test_kv_mover import disk
from tests.limits import HANG


def stores_on_their_way(m: Moving) -> None:
    m.copies.hold("host")
    for name in range(1, CHUNKS + 3):
        m.submit(STORE, 1, [3, 9], name=name)
    eventually(lambda: m.copies.begun("host"), "a copy")


def loads_on_their_way(m: Moving) -> None:
    for name in range(1, CHUNKS + 3):
        assert m.move(STORE, 1, [3, 9], name=name).done
    m.copies.hold("device")
    for name in range(1, CHUNKS + 3):
        m.submit(LOAD, 1, [2 * name, 2 * name + 1], name=name)
    eventually(lambda: m.copies.begun("device"), "a copy")


def ram_on_its_way(m: Moving) -> None:
    m.copies.hold("host", "device")
    m.submit(STORE, RAM, [3], slots=[0])
    m.submit(LOAD, RAM, [4], slots=[0])
    m.submit(LOAD, RAM, [4], slots=[1])
    eventually(lambda: m.copies.begun("host"), "a copy")


@pytest.mark.parametrize("begin", [stores_on_their_way, loads_on_their_way, ram_on_its_way])
@pytest.mark.parametrize("seconds", [0.0, HANG])
def test_a_stop_while_copies_are_in_flight_leaks_nothing(
    tmp_path: Path, begin: Callable[[Moving], None], seconds: float
) -> None:
    threads = set(threading.enumerate())
    copies = HeldCopies()
    m = Moving(copies, disk(tmp_path))
    memory = [weakref.ref(each.untyped_storage()) for each in copies.pinned]
    begin(m)
    closing = threading.Thread(target=m.mover.close, args=(seconds,))
    closing.start()
    closing.join(0.3)
    assert closing.is_alive(), "the memory is not given back before its copy is done"
    copies.let_go("host", "device")
    closing.join(HANG)
    assert not closing.is_alive()
    assert (copies.wrong, copies.pinned) == ([], [])
    if begin is stores_on_their_way and seconds:
        assert sum(moved.done for moved in m.mover.take()) == CHUNKS + 2
    assert set(threading.enumerate()) <= threads
    del m
    gc.collect()
    eventually(lambda: not any(each() for each in memory), "memory that is given back")


def test_a_stop_answers_copies_that_wait_for_one_that_is_dropped() -> None:
    """A store copies, one to another slot waits behind it, and a load waits for that one."""
    m = Moving(HeldCopies())
    m.copies.hold("host", "device")
    ids = [
        m.submit(STORE, RAM, [3], slots=[0]),
        m.submit(STORE, RAM, [4], slots=[1]),
        m.submit(LOAD, RAM, [20], slots=[1]),
        m.submit(LOAD, RAM, [21], slots=[0]),
    ]
    eventually(lambda: m.copies.begun("host"), "a copy")
    closing = threading.Thread(target=m.mover.close, args=(0.0,))
    closing.start()
    closing.join(0.2)
    m.copies.let_go("host", "device")
    closing.join(HANG)
    assert not closing.is_alive()
    found = {moved.id: moved for moved in m.mover.take()}
    assert sorted(found) == ids
    assert found[ids[0]].done
    for each in ids[1:3]:
        assert (found[each].done, found[each].fault) == (False, Fault.NONE)
        assert "closed before this was done" in found[each].error
    assert m.values(0, 20) == {20.0}, "what the slot of a dropped store had is no block"
    assert (m.copies.wrong, m.copies.pinned) == ([], [])


@pytest.mark.parametrize("begin", [stores_on_their_way, loads_on_their_way, ram_on_its_way])
def test_a_stop_leaves_copies_that_hang_and_their_memory_behind(
    tmp_path: Path,
    begin: Callable[[Moving], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mover_module, "GRACE_S", 0.3)
    monkeypatch.setattr(staging, "LEFT_BEHIND", [])
    threads = set(threading.enumerate())
    m = Moving(HeldCopies(), disk(tmp_path))
    begin(m)
    asked = m._id
    answered = asked - (CHUNKS + 2 if begin is loads_on_their_way else asked)
    began = time.monotonic()
    with caplog.at_level(logging.ERROR):
        m.mover.close(0.1)
    assert time.monotonic() - began < HANG / 2
    kept = [each.data_ptr() for each in staging.LEFT_BEHIND]
    assert kept == [each.data_ptr() for each in m.copies.pinned] != []
    left = sum(len(each) for each in staging.LEFT_BEHIND)
    assert f"{left} bytes of pinned memory are kept until the process ends" in caplog.text
    found = [moved.id for moved in m.mover.take()]
    assert sorted(found) == list(range(answered + 1, asked + 1))
    # A copy that ends after all has no second answer.
    m.copies.let_go("host", "device")
    eventually(lambda: set(threading.enumerate()) <= threads, "the end of the threads")
    assert m.mover.take() == []
    assert all(thread.daemon for thread in threading.enumerate() if thread not in threads)


def test_a_copy_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def query(self) -> bool:
            return False

    monkeypatch.setattr(copies_module, "HANG_S", 0.05)
    copied = copies_module._DeviceCopied.__new__(copies_module._DeviceCopied)
    copied._began = copied._ended = Event()
    copied._gpu = "GPU 1"
    with pytest.raises(DeviceLostError, match=r"copy of KV blocks on GPU 1 has not ended.*Xid"):
        copied.result()
