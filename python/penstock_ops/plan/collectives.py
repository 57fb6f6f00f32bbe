"""Collective operations of a tensor-parallel group: latency, and bytes over the slowest link."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock_ops.plan.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a stage, in one domain of linked devices, or in several connected by a network.

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
    """Effective bytes per second inside a domain."""
    network: float
    """Effective bytes per second of one device between domains."""
    hop: float
    """Fixed seconds of an operation."""
    across: float
    """Additional seconds for each doubling of the domains."""

    @property
    def latency(self) -> float:
        return self.hop + self.across * math.log2(self.domains)

    @property
    def in_domain(self) -> int:
        """Maximum number of ranks in a domain."""
        return -(-self.ranks // self.domains)

    def all_reduce(self, size: float) -> float:
        return self.latency + 2 * size * self._slowest

    def all_gather(self, size: float) -> float:
        """All-gather of `size` bytes in total."""
        return self.latency + size * self._slowest

    def exchange(self, size: float) -> float:
        """All-to-all of `size` bytes from each rank. Data for another domain first goes to the
        local device with the receiver's index, whose port leads there (as in NCCL's PXN and
        DeepEP). A device therefore sends (d-1)/d of the size inside its domain, and (n-1)/n through
        its own port.
        """
        d, n = self.in_domain, self.domains
        return self.latency + size * max((d - 1) / d / self.link, (n - 1) / n / self.network)

    @property
    def _slowest(self) -> float:
        """Seconds for each byte on the slower level, in one direction."""
        d, n = self.in_domain, self.domains
        return max((d - 1) / d / self.link, (n - 1) / n / (d * self.network))


def group(device: Accelerator, ranks: int, share: float, hop: float, across: float) -> Group:
    """The group of a stage with `ranks` ranks that reaches `share` of the data sheet's rates."""
    # Rates of this machine's CPUs are unknown: their steps are measured.
    link, network = max(device.link, 1.0) * share, max(device.network, 1.0) * share
    return Group(ranks, -(-ranks // device.linked), link, network, hop, across)
