"""The file that `crates/sim` is held to says what the scheduler does today."""

import json

from tests.golden.batching import make


def test_the_golden_file_is_what_the_scheduler_does() -> None:
    assert make.FILE.read_text() == make.text(), "run `python -m tests.golden.batching.make`"


def test_the_golden_file_has_seen_everything() -> None:
    scenarios = json.loads(make.FILE.read_text())
    last = [scenario["steps"][-1] for scenario in scenarios]
    assert sum(step[4] for step in last) > 10, "preemptions"
    assert sum(step[6] for step in last) > 500, "prefix hits"
    finishes = {row[1] for scenario in scenarios for step in scenario["steps"] for row in step[7]}
    assert finishes == {0, 2, 3, 4, 5}
