"""Runs one workload on one server of a comparison."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_lab.bench.compare.summary import Result
from penstock_lab.bench.measure import measure
from penstock_lab.bench.progress import Progress
from penstock_lab.bench.target import Address, Target, Wanted, discover


@dataclass(slots=True)
class Loads:
    """Runs workloads in the same way on every server."""

    wanted: Wanted
    headers: tuple[tuple[str, str], ...]
    tokenizer: str | None
    """Tokenizer of workloads without their own, so that all servers get the same text."""
    progress: Progress
    _targets: dict[str, Target] = field(default_factory=dict)

    def __call__(
        self, parsed: argparse.Namespace, url: str, seed: int, tags: Mapping[str, object]
    ) -> Result:
        """
        Raises:
            PenstockError: the server does not answer, or cannot take this load.
        """
        if url not in self._targets:
            self._targets[url] = discover(Address(url, self.headers), self.wanted)
        mine = argparse.Namespace(
            **{**vars(parsed), "tokenizer": parsed.tokenizer or self.tokenizer}
        )
        return measure(mine, self._targets[url], seed=seed, tags=tags, progress=self.progress)
