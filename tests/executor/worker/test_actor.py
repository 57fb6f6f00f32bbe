"""The actor of a rank, without Ray."""

from __future__ import annotations

import pytest

from penstock.executor.worker.actor import LOADED, Actor
from tests.limits import HANG


def test_a_task_that_cannot_be_read_ends_the_reports_of_the_load() -> None:
    """The executor waits for them beside the answer."""
    actor = Actor()
    with pytest.raises(TypeError):
        actor.load({"task": {"unheard_of": 1}, "capacity": 1 << 16, "last": True})
    assert actor._loading.get(timeout=HANG) == LOADED
