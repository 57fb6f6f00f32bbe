"""Cost of a step in Python: schedule, apply and encode the STEP frame, without a model.

    python benchmarks/step_overhead.py [--running 1 8 32 128] [--steps 400] [--context 512]

Prints medians in microseconds over steps in which every sequence decodes one token.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from array import array
from statistics import median

from penstock._native import encode_frame
from penstock.core import GenerationParams, Request, StepPlan, StepResult
from penstock.engine.frontend import Step
from penstock.kv import BlockHasher, KvCache
from penstock.scheduler import Limits, Scheduler

BLOCK_SIZE = 32
BUDGET_US = 300.0
BUDGET_AT = 32


def hash_chain(identity: bytes, parent: bytes | None, tokens: array[int]) -> list[bytes]:
    link, digests = parent or bytes(32), []
    for at in range(0, len(tokens), 16):
        unit = hashlib.blake2b(
            link + tokens[at : at + 16].tobytes(), key=identity, digest_size=32
        ).digest()
        link = link[:4] + unit[4:]
        digests.append(link)
    return digests


def hash_root(identity: bytes, adapter: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(adapter + salt, key=identity, digest_size=32).digest()


def scheduler_with(running: int, context: int, steps: int) -> Scheduler:
    """A scheduler with `running` sequences, whose prompts of `context` tokens are already
    computed.
    """
    length = context + steps + BLOCK_SIZE
    # All prompts fit into one step, so that no sequence ends before the last one begins.
    limits = Limits(running, running * length, length, running, 50_000, frozenset({2}))
    hasher = BlockHasher(BLOCK_SIZE, bytes(32), hash_chain, hash_root)
    kv = KvCache(BLOCK_SIZE, [running * (length // BLOCK_SIZE + 2)], hasher=hasher)
    scheduler = Scheduler(limits, kv, time.monotonic)
    params = GenerationParams(max_tokens=length)
    for request_id in range(running):
        prompt = array("i", [100 + request_id, *range(10, 9 + context)])
        scheduler.add(Request(request_id, prompt, params, time.monotonic()))
    while True:
        plan = scheduler.schedule()
        if plan is None:
            raise RuntimeError("nothing was scheduled")
        scheduler.apply(plan, result_of(plan))
        if len(plan.slots) == len(plan.tokens) == running:
            break
    scheduler.take_outputs()
    return scheduler


def result_of(plan: StepPlan) -> StepResult:
    counts = array("i", plan.sample)
    return StepResult(counts, array("i", [1000]) * sum(counts))


def measure(running: int, context: int, steps: int) -> tuple[float, float, float]:
    scheduler = scheduler_with(running, context, steps)
    laps: list[tuple[float, float, float]] = []
    for _ in range(steps):
        began = time.perf_counter()
        plan = scheduler.schedule()
        scheduled = time.perf_counter()
        if plan is None:
            raise RuntimeError("nothing was scheduled")
        result = result_of(plan)
        returned = time.perf_counter()
        scheduler.apply(plan, result)
        applied = time.perf_counter()
        encode_frame(
            Step(plan.step, scheduler.stats(), len(plan.tokens), 1.0, scheduler.take_outputs())
        )
        laps.append((scheduled - began, applied - returned, time.perf_counter() - applied))
    schedule_us, apply_us, encode_us = (median(column) * 1e6 for column in zip(*laps, strict=True))
    return schedule_us, apply_us, encode_us


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args()
    gc.disable()
    print(f"{'running':>8} {'schedule':>9} {'apply':>9} {'encode':>9} {'total':>9}  us, medians")
    for running in options.running:
        parts = measure(running, options.context, options.steps)
        note = f"  budget {BUDGET_US:.0f}" if running == BUDGET_AT else ""
        print(
            f"{running:>8} {parts[0]:>9.1f} {parts[1]:>9.1f} {parts[2]:>9.1f} "
            f"{sum(parts):>9.1f}{note}"
        )


if __name__ == "__main__":
    main()
