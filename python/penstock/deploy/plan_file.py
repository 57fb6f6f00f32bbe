"""The file of a plan: what is deployed of it, with the types and bounds of all numbers.

Members that are not listed are for other commands, and are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.documents import read_document
from penstock.core import PenstockError
from penstock.deploy.quoting import control_character

SCHEMA = 1
MOST = 2**62
"""The largest number of bytes, seconds and tokens."""
MOST_RANKS = 1024
"""The most in a dimension of a replica, and on a node."""
MOST_REPLICAS = 10_000
RESOURCE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/"
"""Characters of the names of resources in Kubernetes."""

REMEDY = "make the plan again: penstock plan MODEL ... -o"

Form = Callable[[str, object], None]
"""Says by PenstockError what is wrong with the value at a key."""


def read_plan(path: Path) -> Mapping[str, Any]:
    """PenstockError names the file, the key and the remedy."""
    try:
        plan = read_document(path)
    except (ValueError, RecursionError) as error:
        # Of YAML's scalars, such as a month 13 or a number of 5,000 digits; or too deep.
        raise PenstockError(f"{path}: {error}; {REMEDY} {path}") from error
    if plan.get("schema") != SCHEMA:
        raise PenstockError(f"{path}: not a plan of schema {SCHEMA}; {REMEDY} {path}")
    try:
        PLAN("", plan)
        if not plan["target"]["resource"]:  # type: ignore[index]
            rows(FREE_ROW)("memory", plan["memory"])
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}; {REMEDY} {path}") from None
    return plan


def _wrong(key: str, value: object, expected: str) -> PenstockError:
    try:
        said = repr(value)
    except (ValueError, RecursionError):
        said = "of a length that cannot be printed"
    return PenstockError(
        f"{key or 'the plan'} is {said if len(said) <= 40 else said[:37] + '...'}, "
        f"expected {expected}"
    )


def text(characters: str = "", *, empty: bool = False) -> Form:
    """One line; of these characters alone where they are given."""

    def check(key: str, value: object) -> None:
        if not isinstance(value, str) or not (value or empty):
            raise _wrong(key, value, "a text" if empty else "a text that is not empty")
        if wrong := control_character(value):
            raise _wrong(key, value, f"a text without control characters; it has {wrong}")
        if characters and not set(value) <= set(characters):
            raise _wrong(key, value, f"characters of {characters}")

    return check


def one_of(*names: str) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, str) or value not in names:
            raise _wrong(key, value, f"one of {', '.join(names)}")

    return check


def count(least: int = 0, most: int = MOST) -> Form:
    def check(key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(key, value, f"a whole number of {least} to {most}")

    return check


def number(least: float = 0.0, most: float = float(MOST)) -> Form:
    def check(key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(key, value, f"a number of {least:g} to {most:g}")
        if not least <= value <= most:
            raise _wrong(key, value, f"a number of {least:g} to {most:g}")

    return check


def truth(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")


def or_null(form: Form) -> Form:
    return lambda key, value: None if value is None else form(key, value)


def rows(form: Form, *, least: int = 0) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise _wrong(key, value, "a list" + (" that is not empty" if least else ""))
        for place, item in enumerate(value):
            form(f"{key}.{place}", item)

    return check


def table(names: Form, form: Form) -> Form:
    """Any members with such names."""

    def check(key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(key, value, "a mapping")
        for name, item in value.items():
            names(f"a name in {key}", name)
            form(f"{key}.{name}", item)

    return check


def members(needed: Mapping[str, Form], possible: Mapping[str, Form] | None = None) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(key, value, "a mapping")
        prefix = f"{key}." if key else ""
        for name, form in {**needed, **(possible or {})}.items():
            if name in value:
                form(f"{prefix}{name}", value[name])
            elif name in needed:
                raise PenstockError(f"{prefix}{name} is missing")

    return check


RANKS = count(1, MOST_RANKS)
CHOICE = members(
    {
        "tensor_parallel_size": RANKS,
        "pipeline_parallel_size": RANKS,
        "expert_parallel": truth,
        "attention_by_requests": truth,
        "replicas": count(1, MOST_REPLICAS),
        "max_num_batched_tokens": count(1),
        "max_num_seqs": count(1),
        "max_model_len": count(1),
        "kv_cache_dtype": text(),
        "memory_fraction": or_null(number(0.01, 1.0)),
    },
    {"tiers": or_null(rows(members({"kind": one_of("ram", "disk"), "bytes": count(1)})))},
)
ROW = members(
    {
        "ranks": rows(count(0, MOST_RANKS**2), least=1),
        "total": count(),
        "weights": count(),
        "kv": count(1),
    },
    {"shared_memory": count(), "kept_free": count()},
)
FREE_ROW = members({"kept_free": count()})
"""A row of a plan for processors, whose memory has other users."""


def rank_row(key: str, value: object) -> None:
    ROW(key, value)
    assert isinstance(value, dict)
    if value.get("kept_free", 0) > value["total"]:
        raise _wrong(f"{key}.kept_free", value["kept_free"], f"at most {key}.total")


SECONDS = count(0, 10**7)
VOLUME = members({"seconds": SECONDS, "pull_seconds": SECONDS})
NEEDED = members({"needed": number()})
PLAN = members(
    {
        "model": members({"name": text(), "runs": text()}),
        "target": members(
            {
                "per_node": RANKS,
                "resource": text(RESOURCE, empty=True),
                "fabric_resources": table(text(RESOURCE), count(1, MOST_RANKS)),
            }
        ),
        "engine": one_of("penstock", "vllm", "sglang"),
        "choice": CHOICE,
        "memory": rows(rank_row, least=1),
        "start": members(
            {
                "image": members({"seconds": SECONDS}),
                "weights": members(dict.fromkeys(("claim", "host_path", "image"), VOLUME)),
            }
        ),
        "thresholds": members({"requests_waiting": NEEDED, "kv_use": NEEDED}),
    }
)
