"""FlashInfer's attention as a replacement for the Triton kernels (`--attention-backend
flashinfer`).

Before each launch, the host plans the step from its lengths, once per kind of layer. All sequences
use the paged prefill kernel, with decode as the one-row case, because it supports any number of
query heads per KV head. In a CUDA graph, the recorded kernels read the plan from persistent
buffers, which the planning of each step overwrites.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.inputs import Inputs, to_device
from penstock.backends.torch.load.weights import HeadWeights, MixerWeights, Weights
from penstock.backends.torch.runtime import accelerated, runtime
from penstock.core import PenstockError, StepPlan
from penstock.model.spec import Attention, DecoderSpec

LEAST = (0, 7)
"""Minimum version of FlashInfer. Earlier versions have a different signature."""
COMMAND = "pip install 'flashinfer-python>=0.7'"
WORKSPACE = 384 << 20
"""Bytes for partial results of split attention. All steps share them, because steps run one after
another.
"""
INTEGERS = (8 << 20) + (1 << 17)
"""Bytes that each FlashInfer wrapper allocates internally."""
HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Kind:
    """Attention parameters, equal in all layers that share one FlashInfer plan."""

    kv_group: int
    heads: int
    kv_heads: int
    dim: int
    scale: float
    window: int
    """Tokens that a token attends to, including itself; 0: all."""
    softcap: float


def kind_of(mixer: MixerWeights) -> Kind:
    a, own = mixer.spec, mixer.projections
    assert isinstance(a, Attention)
    assert isinstance(own, HeadWeights)
    scale = own.d**-0.5 if a.scale is None else a.scale
    sizes = (own.hq, own.hk, own.d)
    return Kind(mixer.kv_group, *sizes, scale, a.window or 0, a.softcap or 0.0)


def kinds_of(weights: Weights) -> tuple[Kind, ...]:
    return tuple(dict.fromkeys(kind_of(layer.mixer) for layer in weights.layers))


def refusal(spec: DecoderSpec, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    """The first feature of the model that FlashInfer does not support here, worded for an error;
    empty if it supports the model.
    """
    if dtype != torch.bfloat16 or kv_dtype != torch.bfloat16:
        return "float32: weights and KV cache have to be bfloat16"
    for index, layer in enumerate(spec.layers):
        a = layer.mixer
        if not isinstance(a, Attention):
            return f"{a.kind} attention (layer {index})"
        if a.sinks:
            return f"attention sinks (layer {index})"
        if a.chunk and not a.window:
            return f"attention within chunks (layer {index})"
        if a.head_dim not in HEAD_DIMS:
            return f"heads of {a.head_dim} (layer {index}): it has {HEAD_DIMS}"
    return ""


def check_flash(spec: DecoderSpec, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """Raise PenstockError, before the weights are loaded, if FlashInfer is missing, too old, or
    does not support the model.
    """
    reason = refusal(spec, dtype, kv_dtype)
    if reason:
        raise PenstockError(
            f"--attention-backend flashinfer does not compute {reason}. Leave the flag out: the "
            "Triton kernels compute all models"
        )
    module()


@cache
def module() -> Any:
    """The FlashInfer package. Raises PenstockError if it is missing or older than LEAST."""
    try:
        found = importlib.import_module("flashinfer")
    except ImportError as error:
        raise PenstockError(
            f"--attention-backend flashinfer needs FlashInfer ({error}): {COMMAND}"
        ) from error
    version = str(getattr(found, "__version__", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < LEAST:
        least = ".".join(map(str, LEAST))
        raise PenstockError(
            f"--attention-backend flashinfer needs FlashInfer {least} or later, not {version}: "
            f"{COMMAND}"
        )
    return found


class Wrapper(Protocol):
    """The part of `flashinfer.BatchPrefillWithPagedKVCacheWrapper` that is used here."""

    def plan(self, *args: Any, **options: Any) -> None: ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor: ...


class FlashInfer:
    """Plans FlashInfer's attention for all steps of a rank."""

    def __init__(
        self, kinds: Sequence[Kind], block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`dtype`: type of queries, keys and values."""
        self._kinds = tuple(kinds)
        self._block_size = block_size
        self._dtype = dtype
        self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
        self._eager: Planned | None = None
        self._of_graphs: dict[int, Planned] = {}

    def plan(
        self, starts: Sequence[int], counts: Sequence[int], tables: Sequence[Tensor]
    ) -> Planned:
        """Plan the attention of a step outside of graphs. Sequence i has `counts[i]` rows from
        position `starts[i]` on; `tables` has the block tables of each KV group.
        """
        if self._eager is None:
            self._eager = self._planned(None, ())
        self._eager.plan(starts, counts, tables)
        return self._eager

    def of_graph(self, rows: int, tables: Sequence[Tensor]) -> Planned:
        """Attention of the graphs of `rows` sequences with one row each; the caller plans it before
        each replay. `tables` have the maximum width of any step.
        """
        if rows not in self._of_graphs:
            self._of_graphs[rows] = self._planned(rows, tables)
        return self._of_graphs[rows]

    def graph_bytes(self, sizes: Sequence[int], width: int) -> int:
        """Bytes that the wrappers of decode graphs take, one for each number of rows in `sizes`,
        with block tables of `width` entries.
        """
        columns = sum(4 * (rows * (width + 3) + 2) for rows in sizes)
        return len(self._kinds) * (INTEGERS * len(sizes) + columns)

    def _planned(self, rows: int | None, tables: Sequence[Tensor]) -> Planned:
        made = {}
        for kind in self._kinds:
            staying = {} if rows is None else _staying(rows, tables[kind.kv_group])
            made[kind] = module().BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "HND", backend="fa2", **staying
            )
        return Planned(made, self._block_size, self._dtype)


def planned(
    flash: FlashInfer | None,
    inputs: Inputs,
    plan: StepPlan,
    order: Sequence[int],
    tables: Tensor,
) -> Inputs:
    """The inputs of a step outside of graphs, with planned attention if FlashInfer is in use."""
    if flash is None:
        return inputs
    starts, counts = ([column[i] for i in order] for column in (plan.starts, plan.lengths))
    return replace(inputs, planned=flash.plan(starts, counts, tables.unbind(1)))


def _staying(rows: int, table: Tensor) -> dict[str, Any]:
    """Persistent plan buffers for a graph, sized for full block tables of all sequences."""

    def column(length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.int32, device=table.device)

    return {
        "use_cuda_graph": True,
        "qo_indptr_buf": column(rows + 1),
        "paged_kv_indptr_buf": column(rows + 1),
        "paged_kv_indices_buf": column(rows * table.shape[1]),
        "paged_kv_last_page_len_buf": column(rows),
    }


class Planned:
    """FlashInfer's attention for a step: one wrapper for each kind of layer."""

    def __init__(self, wrappers: dict[Kind, Wrapper], block_size: int, dtype: torch.dtype) -> None:
        self._wrappers = wrappers
        self._block_size = block_size
        self._dtype = dtype
        self._copied: Callable[[], None] | None = None
        """Waits until the GPU has copied the previous plan from pinned memory."""

    def plan(self, starts: Sequence[int], counts: Sequence[int], tables: Sequence[Tensor]) -> None:
        """Plan the step for all kinds of layers. Padding (a sequence with 0 rows) is planned as one
        row that attends to one token.
        """
        if self._copied is not None:
            self._copied()
        starts = [start if count else 0 for start, count in zip(starts, counts, strict=True)]
        counts = [max(count, 1) for count in counts]
        for kind, wrapper in self._wrappers.items():
            self._plan_kind(kind, wrapper, starts, counts, tables[kind.kv_group])
        if accelerated(tables[0].device):
            event = runtime(tables[0].device).Event()
            event.record()
            self._copied = event.synchronize

    def _plan_kind(
        self,
        kind: Kind,
        wrapper: Wrapper,
        starts: Sequence[int],
        counts: Sequence[int],
        table: Tensor,
    ) -> None:
        size = self._block_size
        # Skip blocks outside the window, because other sequences may own them by now.
        seen = [max(0, start + 1 - kind.window) if kind.window else 0 for start in starts]
        firsts = [token // size for token in seen]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        pages = [-(-end // size) - first for end, first in zip(ends, firsts, strict=True)]
        rows_at, pages_at = (list(accumulate(column, initial=0)) for column in (counts, pages))
        last = [(end - 1) % size + 1 for end in ends]
        wrapper.plan(
            torch.tensor(rows_at, dtype=torch.int32),
            torch.tensor(pages_at, dtype=torch.int32),
            _blocks(table, firsts, pages, pages_at),
            torch.tensor(last, dtype=torch.int32),
            *(kind.heads, kind.kv_heads, kind.dim, size),
            causal=True,
            sm_scale=kind.scale,
            window_left=kind.window - 1 if kind.window else -1,
            logits_soft_cap=kind.softcap,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )

    def attend(self, mixer: MixerWeights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the rows `q` [rows, hq, d] of the step: [rows, hq, d]. `k` and `v` are views
        [blocks, hk, tokens, d] of a layer.
        """
        return self.attend_kind(kind_of(mixer), q, k, v)

    def attend_kind(self, kind: Kind, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._wrappers[kind].run(q, (k, v))


def _blocks(
    table: Tensor, firsts: Sequence[int], pages: Sequence[int], pages_at: Sequence[int]
) -> Tensor:
    """Blocks that the rows of each sequence attend to, concatenated over the sequences, on the
    device and without waiting for it.
    """
    columns = [array("i", each) for each in (firsts, pages, pages_at[:-1])]
    first, count, begin = to_device(columns, table.device)
    sequences = torch.arange(len(firsts), device=table.device)
    of = torch.repeat_interleave(sequences, count, output_size=pages_at[-1])
    at = torch.arange(pages_at[-1], device=table.device) - begin[of] + first[of]
    return table[of, at]
