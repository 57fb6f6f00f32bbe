"""Plans the time until a new replica serves: pulling the image, loading the weights, start-up.

The time to load weights depends on the kind of volume, which only a deployment determines, so the
plan has a row for each kind. Probes allow twice the planned time, so it is enough if a volume
reaches half of its planned rate. This covers the rate of a single rank's loader that Run:ai
measured in October 2024 (0.31 GB/s; several ranks read concurrently). If the target is known,
`--storage-rate`, `--image-size` and `--pull-rate` replace these values.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.config.kinds import Bytes
from penstock.core import InvalidValueError
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.subject import Subject

CLAIM, HOST_PATH, IMAGE = "claim", "host_path", "image"
STORAGE: Mapping[str, tuple[float, str]] = {
    CLAIM: (0.5, "AWS EFS gives a client 500 MiB/s"),
    HOST_PATH: (0.5, "one rank's default loader took 15 GB in 48 s from either of two disks"),
    IMAGE: (0.5, "as from a disk of the node, which keeps what it pulled"),
}
"""For each kind of volume: the GB per second that a node reads from it, and the reason."""
PULL = (0.05, "a layer is unpacked by one thread; 12 GB took 2 to 8 minutes (zmalik.dev, 2026)")
"""GB per second at which a node downloads and unpacks an image, and the reason."""
TORCH_IMAGE = 12e9
"""Bytes of an engine's image with torch and CUDA."""
SMALL_IMAGE = 0.2e9
"""Bytes of Penstock's own image without torch and CUDA: Debian, Python, the wheel."""
TORCH_STARTUP = (180, "imports, warm-up, graphs; graphs alone took 115 s in source 002's log")
SMALL_STARTUP = (10, "imports, tokenizer, memory; ready in 2 to 3 s on a node of two cores")
"""Seconds of start-up besides loading the weights, for engines with and without torch, each with
the reason.
"""
LEAST, MOST = 60, 7200
"""Minimum and maximum planned seconds of a load. A busy node delays even a small model. A load of
two hours is stuck rather than slow, and needs a faster volume.
"""
GIVEN = "as given"
SIZE = Bytes(1, 1 << 50)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates and sizes of the target given by the user; None for the defaults above."""

    storage: float | None = None
    """GB per second that a node reads from the volume with the weights."""
    pull: float | None = None
    image: int | None = None
    """Bytes of the engine's compressed image."""


def add_rates(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--storage-rate",
        metavar="GB/S",
        help="that a node reads of the weights' volume; default: by its kind",
    )
    group.add_argument(
        "--image-size", metavar="SIZE", help="of the engine's image, compressed; default: by engine"
    )
    group.add_argument(
        "--pull-rate", metavar="GB/S", help=f"of a registry, unpacked; default: {PULL[0]:g}"
    )


def rates_of(parsed: argparse.Namespace) -> Rates:
    """The rates and sizes given by flags. Raises InvalidValueError if one is invalid."""
    image = parsed.image_size
    try:
        size = SIZE.parse(image) if image is not None else None
    except ValueError:
        raise InvalidValueError("--image-size", image, SIZE.expected()) from None
    return Rates(
        _rate("--storage-rate", parsed.storage_rate), _rate("--pull-rate", parsed.pull_rate), size
    )


def _rate(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise InvalidValueError(flag, text, "GB a second, over 0")
    return found


def start(
    memory: Memory, subject: Subject, target: Target, engine: str, rates: Rates
) -> dict[str, Any]:
    """Seconds and formula for pulling the image, and for loading the weights from each kind of
    volume.
    """
    torch = engine != "penstock" or not target.accelerator.is_cpu
    read, held = bytes_read(memory, subject, target, engine)
    pull, why = (rates.pull, GIVEN) if rates.pull else PULL
    size = rates.image or (TORCH_IMAGE if torch else SMALL_IMAGE)
    startup, because = TORCH_STARTUP if torch else SMALL_STARTUP
    pulled = bounded(checkpoint(subject) / (pull * 1e9), 0)
    image_row = {
        "bytes": round(size),
        "gb_per_s": pull,
        "seconds": bounded(size / (pull * 1e9), 0),
        "formula": f"{size / 1e9:.1f} GB / {pull:g} GB/s ({why}); at most {MOST} s",
    }
    volumes: dict[str, dict[str, Any]] = {}
    for kind, (rate, source) in STORAGE.items():
        rate, source = (rates.storage, GIVEN) if rates.storage else (rate, source)
        seconds = bounded(read / (rate * 1e9) + startup)
        volumes[kind] = {
            "gb_per_s": rate,
            "needed_gb_per_s": round(read / (2 * seconds - startup) / 1e9, 4),
            "pull_seconds": pulled if kind == IMAGE else 0,
            "seconds": seconds,
            "formula": f"{held} / {rate:g} GB/s ({source}) + {startup} s of start-up ({because}); "
            f"{LEAST} to {MOST} s",
        }
    volumes[IMAGE]["formula"] += (
        f"; before it {checkpoint(subject) / 1e9:.1f} GB / {pull:g} GB/s from the registry"
    )
    return {"image": image_row, "weights": volumes}


def storage(found: Mapping[str, Any]) -> dict[str, Any]:
    """The rate of a claim's volume that a check before serving measures. Below `needed`, the
    startup probe would kill a server that is still loading. The rates of other kinds of volumes are
    in `start`.
    """
    row = found["weights"][CLAIM]
    return {
        "needed": row["needed_gb_per_s"],
        "expected": row["gb_per_s"],
        "formula": f"needed: loaded within {2 * row['seconds']} s, twice the planned time",
    }


def bounded(seconds: float, least: int = LEAST) -> int:
    return min(max(math.ceil(seconds), least), MOST)


def checkpoint(subject: Subject) -> float:
    """Bytes of all weights in the checkpoint's number types."""
    return float(subject.file_bytes or subject.weights.model_bytes(subject.spec))


def bytes_read(memory: Memory, subject: Subject, target: Target, engine: str) -> tuple[float, str]:
    """Bytes of weights that the node with the most reads, and text that explains them. vLLM and
    SGLang read every tensor and keep a part of it; Penstock reads only the parts of its ranks.
    """
    stored = checkpoint(subject)
    whole_text = f"{stored / 1e9:.2f} GB of weights"
    if engine != "penstock":
        return stored, whole_text
    ranks = [rank.weights for rank in memory.ranks]
    nodes = [sum(ranks[at : at + target.per_node]) for at in range(0, len(ranks), target.per_node)]
    if len(nodes) == 1:
        return stored, whole_text
    share = max(nodes) / sum(nodes)
    return stored * share, f"{stored * share / 1e9:.2f} GB, {share:.1%} of the weights on one node"


def start_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines with the formulas of `start`, for `--explain`."""
    image, weights = found["image"], found["weights"]
    lines = ["until a replica serves:", _line("image pulled", image)]
    return lines + [_line(f"loaded, {kind.replace('_', ' ')}", weights[kind]) for kind in STORAGE]


def _line(name: str, row: Mapping[str, Any]) -> str:
    return f"  {name:<18}{row['seconds']:>6} s  = {row['formula']}"
