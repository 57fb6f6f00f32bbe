"""`flashinfer.BatchPrefillWithPagedKVCacheWrapper` as FlashInfer 0.7.2 has it: its arguments, what
it checks or reads beyond, and attention by plain sums in place of its kernels.

In the mode of graphs, `run` knows what a recorded kernel knows: addresses, and numbers of the plan
with which it was recorded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

__version__ = "0.7.2.post1"

KERNEL: list[Any] = []
"""What `run` goes through, so that a recorder of graphs sees one call and its tensors."""
MADE: list[BatchPrefillWithPagedKVCacheWrapper] = []


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert not float_workspace_buffer.any(), "zeroed before its first use"
        assert kv_layout == "HND", "the layout of these tests' pools"
        assert backend == "fa2", "the one of a graph's plans, and of any strides"
        self.graph = use_cuda_graph
        self.plans = 0
        self.buffers: tuple[Tensor, ...] = ()
        self._rows: int | None = None
        if use_cuda_graph:
            buffers = (
                *(qo_indptr_buf, paged_kv_indptr_buf),
                *(paged_kv_indices_buf, paged_kv_last_page_len_buf),
            )
            self.buffers = tuple(each for each in buffers if each is not None)
            assert len(self.buffers) == 4
            assert all(each.dtype == torch.int32 for each in self.buffers)
            self._batch = len(self.buffers[0]) - 1
            assert len(self.buffers[1]) == self._batch + 1
            assert len(self.buffers[3]) == self._batch
        MADE.append(self)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        assert not is_in_torch_dispatch_mode(), "a plan cannot be recorded"
        columns = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(each.dtype == torch.int32 and each.is_contiguous() for each in columns)
        batch, pages = len(qo_indptr) - 1, paged_kv_indptr.diff()
        assert len(paged_kv_indptr) == batch + 1
        assert len(paged_kv_last_page_len) == batch
        assert qo_indptr[0] == 0
        assert paged_kv_indptr[0] == 0
        assert (qo_indptr.diff() > 0).all()
        assert (pages > 0).all()
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        last = paged_kv_last_page_len
        assert ((last >= 1) & (last <= page_size)).all()
        kv_lengths = (pages - 1) * page_size + last
        assert (kv_lengths >= qo_indptr.diff()).all(), "the rows' own keys are in the pool"
        assert num_qo_heads % num_kv_heads == 0
        assert causal
        assert window_left >= -1
        rows = int(qo_indptr[-1])
        if self.graph:
            self._rows = rows if self._rows is None else self._rows
            assert rows <= self._rows
            assert batch == self._batch, "the batch of a graph is fixed"
            assert len(paged_kv_indices) <= len(self.buffers[2])
            # What lies behind was another plan's.
            self.buffers[2].fill_(2**30)
            for buffer, column in zip(self.buffers, columns, strict=True):
                buffer[: len(column)].copy_(column)
        else:
            self.buffers = tuple(each.clone() for each in columns)
        scalars = {
            "rows": rows,
            "heads": (num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            "scale": head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            "window_left": window_left,
            "softcap": logits_soft_cap or 0.0,
            "types": (q_data_type, kv_data_type or q_data_type),
        }
        if self.graph and self.plans:
            assert scalars == self.scalars, "recorded kernels have those of the first plan"
        self.scalars = scalars
        self.plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        assert self.plans, "run before plan"
        k, v = paged_kv_cache
        hq, hk, d, page = self.scalars["heads"]
        assert (q.dtype, k.dtype) == self.scalars["types"]
        assert v.dtype == k.dtype
        assert q.shape == (self.scalars["rows"], hq, d)
        assert q.stride(2) == 1
        for pool in (k, v):
            assert pool.shape[1:] == (hk, page, d)
            assert pool.stride(3) == 1
            # A pool of one block, or of one head, may have any stride there.
            assert max(pool.stride()) < 2**32
        kernel = KERNEL[-1] if KERNEL else attention
        return kernel(q, k, v, *self.buffers, scalars=self.scalars)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    indices: Tensor,
    last: Tensor,
    *,
    scalars: dict[str, Any],
) -> Tensor:
    """Row by row and head by head, in float64."""
    hq, hk, _, page = scalars["heads"]
    out = torch.zeros_like(q)
    for sequence in range(len(last)):
        first, end = int(qo_indptr[sequence]), int(qo_indptr[sequence + 1])
        own = indices[int(kv_indptr[sequence]) : int(kv_indptr[sequence + 1])].tolist()
        length = (len(own) - 1) * page + int(last[sequence])
        assert all(0 <= block < len(k) for block in own), "a read outside of the pool"
        keys = torch.cat([k[block] for block in own], 1)[:, :length].double()
        values = torch.cat([v[block] for block in own], 1)[:, :length].double()
        for row in range(first, end):
            at = length - (end - row)
            begin = max(0, at - scalars["window_left"]) if scalars["window_left"] >= 0 else 0
            for head in range(hq):
                kv = head // (hq // hk)
                scores = keys[kv, begin : at + 1] @ q[row, head].double() * scalars["scale"]
                if scalars["softcap"]:
                    scores = scalars["softcap"] * (scores / scalars["softcap"]).tanh()
                weights = (scores - scores.max()).exp()
                made = weights @ values[kv, begin : at + 1] / weights.sum()
                out[row, head] = made.to(q.dtype)
    assert math.isfinite(scalars["scale"])
    return out
