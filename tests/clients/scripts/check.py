"""Features of a client: each is tried once, and a line of JSON tells how it went.

The scripts beside this file run in environments of their own, with nothing of Penstock: they are
what a user of the client would write. `BASE_URL` ends in /v1. Answers are those of a model of 135
million parameters: their form is checked, not their sense.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable

BASE_URL = os.environ["BASE_URL"]
MODEL = os.environ["MODEL"]
QUESTION = "Tell me the capital of France."


def feature(name: str) -> Callable[[Callable[[], object]], None]:
    """Run the decorated function now and report."""

    def run(tried: Callable[[], object]) -> None:
        found: dict[str, object] = {"feature": name, "ok": True, "note": ""}
        try:
            tried()
        except Exception as error:  # noqa: BLE001 - whatever the client raises is what is reported
            found |= {"ok": False, "note": f"{type(error).__name__}: {error}"[:400]}
            traceback.print_exc()
        print(json.dumps(found), flush=True)

    return run
