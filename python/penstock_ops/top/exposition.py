"""Parser of metrics in Prometheus' text format. Keeps the metrics that `penstock top` shows and
skips others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIXES = ("vllm:", "penstock:", "http_requests_total", "process_start_time_seconds")
LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+\S+)?", re.ASCII)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', re.ASCII)
ESCAPE = re.compile(r"\\(.)")

Buckets = Mapping[float, float]
"""Cumulative observations by upper bound; the last bound is infinite."""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """Samples of one poll, by metric name."""

    samples: Mapping[str, list[Sample]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Sum of the samples with these labels; None if there are none."""
        values = [one.value for one in self._with(name, labels)]
        return sum(values) if values else None

    def most(self, name: str) -> float | None:
        return max((one.value for one in self._with(name, {})), default=None)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of `label`, without the samples that lack the label."""
        sums: dict[str, float] = {}
        for one in self._with(name, {}):
            if label in one.labels:
                sums[one.labels[label]] = sums.get(one.labels[label], 0.0) + one.value
        return sums

    def buckets(self, name: str) -> Buckets:
        """Buckets of a histogram, summed over its series; empty if there is no infinite bound."""
        sums: dict[float, float] = {}
        for text, count in self.by(f"{name}_bucket", "le").items():
            bound = number(text)
            if bound is not None:
                sums[bound] = sums.get(bound, 0.0) + count
        return dict(sorted(sums.items())) if math.inf in sums else {}

    def _with(self, name: str, labels: Mapping[str, str]) -> list[Sample]:
        samples = self.samples.get(name, [])
        return [one for one in samples if labels.items() <= one.labels.items()]


def parse(text: str) -> Page:
    """The samples of a page. Invalid lines and samples that are not finite are skipped, so the page
    of another program yields no samples.
    """
    samples: dict[str, list[Sample]] = {}
    for line in text.split("\n"):
        if not line.startswith(PREFIXES):
            continue
        found = LINE.fullmatch(line.rstrip())
        value = number(found[3]) if found else None
        if found is None or value is None or not math.isfinite(value):
            continue
        labels = {name: unescaped(text) for name, text in LABEL.findall(found[2] or "")}
        samples.setdefault(found[1], []).append(Sample(labels, value))
    return Page(samples)


def number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return None if math.isnan(found) else found


def unescaped(text: str) -> str:
    return ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def increase(later: Buckets, earlier: Buckets) -> Buckets:
    """Observations between two polls; empty if there are none or the bounds differ."""
    if not later or later.keys() != earlier.keys():
        return {}
    found = {bound: count - earlier[bound] for bound, count in later.items()}
    return found if found[math.inf] > 0 else {}


def quantile(buckets: Buckets, share: float) -> float | None:
    """The quantile `share` (0 to 1) of the observations, interpolated linearly inside a bucket as
    in Prometheus. The last finite bound if the quantile lies above it; None without observations.
    """
    if not buckets or buckets[math.inf] <= 0:
        return None
    rank = share * buckets[math.inf]
    lower, below = 0.0, 0.0
    for bound, count in buckets.items():
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = (lower if math.isinf(bound) else bound), max(below, count)
    return lower
