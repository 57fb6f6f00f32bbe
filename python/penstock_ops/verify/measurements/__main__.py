"""Runs one measurement by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

from penstock.core import PenstockError
from penstock_ops.verify.measurements.host import host, names
from penstock_ops.verify.measurements.memory import memory_rate
from penstock_ops.verify.measurements.storage import read_rate
from penstock_ops.verify.measurements.stores import store_rates

MEASUREMENTS: Mapping[str, Callable[..., Mapping[str, float]]] = {
    "host": host,
    "names": names,
    "memory-rate": memory_rate,
    "read-rate": read_rate,
    "store": store_rates,
}


def main(words: list[str]) -> int:
    try:
        found = MEASUREMENTS[words[0]](*words[1:])
    except (PenstockError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(
        "{" + ", ".join(f"{json.dumps(name)}: {value:.6f}" for name, value in found.items()) + "}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
