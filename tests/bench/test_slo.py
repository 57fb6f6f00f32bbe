"""Limits on statistics."""

from __future__ import annotations

import pytest

from penstock.core import InvalidValueError
from penstock_lab.bench.slo import Slo, parse_slo


@pytest.mark.parametrize(
    ("text", "slo", "percentile"),
    [
        ("p99_ttft_ms:2000", Slo("p99_ttft_ms", 2000), "99"),
        ("mean_tpot_ms:50", Slo("mean_tpot_ms", 50), None),
        ("p99.9_itl_ms:80.5", Slo("p99.9_itl_ms", 80.5), "99.9"),
        ("median_e2el_ms:1e4", Slo("median_e2el_ms", 1e4), None),
    ],
)
def test_a_statistic_and_its_limit(text: str, slo: Slo, percentile: str | None) -> None:
    assert parse_slo("--slo", text) == slo
    assert slo.percentile == percentile


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p99_ttft_ms",
        "p99_ttft_ms:",
        "p99_ttft_ms:-1",
        "p99_ttft_ms:nan",
        "ttft:5",
        "p101_itl_ms:5",
        "rps:5",
    ],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--slo"):
        parse_slo("--slo", text)


def test_the_median_of_the_rounds_decides() -> None:
    slo = Slo("p99_ttft_ms", 100)
    rounds = [{"p99_ttft_ms": value} for value in (90.0, 5000.0, 100.0)]
    assert slo.passed(rounds) == ""
    assert (
        slo.passed([*rounds, {"p99_ttft_ms": 120.0}, {"p99_ttft_ms": 130.0}])
        == "p99_ttft_ms 120.00 > 100"
    )
    assert slo.passed([{}]) == ""
