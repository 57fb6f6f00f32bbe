"""Uploads of weights: pieces through a ring of buffers, none of which is written too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.device import Cpu
from penstock.backends.torch.uploads import Uploads
from penstock.core import PenstockError
from penstock.engine.startup import read_model
from torch import Tensor

from tests.backends.torch.driving import config_of, gguf_models
from tests.backends.torch.quantised import with_fp8
from tests.backends.torch.test_start import broken
from tests.families import FAMILIES


class Late:
    """A stream whose copies happen when they are waited for, in their order."""

    def __init__(self) -> None:
        self.buffers = 0
        self.log: list[str] = []
        self._queue: list[tuple[int, Tensor, Tensor]] = []
        self._count = 0

    def buffer(self, size: int) -> Tensor:
        self.buffers += 1
        return torch.full((size,), 255, dtype=torch.uint8)

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        number, self._count = self._count, self._count + 1
        self.log.append(f"copy {number}")
        self._queue.append((number, target, source))
        return lambda: self.until(number)

    def until(self, last: int) -> None:
        self.log.append(f"wait {last}")
        while self._queue and self._queue[0][0] <= last:
            _, target, source = self._queue.pop(0)
            target.copy_(source)

    def end(self) -> None:
        self.until(self._count)


def test_a_buffer_is_written_again_when_its_copy_has_ended() -> None:
    stream = Late()
    uploads = Uploads(stream, buffers=2, buffer_bytes=100)
    source = torch.arange(75, dtype=torch.float32).view(15, 5)
    target = torch.zeros(15, 5)
    uploads.copy(source, target)
    # Five rows of 20 bytes at once. The third piece waits for the first, not for the second.
    assert stream.log == ["copy 0", "copy 1", "wait 0", "copy 2"]
    assert stream.buffers == 2
    assert torch.equal(target[:5], source[:5])
    assert not target[5:].any()
    stream.end()
    assert torch.equal(target, source)


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_tensors_of_any_form_arrive_as_they_are(buffers: int, kind: torch.dtype) -> None:
    torch.manual_seed(2)
    stream = Late()
    uploads = Uploads(stream, buffers, buffer_bytes=64)
    whole = torch.randint(0, 100, (9, 40)).to(torch.float32).to(kind)
    sources = [
        whole,
        whole[:, 3:17],
        whole.T,
        whole[torch.tensor([8, 1, 1, 5])],
        whole[0],
        whole[:0],
        whole.view(3, 3, 40)[1:],
    ]
    targets = [torch.zeros(source.shape, dtype=kind) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        uploads.copy(source, target)
    stream.end()
    assert stream.buffers <= buffers
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(source.float(), target.float())


class Watched:
    """A stream whose copies seem to happen at once; `end` fails where a buffer was written while
    its copy was not waited for.
    """

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.pieces = 0
        self._running: list[tuple[Tensor, Tensor]] = []

    def buffer(self, size: int) -> Tensor:
        self.buffers.append(torch.zeros(size, dtype=torch.uint8))
        return self.buffers[-1]

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        target.copy_(source)
        own = (source, source.clone())
        self.pieces += 1
        self._running.append(own)

        def wait() -> None:
            self._running.remove(own)
            same(*own)

        return wait

    def end(self) -> None:
        for own in self._running:
            same(*own)


def same(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


class Uploading(Cpu):
    """torch's CPU device, with weights that go through a ring."""

    def __init__(self) -> None:
        super().__init__(1)
        self.stream = Watched()

    def uploads(self) -> Uploads:  # type: ignore[override]
        return Uploads(self.stream, buffers=2, buffer_bytes=1000)


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from tensors(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors(getattr(value, each.name))


def load(model: str, device: Cpu, **settings: object) -> list[Tensor]:
    config = config_of(model, **settings)
    loaded = TorchBackend(config, read_model(config), None, device)
    loaded.close()
    return list(tensors(loaded._weights))


def compare(model: str, **settings: object) -> None:
    device = Uploading()
    uploaded = load(model, device, **settings)
    device.stream.end()
    assert [len(buffer) for buffer in device.stream.buffers] == [1000, 1000]
    assert device.stream.pieces > len(uploaded)
    mapped = load(model, Cpu(1), **settings)
    for ours, theirs in zip(uploaded, mapped, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        same(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("family", [*FAMILIES, *gguf_models()])
def test_weights_are_those_of_the_mapped_file_bit_for_bit(family: str, dtype: str) -> None:
    compare(family, dtype=dtype)


def test_codes_are_uploaded_too(tmp_path: Path) -> None:
    compare(with_fp8("deepseek3", tmp_path))


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.v_proj.weight"

    def spoil(header: dict[str, dict[str, list[int]]], data: bytearray, base: int) -> None:
        at = base + header[name]["data_offsets"][0]
        data[at : at + 4] = b"\xff\xff\xff\x7f"

    with pytest.raises(PenstockError, match=f"tensor '{name}' has values that are not finite"):
        load(broken(tmp_path, spoil), Uploading())
