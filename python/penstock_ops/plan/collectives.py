"""Collective operations of a tensor-parallel group: latency, and bytes over its slowest link."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock_ops.plan.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a stage, over one domain of linked devices or several with a network between them.

    An operation of a group over n domains of d devices takes

        hop + across x log2(n) + size x the slower level's share of it / rate

    An all-reduce is a reduce-scatter in each domain, an all-reduce between devices of equal number
    in all domains, each of 1/d of the size over its own network port, and an all-gather in each
    domain (Cho et al., "BlueConnect", MLSys 2019). Each of k ranks sends 2 (k-1)/k of what it sums
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009), so the shares are
    2 (d-1)/d of the size in a domain and 2 (n-1)/n of 1/d of it between domains. NCCL moves both at
    once in chunks, so the slower level counts: source 002 measured 250 GB/s at 2 GiB on 2 x 8 H100,
    of 257 by these shares at full rates. The logarithm is that of NCCL's tree between nodes
    (`src/graph/tuning.cc`).
    """

    ranks: int
    domains: int
    link: float
    """Bytes a second in a domain that an operation reaches."""
    network: float
    """Bytes a second of one device between domains that an operation reaches."""
    hop: float
    """Seconds of an operation, whatever its size."""
    across: float
    """Seconds more for each doubling of the domains."""

    @property
    def latency(self) -> float:
        return self.hop + self.across * math.log2(self.domains)

    @property
    def in_domain(self) -> int:
        """Ranks of a domain, the most."""
        return -(-self.ranks // self.domains)

    def all_reduce(self, size: float) -> float:
        return self.latency + 2 * size * self._slowest

    def all_gather(self, size: float) -> float:
        """`size` is that of all parts together."""
        return self.latency + size * self._slowest

    def exchange(self, size: float) -> float:
        """All to all, `size` bytes of each rank. What is for another domain goes to the device of
        the receiver's number first, whose port has the way there (NCCL's PXN and DeepEP do so): a
        device sends (d-1)/d of the size in its domain, and (n-1)/n through its own port.
        """
        d, n = self.in_domain, self.domains
        return self.latency + size * max((d - 1) / d / self.link, (n - 1) / n / self.network)

    @property
    def _slowest(self) -> float:
        """Seconds of a byte in the slower level, in one direction."""
        d, n = self.in_domain, self.domains
        return max((d - 1) / d / self.link, (n - 1) / n / (d * self.network))


def group(device: Accelerator, ranks: int, share: float, hop: float, across: float) -> Group:
    """The group of a stage of so many ranks that reaches `share` of the data sheet's rates."""
    # Processors of this machine have no rates: their steps are measured.
    link, network = max(device.link, 1.0) * share, max(device.network, 1.0) * share
    return Group(ranks, -(-ranks // device.linked), link, network, hop, across)
