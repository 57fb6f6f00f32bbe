"""The panels of all boards: one table, from which the boards are made and tests take the queries.

Queries are Prometheus' with Grafana's variables: `$job`, `$instance`, `$model_name`, `$pool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PROCESS = 'job=~"$job",instance=~"$instance"'
SERVER = f'{PROCESS},model_name=~"$model_name"'
POOL = f'{PROCESS},pool=~"$pool"'
INTERVAL = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    text: str
    """What it shows, for the reader of the board."""
    unit: str
    """By Grafana's name: `short`, `s`, `percentunit`, `bytes`, `reqps`, ..."""
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    red: float | None = None
    """From this value on it is red."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    label: str
    metric: str
    """The metric that has its values as a label of the same name."""


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    variables: tuple[Variable, ...]
    sections: tuple[Section, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for section in self.sections for panel in section.panels)


def rate(name: str, labels: str = SERVER) -> str:
    return f"rate({name}{{{labels}}}[{INTERVAL}])"


def total(name: str, *by: str, labels: str = SERVER) -> Query:
    """The rate of a counter, summed over what is not in `by`."""
    if not by:
        return Query(f"sum({rate(name, labels)})", "all")
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return Query(f"sum by ({', '.join(by)}) ({rate(name, labels)})", legend)


def gauge(name: str, *by: str, labels: str = SERVER, how: str = "sum") -> Query:
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return Query(f"{how} by ({', '.join(by)}) ({name}{{{labels}}})", legend)


def quantiles(name: str, labels: str = SERVER, by: str = "") -> tuple[Query, ...]:
    """P50, P95 and P99 of a histogram."""
    group = f"le, {by}" if by else "le"
    sums = f"sum by ({group}) ({rate(name + '_bucket', labels)})"
    suffix = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(f"histogram_quantile({share}, {sums})", f"P{share * 100:g}{suffix}")
        for share in (0.5, 0.95, 0.99)
    )


def mean(name: str, *by: str, labels: str = SERVER) -> Query:
    """Mean of a histogram or summary; nothing while nothing is observed."""
    group = f" by ({', '.join(by)})" if by else ""
    sums, counts = (f"sum{group} ({rate(name + end, labels)})" for end in ("_sum", "_count"))
    legend = " ".join(f"{{{{{label}}}}}" for label in by) or "mean"
    return Query(f"{sums} / ({counts} > 0)", legend)


def share(part: str, whole: str, legend: str, labels: str = SERVER) -> Query:
    """The rate of one counter as a share of another's."""
    return Query(f"sum({rate(part, labels)}) / (sum({rate(whole, labels)}) > 0)", legend)


def within(name: str, bound: str) -> Query:
    """Share of the observations that are within a bound of the histogram's buckets."""
    some = rate(f"{name}_bucket", f'{SERVER},le="{bound}"')
    every = rate(f"{name}_count")
    return Query(f"sum({some}) / (sum({every}) > 0)", f"within {bound} s")


def failed_share(labels: str = PROCESS) -> Query:
    name = "penstock:http_responses_total"
    failed = rate(name, f'{labels},code=~"5.."')
    return Query(f"(sum({failed}) or vector(0)) / (sum({rate(name, labels)}) > 0)", "5xx")
