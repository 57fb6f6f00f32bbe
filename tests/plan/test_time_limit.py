"""The time limit of `--measure`, on a clock that the test sets."""

from __future__ import annotations

from penstock_ops.plan.time_limit import TimeLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_repeat_begins_only_if_it_is_likely_to_end_in_time() -> None:
    clock = Clock()
    limit = TimeLimit(60.0, lambda _: None, clock)
    clock.now += 30.0
    assert limit.has_time_after(1)
    assert not limit.is_over
    clock.now += 15.0
    assert limit.has_time_after(3)
    assert not limit.has_time_after(2)
    clock.now += 15.0
    assert limit.is_over
    assert limit.has_time_after(0), "nothing is known without one"


def test_lines_with_the_time_left_are_seconds_apart() -> None:
    clock, said = Clock(), list[str]()
    limit = TimeLimit(60.0, said.append, clock)
    for _ in range(130):
        limit.report("chunks")
        clock.now += 0.5
    assert said[:2] == ["chunks, at most 60 s left", "chunks, at most 55 s left"]
    assert said[-1] == "chunks, no time left"
    assert len(said) == 13
