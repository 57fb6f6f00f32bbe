"""What the engine is told of an error in a rank."""

from __future__ import annotations

import time
import traceback

from penstock.core import PenstockError
from penstock.core.answers import Failed


def failure(rank: int, step: int, error: Exception) -> Failed:
    """`step` is 0 where the error is not a plan's. The rank can go on only where the plan was
    wrong.
    """
    known = isinstance(error, PenstockError)
    return Failed(
        rank=rank,
        step=step,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        trace="" if known else "".join(traceback.format_exception(error)),
        fatal=step == 0 or not isinstance(error, ValueError),
        derived=isinstance(error, ConnectionError),
        at=time.monotonic(),
    )
