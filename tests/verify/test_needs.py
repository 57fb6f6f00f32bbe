"""Needs of a plan, and the table of expected values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock_ops.plan.hardware import names
from penstock_ops.verify import expected
from penstock_ops.verify.finding import SEVERITY, Bound, shown
from penstock_ops.verify.needs import needs_of, read_needs

GIB = 2**30
LIMITS = st.none() | st.floats(0, 1e9)


def plan(**changes: Any) -> dict[str, Any]:
    """Of DeepSeek-R1 on two nodes of eight, as `penstock plan` writes it."""
    return {
        "schema": 1,
        "model": {"name": "DeepSeek-R1"},
        "target": {
            "accelerator": "h100-sxm-80gb",
            "node": "dell-xe9680-h100",
            "per_node": 8,
            "resource": "nvidia.com/gpu",
            "fabric_resources": {"rdma/rdma_shared_device_a": 8},
        },
        "engine": "sglang",
        "choice": {
            "tensor_parallel_size": 16,
            "pipeline_parallel_size": 1,
            "tiers": [{"kind": "disk", "bytes": GIB, "gb_per_s": 5.0}, {"kind": "ram", "bytes": 1}],
        },
        "memory": [{"shared_memory": GIB}],
        "thresholds": {
            "storage_gb_per_s": {"needed": 0.3, "expected": 0.5, "formula": "a"},
            "all_reduce_us": {
                "needed": 90.0,
                "expected": 40.0,
                "bytes": 114_688,
                "formula": "114.7 KB, 122 in a step",
            },
            "of_a_later_version": {"needed": 1},
        },
        **changes,
    }


def test_a_plan_over_two_nodes() -> None:
    needs = needs_of(plan())
    assert (needs.nodes, needs.devices, needs.ranks) == (2, 8, 8)
    assert needs.shared_memory == 8 * GIB
    assert needs.bounds["storage_gb_per_s"] == Bound(0.3, 0.5, "GB/s", formula="a")
    assert needs.bounds["all_reduce_us"].is_ceiling
    assert needs.bounds["tier_disk_gb_per_s"].expected == 5.0
    assert needs.reduced_bytes == 114_688
    rail = needs.bounds["rail_gbit_per_s"]  # source 002: 8 x 400 Gb/s; half is planned with
    assert (rail.needed, rail.expected) == (200, 400)
    assert "of_a_later_version" not in needs.bounds
    assert "tier_ram_gb_per_s" not in needs.bounds


def test_one_node_needs_no_fabric() -> None:
    choice = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    needs = needs_of(plan(choice=choice))
    assert (needs.nodes, needs.devices, needs.fabric_resources) == (1, 8, {})


def test_a_plan_for_cpus_needs_no_devices() -> None:
    target = {"accelerator": "here", "per_node": 1, "resource": "", "fabric_resources": {}}
    choice = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    needs = needs_of(plan(target=target, choice=choice))
    assert (needs.devices, needs.accelerator, needs.ranks, needs.nodes) == (0, "", 2, 1)


@pytest.mark.parametrize("key", ["model", "target", "choice", "memory", "thresholds"])
def test_a_missing_member_is_named_with_a_remedy(tmp_path: Path, key: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in plan().items() if name != key}))
    with pytest.raises(PenstockError, match=f"{key} is missing; make the plan again"):
        read_needs(path)


def test_a_threshold_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan(thresholds={"storage_gb_per_s": {"needed": "fast"}})))
    with pytest.raises(PenstockError, match=r"storage_gb_per_s\.needed"):
        read_needs(path)


def test_an_all_reduce_without_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan(thresholds={"all_reduce_us": {"needed": 90.0}})))
    with pytest.raises(PenstockError, match=r"us\.bytes is missing; make the plan again"):
        read_needs(path)


def test_the_table_names_accelerators_of_the_plan_with_units_and_sources() -> None:
    table = expected._table()
    assert set(table["accelerators"]) <= set(names("accelerators"))
    rows = [row for each in table["accelerators"].values() for row in each["values"].values()]
    for row in [*rows, *table["processors"].values(), *table["node"].values()]:
        assert set(row) == {"value", "unit", "source", "date"}
        assert row["value"] > 0


def test_published_values() -> None:
    """NVIDIA's health validation: 18 links of 26,562 MB/s; OCI: 52 GB/s to the host."""
    values = expected.of_accelerator(expected.accelerator_of("NVIDIA H100 80GB HBM3"))
    assert values["nvlinks"].value * values["nvlink_gb_per_s"].value == pytest.approx(478.116)
    assert values["host_copy_gb_per_s"].value == 52
    assert expected.accelerator_of("NVIDIA GeForce RTX 4070") == ""
    milan = expected.of_processor("AMD EPYC 7763 64-Core Processor")
    assert milan
    assert milan.value == pytest.approx(0.75 * 8 * 3200e6 * 8 / 1e9, rel=0.01)


@given(needed=LIMITS, wanted=LIMITS, a=st.floats(), b=st.floats(), is_ceiling=st.booleans())
def test_a_lower_value_never_betters(
    needed: float | None, wanted: float | None, a: float, b: float, is_ceiling: bool
) -> None:
    bound = Bound(needed, wanted, "GB/s", is_ceiling)
    low, high = sorted((a, b)) if a == a and b == b else (a, b)
    better, worse = (low, high) if is_ceiling else (high, low)
    if a == a and b == b:
        severity = [SEVERITY.index(bound.status(value)) for value in (better, worse)]
        assert severity[0] <= severity[1]
    elif needed is not None:
        assert bound.status(float("nan")) == "fail"


def test_numbers_in_text() -> None:
    assert [shown(each) for each in (0.96604, 17, 65536, 1e12, float("inf"))] == [
        "0.966", "17", "65,536", "1,000,000,000,000", "unlimited",
    ]  # fmt: skip
