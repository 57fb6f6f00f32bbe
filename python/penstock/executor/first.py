"""The step that shows that ranks on several hosts work together, before anybody asks them for
anything.
"""

from __future__ import annotations

from array import array

from penstock.core import SlotParams, StepPlan

FIRST_STEP = 120.0
"""Seconds that it may take."""


def first_step() -> StepPlan:
    """One token of one sequence through all ranks: into slot 0 and the start of block 0, which
    nobody has yet and which plans of requests write again before they read it."""
    return StepPlan(
        step=1,
        registrations=[SlotParams(0, 0.0, 0, 1.0, 0, 0, -1, -1)],
        slots=array("i", (0,)),
        starts=array("i", (0,)),
        lengths=array("i", (1,)),
        tokens=array("i", (0,)),
        sample=array("b", (1,)),
        blocks=array("i", (0,)),
        block_offsets=array("i", (0, 1)),
    )
