"""benchmarks/kv_eviction.py: shares of what was saved, and what the tables say of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench.scripts import imported


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with imported("kv_eviction") as (module,):
        yield module


def test_a_prompt_s_prefix_is_counted_in_blocks_tokens_and_time(
    script: ModuleType, tmp_path: Path
) -> None:
    trace = tmp_path / "two.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [1, 4]},
        {"timestamp": 2000, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]},
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    workload = script.from_trace(trace)
    endless, ample, small = script.shares(
        workload,
        [
            script.endless(workload),
            script.replay(workload, "LRU", 10),
            script.replay(workload, "LRU", 3),
        ],
    )
    assert (endless.blocks, endless.tokens) == (ample.blocks, ample.tokens) == (4, 512 + 1200)
    assert endless.shares["tokens"] == pytest.approx(1712 / 3100)
    costs = [script.cost_us(at, 512) for at in range(3)]
    whole = 2 * sum(costs) + sum(costs[:2])
    assert endless.shares["prefill"] == pytest.approx((costs[0] + sum(costs)) / whole)
    assert small.blocks == 1 + 2
    rows = {row[0]: row for row in script.rows([endless, ample])}
    assert rows["infinite"][1:4] == ["", "0.500", "0.552"]
    assert rows["5,120 tokens"][-2:] == ["100%", "1.000"]


def test_the_loop_is_lost_on_lru_and_not_on_the_rule_that_ships(script: ModuleType) -> None:
    workload = script.loop()
    assert workload.blocks == 40_000
    half = script.DOCUMENTS * script.DOCUMENT_BLOCKS // 2
    assert script.replay(workload, "LRU", half).blocks == 0
    assert script.replay(workload, "Penstock", half).blocks >= 0.4 * workload.blocks
