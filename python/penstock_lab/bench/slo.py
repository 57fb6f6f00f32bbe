"""Service level objectives on statistics of a run, such as `p99_ttft_ms:2000`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError

STATISTIC = re.compile(r"(mean|median|std|p(\d{1,2}(?:\.\d+)?|100))_(ttft|tpot|itl|e2el)_ms")


@dataclass(frozen=True, slots=True)
class Slo:
    """`key` names a statistic of a result; `limit` is its bound in milliseconds."""

    key: str
    limit: float

    @property
    def percentile(self) -> str | None:
        """The percentile in the key, such as `99`, as --metric-percentiles expects it; None if the
        key has none.
        """
        found = STATISTIC.fullmatch(self.key)
        return found[2] if found else None

    def passed(self, results: Sequence[Mapping[str, object]]) -> str:
        """Describes the violation if the median over `results` exceeds the limit; empty if it does
        not, or if no result has the statistic.
        """
        values = [
            value for result in results if isinstance(value := result.get(self.key), int | float)
        ]
        if not values or (value := statistics.median(values)) <= self.limit:
            return ""
        return f"{self.key} {value:.2f} > {self.limit:g}"


def parse_slo(flag: str, text: str) -> Slo:
    """`STATISTIC:MILLISECONDS`. InvalidValueError names `flag`."""
    key, _, limit = text.partition(":")
    try:
        value = float(limit)
    except ValueError:
        value = -1.0
    if not STATISTIC.fullmatch(key) or not value > 0:
        raise InvalidValueError(
            flag, text, "STATISTIC:MILLISECONDS, such as p99_ttft_ms:2000 or mean_tpot_ms:50"
        )
    return Slo(key, value)
