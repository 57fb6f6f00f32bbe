"""One measurement of a workload: prompts, warm-up, load, result.

Sweeps, rounds and comparisons call `measure` in loops. It prints nothing. After Ctrl-C it returns a
result with `penstock.partial` set, and the caller must end its loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench import client, flags, prompts, result
from penstock_lab.bench.progress import Progress
from penstock_lab.bench.prompts import PromptMaker
from penstock_lab.bench.request import Load
from penstock_lab.bench.target import Target
from penstock_lab.bench.workload import (
    Workload,
    add_requests,
    add_serve,
    add_trace,
    workload_from_dataset,
    workload_from_trace,
)

WARMUP_SEED = 2**31
"""Added to a run's seed for its warm-up, so that the warm-up has other prompts than the run."""


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench serve` that `measure` reads, without those for server and results."""
    add_serve(parser)
    _add_common(parser, "serve")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench trace` that `measure` reads, without those for server and results."""
    add_trace(parser)
    _add_common(parser, "trace")


def add_offline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench offline` that `measure` reads: all requests are sent at once."""
    add_requests(parser)
    _add_common(parser, "serve")
    parser.set_defaults(
        **dict.fromkeys(("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")),
        request_rate=math.inf,
        burstiness=1.0,
    )


def _add_common(parser: argparse.ArgumentParser, workload: str) -> None:
    flags.add_load(parser)
    flags.add_prompts(parser)
    flags.add_sampling(parser)
    flags.add_statistics(parser)
    parser.set_defaults(workload=workload)


def parse_workload(words: Sequence[str]) -> argparse.Namespace:
    """Parse `serve --random-input-len 128 ...`, `trace FILE --time-scale 1.6 ...` or `offline ...`
    for `measure`.

    Wrong words end the program with status 2 and the usage, as on a command line.
    """
    parser = argparse.ArgumentParser(prog="workload", allow_abbrev=False)
    kinds = parser.add_subparsers(required=True, metavar="serve|trace|offline")
    add_serve_arguments(kinds.add_parser("serve", allow_abbrev=False))
    add_trace_arguments(kinds.add_parser("trace", allow_abbrev=False))
    add_offline_arguments(kinds.add_parser("offline", allow_abbrev=False))
    parsed = parser.parse_args(words)
    parsed.argv = list(words)
    return parsed


def measure(
    parsed: argparse.Namespace,
    target: Target,
    *,
    seed: int,
    tags: Mapping[str, object],
    progress: Progress,
    keep_text: bool = False,
) -> dict[str, Any]:
    """Run the workload once. Returns `result.make`'s dictionary with all arrays, and with the
    generated texts if `keep_text`.

    `seed` replaces --seed. `tags` are added to the `penstock` key and override the values known
    here: command, argv, server, workload, repeat, seed, axis, point. Raises KeyboardInterrupt if
    interrupted before the first request of the measurement is sent.
    """
    maker = _maker(target, parsed.tokenizer, parsed.prompt_ids, parsed.vocab_size)
    if parsed.num_warmups:
        _warm_up(parsed, target, maker, seed + WARMUP_SEED, progress)
    workload = _workload(parsed, target, maker, seed)
    date = datetime.now()
    load = _run(parsed, target, workload, progress, keep_text=keep_text)
    return result.make(
        load,
        result.Identity(
            backend=target.backend,
            model_id=target.model_id,
            tokenizer_id=parsed.tokenizer or target.model_id,
            label=getattr(parsed, "label", None),
            metadata=dict(getattr(parsed, "metadata", ())),
        ),
        workload.traffic,
        result.Wanted(
            parsed.metric_percentiles,
            dict(parsed.goodput),
            getattr(parsed, "measurement_interval", None),
        ),
        {**_tags(parsed, target, maker, workload), "seed": seed, **tags},
        date,
    )


def _tags(
    parsed: argparse.Namespace, target: Target, maker: PromptMaker, workload: Workload
) -> dict[str, object]:
    return {
        "command": parsed.workload,
        "argv": flags.redacted(parsed.argv),
        "server": target.base_url,
        "workload": workload.name,
        "axis": workload.axis,
        "point": workload.point,
        "prompts": maker.name,
        **({"trace": dict(workload.trace)} if workload.trace else {}),
    }


# Cached for each `Target` object, so that a server's tokenizer is checked only once.
@lru_cache(maxsize=64)
def _maker(
    target: Target, tokenizer: str | None, as_ids: bool, vocab_size: int | None
) -> PromptMaker:
    return prompts.make(target.served(), tokenizer, as_ids, vocab_size)


def _workload(
    parsed: argparse.Namespace, target: Target, maker: PromptMaker, seed: int
) -> Workload:
    offer = workload_from_trace if parsed.workload == "trace" else workload_from_dataset
    return offer(parsed, target, maker, seed)


def _warm_up(
    parsed: argparse.Namespace, target: Target, maker: PromptMaker, seed: int, progress: Progress
) -> None:
    """Run the warm-up. Raises PenstockError if no request succeeds."""
    workload = _workload(parsed, target, maker, seed).first(parsed.num_warmups)
    load = _run(parsed, target, workload, progress, what="warm-up")
    if load.partial:
        raise KeyboardInterrupt
    if not any(outcome.success for outcome in load.outcomes):
        first = load.outcomes[0]
        raise PenstockError(
            f"every warm-up request failed; the first: {first.failure}: {first.detail}"
        )


def _run(
    parsed: argparse.Namespace,
    target: Target,
    workload: Workload,
    progress: Progress,
    *,
    keep_text: bool = False,
    what: str = "requests",
) -> Load:
    return client.run_load(
        target,
        workload.requests,
        body=flags.body(parsed, target, ignore_eos=workload.ignore_eos),
        max_concurrency=parsed.max_concurrency,
        keep_text=keep_text,
        progress=progress,
        what=what,
    )
