"""Host time of a step of the torch backend, by part, on a device that computes nothing.

    python benchmarks/gpu/host.py [--batches 1 8 32 64 128 256] [--steps 200] [--repeats 3]

The engine's loop, its scheduler, the backend and the wire protocol are the product's, on one core.
The model and the head return precomputed tensors, and a graph replay does nothing. CUDA-only work
is left out: pinned memory, events, launches. Operations launched outside of graphs are counted
instead.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from benchmarks.gpu import launches  # noqa: E402
from benchmarks.gpu.shapes import Shape, write_checkpoint  # noqa: E402
from benchmarks.support import facts  # noqa: E402
from penstock._native import encode_sampling, hash_chain, hash_root  # noqa: E402
from penstock.backends.torch import backend as backend_module  # noqa: E402
from penstock.backends.torch.backend import TorchBackend  # noqa: E402
from penstock.backends.torch.layers.model import Model  # noqa: E402
from penstock.backends.torch.load.uploads import InPlace, Way  # noqa: E402
from penstock.backends.torch.sampling import sampling  # noqa: E402
from penstock.backends.torch.sampling.slots import DeviceSlots, Slots  # noqa: E402
from penstock.backends.torch.step import step as step_module  # noqa: E402
from penstock.backends.torch.step.graphs import DecodeGraphs  # noqa: E402
from penstock.backends.torch.step.outputs import Outputs  # noqa: E402
from penstock.backends.torch.step.prompt_graphs import PromptGraphs  # noqa: E402
from penstock.backends.torch.step.step import Step  # noqa: E402
from penstock.config import Raw, resolve  # noqa: E402
from penstock.core import Allocation, GenerationParams, Request, StepPlan  # noqa: E402
from penstock.engine import Engine  # noqa: E402
from penstock.engine.admin import KvAdmin  # noqa: E402
from penstock.engine.frontend import Connection, Shutdown  # noqa: E402
from penstock.engine.tiers import OpenedTiers  # noqa: E402
from penstock.executor.inline import InlineExecutor  # noqa: E402
from penstock.kv import BlockHasher, KvCache  # noqa: E402
from penstock.model import load_model  # noqa: E402
from penstock.scheduler import Limits, Scheduler  # noqa: E402

BLOCK, BUDGET, SEQUENCES, LONGEST, CONTEXT = 64, 8192, 256, 2048, 1024
BLOCKS = SEQUENCES * LONGEST // BLOCK
DISTINCT = 16
"""Number of distinct tokens in prompts. With more, the penalties for repeated tokens would be
computed on this device, too.
"""
SHAPE = Shape(1, 32, 2, 1, 64, vocabulary=256, d=32)
PARAMETERS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}
PARTS: tuple[tuple[object, str, str], ...] = (
    (Connection, "poll", "poll"),
    (Scheduler, "schedule", "schedule"),
    (backend_module, "check", "check"),
    (Slots, "apply", "slots"),
    (backend_module, "wanted_draws", "wanted"),
    (backend_module, "plain_draws", "wanted"),
    (backend_module, "wanted_scores", "wanted"),
    (backend_module, "wanted_vectors", "wanted"),
    (DeviceSlots, "apply", "tables"),
    (backend_module, "pack", "pack"),
    (DecodeGraphs, "draw", "graph"),
    (DecodeGraphs, "run", "graph"),
    (PromptGraphs, "draw", "graph"),
    (PromptGraphs, "run", "graph"),
    (Outputs, "_draw", "draw"),
    (step_module, "result_of", "result"),
    (TorchBackend, "submit", "submit, rest"),
    (Step, "result", "result"),
    (Scheduler, "apply", "apply"),
    (Engine, "_publish", "publish"),
)
"""(owner, name, part of a step): the time in this function counts for the part, except for the time
in other functions of this list that it calls.
"""
COLUMNS = (*dict.fromkeys(part for _, _, part in PARTS), "rest")
VIEWS = ("view", "split", "select", "slice", "unbind", "expand", "alias", "detach", "as_strided")


class Done:
    seconds = 0.0

    def result(self, timeout: float | None = None) -> None:
        """Does nothing: no work is pending."""


class Null:
    """A device whose work is complete as soon as it is launched."""

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = "null"
        self.copies = None
        self.count: Operations | None = None

    def start(self, work: Callable[[], None]) -> Done:
        if self.count is None:
            work()
        else:
            with self.count:
                work()
        return Done()

    def to_host(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def mark(self) -> Callable[[], bool]:
        return lambda: True

    def capture(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result = work()
        return lambda: result

    def free_memory(self) -> int:
        return 1 << 34

    def synchronize(self) -> None: ...

    def way(self) -> Way:
        return InPlace()

    def close(self) -> None: ...


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts torch operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Laps:
    """CPU seconds of each part of a step, excluding the parts that it calls."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                seconds = time.thread_time() - began
                self.parts[part] += seconds - self._inner.pop()
                self._inner[-1] += seconds

        return run

    @contextmanager
    def running(self) -> Iterator[None]:
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
        for owner, name, part in PARTS:
            setattr(owner, name, self.timed(part, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, call in before:
                setattr(owner, name, call)

    def take(self) -> dict[str, float]:
        taken = dict(self.parts)
        self.parts.clear()
        return taken


@dataclass
class Recorded(InlineExecutor):
    """An executor that records when each plan arrives, what it contains, and the time of each part
    since the previous plan.
    """

    backend: TorchBackend
    laps: Laps
    times: list[float] = field(default_factory=list)
    plans: list[tuple[int, int, bool]] = field(default_factory=list)
    """(number of tokens, number of sequences, whether all are decodes) for each plan."""
    parts: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        InlineExecutor.__init__(self, self.backend)

    def submit(self, plan: StepPlan) -> Any:
        self.times.append(time.thread_time())
        self.plans.append((len(plan.tokens), len(plan.slots), not plan.registrations))
        self.parts.append(self.laps.take())
        return super().submit(plan)


class FrontDoor:
    """Stands for the connection to the API server; a process reads what is sent. The first poll
    returns all requests; when all have ended, a poll returns the end.
    """

    def __init__(self, path: str, requests: list[Request]) -> None:
        self.connection = Connection(path)
        self.send = self.connection.send
        self.scheduler: Scheduler | None = None
        self._requests = requests

    def poll(self, timeout: float) -> list[Any]:
        frames: list[Any] = self.connection.poll(0.0)
        if self._requests:
            frames, self._requests = [*frames, *self._requests], []
        elif self.scheduler is not None and not self.scheduler.has_requests():
            frames = [*frames, Shutdown()]
        return frames


def null_backend(directory: Path) -> tuple[TorchBackend, Null]:
    write_checkpoint(directory, SHAPE, LONGEST)
    settings = {
        "dtype": "float32",
        "block_size": BLOCK,
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": SEQUENCES,
    }
    raw = {name: Raw("benchmark", (str(value),)) for name, value in settings.items()}
    config = resolve(raw, str(directory), "random").engine
    device = Null()
    backend = TorchBackend(config, load_model(directory), None, device)  # type: ignore[arg-type]
    backend.allocate(Allocation((BLOCKS,)))
    states = torch.zeros(BUDGET, SHAPE.hidden)
    logits = torch.zeros(SEQUENCES, SHAPE.vocabulary)
    null: Any = Model
    null.forward = lambda model, inputs, tables, last: states[: len(inputs.tokens)]
    null.logits = lambda model, x: logits[: len(x)]
    drawn = torch.full((SEQUENCES,), 7, dtype=torch.int32)
    sampling.sample = lambda logits, *columns: drawn[: len(logits)]
    for _ in range(len(backend._graphs.captures or ())):
        backend.submit(StepPlan(0)).result()
    return backend, device


def requests(count: int, prompt: int, output: int, kind: str) -> list[Request]:
    drawn = random.Random(1)
    sampling = encode_sampling(**PARAMETERS[kind])
    return [
        Request(
            number,
            array("i", [*divmod(number, 256), *drawn.choices(range(DISTINCT), k=prompt - 2)]),
            GenerationParams(max_tokens=output, ignore_eos=True),
            time.monotonic(),
            sampling=sampling,
            needs_history=kind == "penalties",
        )
        for number in range(1, count + 1)
    ]


@dataclass(frozen=True)
class Case:
    title: str
    rows: int
    prompt: int
    output: int
    requests: int
    kind: str = "plain"
    depth: int = 2
    """Maximum number of plans in flight; 1 means that no plan is made ahead."""
    prompts: bool = False
    budget: int = BUDGET
    graphs: bool = True
    """Whether steps with prompts are captured as CUDA graphs."""


def run(backend: TorchBackend, path: str, given: list[Request], laps: Laps, case: Case) -> Recorded:
    """Compute the requests `given` with the loop of Penstock's engine."""
    kv = KvCache(BLOCK, [BLOCKS], hasher=BlockHasher(BLOCK, bytes(32), hash_chain, hash_root))
    sequences = min(SEQUENCES, case.budget)
    limits = Limits(sequences, case.budget, LONGEST, 1000, SHAPE.vocabulary, frozenset({2}))
    front, executor = FrontDoor(path, given), Recorded(backend, laps)
    executor.depth = case.depth
    front.scheduler = scheduler = Scheduler(limits, kv, time.monotonic)
    try:
        gc.collect()
        Engine(front, scheduler, executor, KvAdmin(kv, OpenedTiers(), list)).run()
    finally:
        front.connection.close()
    return executor


def steps_of(found: Recorded, case: Case) -> list[int]:
    """Indices of the steps to measure. The step after each must be of the same kind."""

    def wanted(at: int) -> bool:
        tokens, sequences, decodes = found.plans[at]
        if case.prompts:
            return tokens > case.budget // 2 and not decodes
        return tokens == sequences == case.rows and decodes

    count = len(found.plans)
    return [at for at in range(1, count - 1) if all(map(wanted, (at - 1, at, at + 1)))]


def cases(batches: Sequence[int], steps: int) -> Iterator[Case]:
    for kind in PARAMETERS:
        for rows in batches:
            late = -(-rows * CONTEXT // BUDGET)
            yield Case(f"{rows}, {kind}", rows, CONTEXT, steps + late, rows, kind)
    for rows in (batches[0], batches[-1]):
        late = -(-rows * CONTEXT // BUDGET)
        title = f"{rows}, plain, not ahead"
        yield Case(title, rows, CONTEXT, steps + late, rows, depth=1)
    for prompt in (128, 1024):
        title = f"prompts of {prompt}, {BUDGET} tokens"
        yield Case(title, BUDGET // prompt, prompt, 1, 20 * BUDGET // prompt, prompts=True)
    for graphs in (False, True):
        title = f"prompts of 128, 128 tokens, {'replayed' if graphs else 'launched'}"
        yield Case(title, 1, 128, 1, 60, prompts=True, budget=128, graphs=graphs)


def measure(backend: TorchBackend, device: Null, path: str, case: Case, repeats: int) -> Any:
    captured = backend._graphs.prompts

    def once(laps: Laps) -> tuple[Recorded, list[int]]:
        given = requests(case.requests, case.prompt, case.output, case.kind)
        found = run(backend, path, given, laps, case)
        return found, steps_of(found, case)

    backend._graphs.prompts = captured if case.graphs else None
    cycles, parts = [], []
    for _ in range(repeats):
        found, at = once(Laps())
        times = found.times
        cycles.append(quartile([times[i + 1] - times[i] for i in at]))
        laps = Laps()
        with laps.running():
            found, at = once(laps)
        each = [found.parts[i + 1] for i in at]
        parts.append({p: quartile([one.get(p, 0.0) for one in each]) for p in COLUMNS})
    least = {part: min(one[part] for one in parts) for part in COLUMNS}
    counted = operations(device, once)
    backend._graphs.prompts = captured
    least["rest"] = max(min(cycles) - sum(least.values()), 0.0)
    return {
        "case": case.title,
        "cycle_us": round(min(cycles) * 1e6, 1),
        "parts_us": {part: round(seconds * 1e6, 1) for part, seconds in least.items()},
        "operations": counted,
    }


def quartile(values: list[float]) -> float:
    """First quartile of `values`, because other load on the machine makes steps longer, never
    shorter.
    """
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def operations(
    device: Null, once: Callable[[Laps], tuple[Recorded, list[int]]]
) -> dict[str, float]:
    """Median number of torch operations in a step outside of CUDA graphs, by name."""
    seen: list[Counter[str]] = []

    class Each(Laps):
        def take(self) -> dict[str, float]:
            seen.append(Counter())
            device.count = Operations()
            device.count.names = seen[-1]
            return {}

    try:
        _, at = once(Each())
    finally:
        device.count = None
    names = {name for i in at for name in seen[i]}
    medians = {name: statistics.median(seen[i][name] for i in at) for name in sorted(names)}
    return {name: count for name, count in medians.items() if count}


def launched(found: dict[str, float]) -> float:
    """Number of operations that launch a kernel, because they are not views."""
    return sum(n for name, n in found.items() if not name.strip("_").startswith(VIEWS))


@contextmanager
def reader(directory: Path) -> Iterator[str]:
    """Path of a socket, from which a process on another core reads the engine's output."""
    path = str(directory / "door")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    child = os.fork()
    if not child:
        while True:
            connection, _ = listener.accept()
            while connection.recv(1 << 20):
                pass
    try:
        yield path
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def lines(found: Sequence[Any], about: dict[str, Any], steps: int, repeats: int) -> list[str]:
    def row(one: Any) -> list[object]:
        parts = [f"{one['parts_us'][part]:.0f}" for part in COLUMNS]
        each = one["operations"]
        views = sum(each.values()) - launched(each)
        return [one["case"], f"{one['cycle_us']:.0f}", *parts, f"{launched(each):g}", f"{views:g}"]

    columns = ("step", "cycle", *COLUMNS, "operations", "views")
    return [
        "# Host time of a step of the torch backend",
        "",
        *facts.fact_lines(about),
        f"* {repeats} repeats of {steps} steps: first quartiles, and the least of the repeats",
        "",
        *(line.strip() for line in (__doc__ or "").splitlines()[4:]),
        "",
        "Microseconds of processor time. `cycle` is that from one plan to the next; parts are",
        "measured in runs of their own. A step is so many decodes behind contexts of 1024 tokens,",
        "or prompts.",
        "`operations` are torch's outside of the graph, less those that make views.",
        "",
        *facts.table(columns, map(row, found)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose title begins with it")
    parser.add_argument("--launches", action="store_true", help="measure steps with prompts only")
    parser.add_argument("--results", type=Path, help="directory; default: no file is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    found: list[Any] = []
    counted = [
        launches.measure(name, decodes, 128, options.repeats)
        for name in ("Qwen3-0.6B", "Qwen3-8B", "Qwen3-30B-A3B")
        for decodes in (0, 64)
    ]
    print("\n".join(launches.lines(counted, facts.table)), flush=True)
    with tempfile.TemporaryDirectory() as temporary, reader(Path(temporary)) as path:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        backend, device = null_backend(Path(temporary))
        for case in () if options.launches else cases(options.batches, options.steps):
            if not case.title.startswith(options.only):
                continue
            one = measure(backend, device, path, case, options.repeats)
            found.append(one)
            parts = " ".join(f"{part}={us:.0f}" for part, us in one["parts_us"].items())
            print(f"{case.title}: {one['cycle_us']:.0f} us; {parts}", flush=True)
            print(f"    {launched(one['operations']):g}: {one['operations']}", flush=True)
    if options.results:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        about = facts.gather(Path(), (), sys.argv)
        about["versions"]["torch"] = torch.__version__
        texts = lines(found, about, options.steps, options.repeats)
        texts += launches.lines(counted, facts.table)
        kept = {**about, "steps": found, "launches": counted}
        facts.write(facts.stem("gpu-host", options.results), texts, kept)


if __name__ == "__main__":
    main()
