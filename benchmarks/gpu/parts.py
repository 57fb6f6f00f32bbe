"""One part of benchmarks/gpu/run.py: `python -m benchmarks.gpu.parts PART OUT.json END`.

With `--share 2/8`, the process is the third of eight that divide the part's items.
"""

from __future__ import annotations

import argparse
import time

BEGAN = time.perf_counter()

import torch  # noqa: E402,F401

IMPORTED_S = time.perf_counter() - BEGAN

from benchmarks.gpu import beside, kernels, machine, models, several, tiers, tiles  # noqa: E402
from benchmarks.gpu.items import Results, add_arguments  # noqa: E402
from benchmarks.gpu.shares import Share, spread  # noqa: E402
from benchmarks.gpu.timing import Timing  # noqa: E402

SHARED = {
    "correctness": kernels.correctness,
    "kernels": kernels.compile_all,
    "tiles": tiles.compile_all,
}
"""Work that several processes divide among them, before the rest of the part runs."""


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--share", type=Share.parse)
    options = parser.parse_args()
    results, timing = Results(options.out, options.end), Timing(options.dry)
    if options.share is not None:
        SHARED[options.part](results, timing, options.share)
        return
    if options.part in SHARED:
        spread(results, options.part, options.out, options.end, options.dry)
    ceilings = machine.ceilings(options.out)
    if options.part == "machine":
        machine.measure(results, timing)
    elif options.part == "kernels":
        kernels.speeds(results, timing, ceilings)
    elif options.part == "tiles":
        tiles.measure(results, timing)
    elif options.part == "tiers":
        tiers.measure(results, timing)
    elif options.part == "flashinfer":
        beside.measure(results, timing)
    elif options.part == "several":
        several.measure(results, timing, ceilings)
    elif options.part not in SHARED:
        models.measure(results, timing, options.part, ceilings, IMPORTED_S, options.short)


if __name__ == "__main__":
    main()
