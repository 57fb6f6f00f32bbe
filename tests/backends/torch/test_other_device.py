"""A device of another name than `cuda`, in a table that has no other: all families on it.

It is a backend of torch's that is registered from Python, as an accelerator's plugin registers its
own, with the fake's streams, events and memory (`fake_cuda.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

from penstock.backends import load_backend
from penstock.backends.torch.async_copy import PAGE, DeviceCopies
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.device_lost import is_loss
from penstock.backends.torch.ranks import ranks
from penstock.backends.torch.step import prompt_graphs
from penstock.config.devices import CUDA, DEVICES, DeviceKind
from penstock.core import Allocation, PenstockError, StepResult
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.startup import read_model
from tests.backends.torch import fake_cuda as fakes
from tests.backends.torch import fake_kernels
from tests.backends.torch.driving import Driver, Part, backend, config_of
from tests.backends.torch.fake_library import Nccl
from tests.backends.torch.sampling.test_sampling import same
from tests.backends.torch.test_families import PROMPT
from tests.families import FAMILIES

NAME = "fakenpu"
COMPILED = DeviceKind(
    name=NAME,
    unit="NPU",
    visible="FAKENPU_VISIBLE_DEVICES",
    files=("dev/fakenpu",),
    process_group=f"{__name__}:Library",
    library="FCCL",
    fatal=("FAKENPU error",),
    graph=CUDA.graph,
    triton=True,
    registers=True,
)
PLAIN = replace(COMPILED, graph=None, triton=False, registers=False)
"""Without kernels and graphs: torch's references compute."""


SMALL = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}
"""The warm-up computes the largest steps."""


class Library(Nccl):
    """A process group of torch, as a plugin brings it."""

    def __init__(self, *_: Any) -> None:
        """Connects to nobody."""


@cache
def module() -> ModuleType:
    """Register the device, once in a process."""
    made = ModuleType(f"torch.{NAME}")
    made.is_initialized = lambda: True  # type: ignore[attr-defined]
    made._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    made.current_device = lambda: 0  # type: ignore[attr-defined]
    backend_registration._setup_privateuseone_for_python_backend(NAME, made)
    return made


@contextmanager
def on_device(
    kind: DeviceKind, model: str, rank: tuple[str, str] | None = None
) -> Iterator[TorchBackend]:
    own = module()
    with (
        pytest.MonkeyPatch.context() as patch,
        fakes.fake_cuda(module=own, device=torch.device(NAME, 0)),
    ):
        patch.delitem(DEVICES, "cuda")
        patch.setitem(DEVICES, NAME, kind)
        if kind.triton:
            fake_kernels.install(patch)
        patch.setattr(prompt_graphs, "TOKENS", (32,))
        config = config_of(model, **SMALL)
        loaded = TorchBackend(config, read_model(config), rank, fakes.FakeCuda(0, kind))
        loaded.allocate(Allocation((96,) * len(loaded.kv_spec().groups)))
        try:
            yield loaded
        finally:
            loaded.close()


LAST = tuple(Part(slot, [LAST_SAMPLED]) for slot in range(2))


def steps(driver: Driver) -> list[StepResult]:
    """Prompts, one behind another's decode, and decodes alone."""
    driver.register(0)
    driver.register(1)
    planned = [(Part(0, PROMPT[:20]),), (Part(1, PROMPT[:30]), LAST[0]), LAST]
    return [driver.run(*parts) for parts in planned]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_the_reference_does(family: str) -> None:
    with backend(family, **SMALL) as host:
        expected = steps(Driver(host))
    with on_device(PLAIN, family) as loaded:
        assert loaded.facts.own_memory
        found = steps(Driver(loaded))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        same(ours.logprobs, theirs.logprobs)


@pytest.mark.parametrize("family", ["llama", "gptoss", "deepseek3"])
def test_kernels_and_graphs_ask_for_no_name(family: str) -> None:
    """With Triton and graphs; a step is captured when it comes for the second time."""
    with backend(family, **SMALL) as host:
        driver = Driver(host)
        expected = [*steps(driver), driver.run(*LAST), driver.run(*LAST)]
    with on_device(COMPILED, family) as loaded:
        driver = Driver(loaded)
        found = [*steps(driver), driver.run(*LAST), driver.run(*LAST)]
        assert fakes.GRAPHS
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_are_connected_by_the_library_of_the_table(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[Any] = []

    def note(group: Any, *_: Any) -> Any:
        groups.append(group)
        return group

    monkeypatch.setattr(ranks, "LibraryGroup", note)
    monkeypatch.setattr("penstock._native.Star", lambda *_: None)
    monkeypatch.setattr(ranks, "StarStore", lambda *_: None)
    monkeypatch.setitem(DEVICES, NAME, PLAIN)
    group = {"address": "127.0.0.1:1", "key": "00", "rank": rank, "ranks": 2, "capacity": 4}
    device = torch.device(module().__name__.removeprefix("torch."), 0)
    ranks.open_group(group, [8, 8], device, 1.0, symmetric=True)
    assert [type(each) for each in groups] == [Library]


def test_a_rank_without_a_device_is_told_of_the_own_variable() -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        fakes.fake_cuda(module=module(), device=torch.device(NAME, 0)),
    ):
        patch.setitem(DEVICES, NAME, PLAIN)
        with pytest.raises(PenstockError, match=r"no NPU: there are 1.*FAKENPU_VISIBLE_DEVICES"):
            fakes.FakeCuda(1, PLAIN)


def test_an_error_of_the_device_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("FAKENPU error: the link is down")
    assert not is_loss(error)
    monkeypatch.setitem(DEVICES, NAME, PLAIN)
    assert is_loss(error)


def test_a_device_without_its_plugin_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = replace(PLAIN, plugin="no_such_plugin", install="pip install no-such-plugin")
    monkeypatch.setitem(DEVICES, NAME, kind)
    config = config_of("llama", device=NAME)
    with pytest.raises(PenstockError, match=r"needs no_such_plugin: pip install no-such-plugin"):
        load_backend(config, read_model(config))


def test_pinned_memory_is_torchs_where_no_other_can_be_pinned() -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        fakes.fake_cuda(module=module(), device=torch.device(NAME, 0)) as watch,
    ):
        patch.setitem(DEVICES, NAME, PLAIN)
        copies = DeviceCopies(torch.device(NAME, 0))
        memory = copies.pin(10_000)
        assert len(memory) == 10_000
        assert memory.data_ptr() % PAGE == 0
        assert watch.is_pinned(memory)
        copies.unpin(memory)
