"""Time of collective operations in a tensor-parallel group: a latency, plus the bytes over the
slowest link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock_ops.plan.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a pipeline stage. They are in one domain of linked devices, or in several
    domains connected by a network.

    An operation of a group over n domains of d devices takes

        hop + across x log2(n) + size x the slower level's share of it / rate

    An all-reduce is a reduce-scatter in each domain, an all-reduce between devices with the same
    index in all domains (each of 1/d of the size, over its own network port), and an all-gather in
    each domain (Cho et al., "BlueConnect", MLSys 2019). Each of k ranks sends 2 (k-1)/k of its data
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009), so the shares are 2
    (d-1)/d of the size inside a domain, and 2 (n-1)/n of 1/d of it between domains. NCCL pipelines
    both levels in chunks, so the slower level determines the time: the guide "Deploy Distributed
    LLM Inference with GPUDirect RDMA" measured 250 GB/s at 2 GiB on 2 x 8 H100; these shares at
    full rates give 257. The logarithm comes from NCCL's tree between nodes (`src/graph/tuning.cc`).
    """

    ranks: int
    domains: int
    link: float
    """Bytes per second that a device reaches in practice inside its domain, in one direction."""
    network: float
    """Bytes per second that a device reaches in practice to devices in other domains, in one
    direction.
    """
    hop: float
    """Fixed seconds of each operation."""
    across: float
    """Seconds that each doubling of the number of domains adds to an operation."""

    @property
    def latency(self) -> float:
        return self.hop + self.across * math.log2(self.domains)

    @property
    def in_domain(self) -> int:
        """Number of ranks in a domain; the maximum if domains differ."""
        return -(-self.ranks // self.domains)

    def all_reduce(self, size: float) -> float:
        return self.latency + 2 * size * self._slowest

    def all_gather(self, size: float) -> float:
        """Seconds of an all-gather of `size` bytes in total."""
        return self.latency + size * self._slowest

    def exchange(self, size: float) -> float:
        """Seconds of an all-to-all of `size` bytes from each rank. Data for another domain first
        goes to the local device with the receiver's index, whose port leads there (as in NCCL's PXN
        and DeepEP). A device therefore sends (d-1)/d of the size inside its domain, and (n-1)/n
        through its own port.
        """
        d, n = self.in_domain, self.domains
        return self.latency + size * max((d - 1) / d / self.link, (n - 1) / n / self.network)

    @property
    def _slowest(self) -> float:
        """Seconds for each byte on the slower of the two levels (inside a domain, between domains),
        in one direction.
        """
        d, n = self.in_domain, self.domains
        return max((d - 1) / d / self.link, (n - 1) / n / (d * self.network))


def group(device: Accelerator, ranks: int, share: float, hop: float, across: float) -> Group:
    """The group of a stage with `ranks` ranks, which reaches the fraction `share` of the data
    sheet's link rates.
    """
    # This machine's CPUs have link rates of 0, because their steps are measured instead.
    link, network = max(device.link, 1.0) * share, max(device.network, 1.0) * share
    return Group(ranks, -(-ranks // device.linked), link, network, hop, across)
