"""Times steps of empty ranks in a separate process: `python -P -m support.steps OPTIONS`.

One process for each measurement, because Ray keeps settings and clusters for the lifetime of a
process, and a compiled graph can end its process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.config import EngineConfig, resolve, shared_memory_directory
from penstock.core import StepPlan
from penstock.core.codec import encode_plan
from penstock.executor.mp import connect_processes
from penstock.executor.rank_group import RanksExecutor
from penstock.executor.ranks import RankLayout
from penstock.executor.ray import connect_ray
from penstock_lab.bench.compare.processes import CPUS, machine_cpu_seconds

MODULE = "support.ranks"
MP = "mp"
MODEL = Path(__file__).parents[2] / "tests/fixtures/tiny/llama"
SEQUENCES, BLOCKS = 32, 10
"""A decode step of 2 KB, with block tables of 320 tokens."""
WARM = 200
QUIET_S = 2.0
SETTLE_S = 0.2
"""Seconds after the last step until the ranks count as idle."""
PATIENCE = 60.0
PAGE = 1 << 20
FIRST = 2
"""Number of the first step here; the Ray executor runs one step itself."""


@dataclass(frozen=True, slots=True)
class Laps:
    """Measurements of one executor. CPU shares are of one core, over idle periods."""

    plan_bytes: int
    us: Sequence[float]
    after_quiet_us: Sequence[float]
    idle_ranks: float
    """CPU share of all ranks together."""
    idle_engine: float
    foreign: float
    """CPU share of other processes on the machine while steps were timed, 0 to 1."""


def ranks(tp: int, pp: int) -> RankLayout:
    shards = ("{}",) * (tp * pp)
    return RankLayout(tp, pp, (pp - 1) * tp, shards, 1024, 1 << 16, PAGE // 16, PAGE // 16)


def plan() -> StepPlan:
    """A plan in which every sequence decodes one token."""
    tables = array("i", range(SEQUENCES * BLOCKS))
    length = BLOCKS * 32 - 1
    return StepPlan(
        step=FIRST,
        registrations=[],
        slots=array("i", range(SEQUENCES)),
        starts=array("i", [length]) * SEQUENCES,
        lengths=array("i", [1]) * SEQUENCES,
        tokens=array("i", [1000]) * SEQUENCES,
        sample=array("b", [1]) * SEQUENCES,
        kept=array("i", [0]) * SEQUENCES,
        added_offsets=array("i", range(0, SEQUENCES * BLOCKS + 1, BLOCKS)),
        added=tables,
    )


def executor(channel: str, tp: int, pp: int) -> RanksExecutor:
    """`mp`, or a channel of the `ray` executor with its own cluster."""
    config = resolve({}, str(MODEL), "none").engine
    config = replace(config, compute=replace(config.compute, backend=MODULE))
    where = shared_memory_directory()
    if channel == MP:
        made = connect_processes(ranks(tp, pp), config, where)
    else:
        made = connect_ray(ranks(tp, pp), _on_ray(config, channel), where)
    made.allocate([4096])
    return made


def _on_ray(config: EngineConfig, channel: str) -> EngineConfig:
    parallel = replace(config.parallel, backend="ray", ray_channel=channel, ray_address="local")
    return replace(config, parallel=parallel)


class Driver:
    """The engine's side of an executor."""

    def __init__(self, executor: RanksExecutor) -> None:
        self._executor = executor
        self._plan = plan()

    def lap(self) -> float:
        """Seconds from the plan to the result, including encoding."""
        begin = time.perf_counter()
        self._executor.submit(self._plan).result(PATIENCE)
        took = time.perf_counter() - begin
        self._plan.step += 1
        return took


def measure(executor: RanksExecutor, steps: int, spells: int) -> Laps:
    driver = Driver(executor)
    for _ in range(WARM):
        driver.lap()
    gc.collect()
    gc.freeze()
    gc.disable()
    begin, machine, own = time.monotonic(), machine_cpu_seconds(), tree_seconds(os.getpid())
    laps = [driver.lap() for _ in range(steps)]
    foreign = machine_cpu_seconds() - machine - (tree_seconds(os.getpid()) - own)
    share = max(foreign, 0.0) / (time.monotonic() - begin) / CPUS
    pids = executor.pids
    quiet = [spell(driver, pids) for _ in range(spells)]
    after, of_ranks, of_engine = zip(*quiet, strict=True)
    return Laps(
        plan_bytes=len(encode_plan(plan())),
        us=[round(lap * 1e6, 1) for lap in laps],
        after_quiet_us=[round(lap * 1e6, 1) for lap in after],
        idle_ranks=sum(of_ranks) / spells,
        idle_engine=sum(of_engine) / spells,
        foreign=share,
    )


def spell(driver: Driver, pids: Sequence[int]) -> tuple[float, float, float]:
    """A step after an idle period: its seconds, and the CPU shares before it."""
    time.sleep(SETTLE_S)
    ranks, own, begin = sum(map(ran, pids)), ran(os.getpid()), time.monotonic()
    time.sleep(QUIET_S)
    took = time.monotonic() - begin
    of_ranks, of_engine = (sum(map(ran, pids)) - ranks) / took, (ran(os.getpid()) - own) / took
    return driver.lap(), of_ranks, of_engine


def ran(pid: int) -> float:
    """CPU seconds of a process's current threads, with a finer resolution than /proc/PID/stat."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def tree_seconds(root: int) -> float:
    """CPU seconds of a process and its descendants, including Ray's processes."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    members = [root]
    for pid in members:
        members.extend(children.get(pid, ()))
    return sum(map(ran, members))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--pp", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--spells", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parsed = parser.parse_args()
    made = executor(parsed.channel, parsed.tp, parsed.pp)
    try:
        found = measure(made, parsed.steps, parsed.spells)
    finally:
        made.close()
    parsed.result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
