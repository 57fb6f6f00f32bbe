"""Constants that Python and Rust both define: they are equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.config import FLAGS, ON_CPUS, ON_GPUS
from penstock.config.sections import StepDefaults
from penstock.core import plan, transfer
from penstock.kv import hashing

DEFAULTS = {flag.key: flag.default for flag in FLAGS}


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("base/wire/src/plan.rs", "LAST_SAMPLED", plan.LAST_SAMPLED),
        ("base/wire/src/plan.rs", "NOT_FINITE", plan.NOT_FINITE),
        ("base/wire/src/plan.rs", "NO_TOKEN", plan.NO_TOKEN),
        ("base/wire/src/plan.rs", "LATE_MASK", plan.LATE_MASK),
        ("base/wire/src/grammar.rs", "MAX_GRAMMAR_BYTES", plan.MAX_PLAN_GRAMMAR_BYTES - 1),
        ("kv/kvstore/src/mover/transfer.rs", "NO_BLOCK", plan.NO_BLOCK),
        ("kv/prefix/src/lib.rs", "UNIT", hashing.UNIT),
        ("kv/prefix/src/lib.rs", "GROUP_BYTES", transfer.GROUP_BYTES),
    ],
)
def test_a_constant_is_the_same_in_rust(repository: Path, file: str, name: str, value: int) -> None:
    source = (repository / "crates" / file).read_text()
    found = re.search(rf"const {name}: \w+ = (-?\d+)(?: << (\d+))?;", source)
    assert found
    assert int(found[1]) << int(found[2] or 0) == value


@pytest.mark.parametrize(("preset", "usual"), [("default", ON_CPUS), ("h100", ON_GPUS)])
def test_a_simulated_engine_has_the_servers_defaults(
    repository: Path, preset: str, usual: StepDefaults
) -> None:
    source = (repository / "crates/lab/sim/src/profile.rs").read_text()
    body = source.split(f"fn {preset}() -> Self")[1].split("\n    }")[0]
    members = {name: int(value) for name, value in re.findall(r"(\w+): ([\d_]+),", body)}
    assert members["max_num_seqs"] == usual.sequences
    assert members["max_num_batched_tokens"] == usual.tokens
    if preset == "default":
        assert members["max_queue"] == DEFAULTS["max_num_queued_reqs"]
        assert members["block_size"] == DEFAULTS["block_size"]
