"""KV tiers as values of --kv-tier:

ram:SIZE    disk:PATH,SIZE    redis://HOST:PORT/DB    s3://BUCKET/PREFIX    each with ,KEY=VALUE ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from penstock.config.kinds import Bytes, Integer, Kind, PartError, Share, Switch, Text, Url
from penstock.config.sections import TierConfig, TiersConfig, without_password
from penstock.core import InvalidValueError, PenstockError

SIZE = Bytes(2**16, 2**50)
HOST_LISTS = ("redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
"""Schemes of URLs with several hosts, separated by commas."""
REDIS = ("redis", "rediss", "unix", *HOST_LISTS)
OBJECT = ("s3", "gs", "az", "azure", "abfs", "http", "https", "memory")
AWS = (
    "ACCESS_KEY_ID",
    "SECRET_ACCESS_KEY",
    "SESSION_TOKEN",
    "REGION",
    "DEFAULT_REGION",
    "ENDPOINT_URL",
)
"""Environment variables of object stores, without the prefix AWS_."""

OPTIONS: Mapping[str, Mapping[str, tuple[str, Kind]]] = {
    "ram": {"ram": ("size_bytes", SIZE), "quota": ("quota", Share())},
    "disk": {
        "disk": ("path", Text()),
        "size": ("size_bytes", SIZE),
        "daily-writes": ("daily_write_bytes", SIZE),
        "quota": ("quota", Share()),
        "gds": ("gds", Switch()),
    },
    "redis": {"redis": ("url", Url(REDIS)), "ttl": ("ttl_seconds", Integer(1, 2**31 - 1))},
    "object": {"object": ("url", Url(OBJECT))},
}
"""For each kind of tier, its options, each with the field of TierConfig that it sets and its kind
of value.
"""
REQUIRED = {"disk": ("size",)}


@dataclass(frozen=True)
class Tier:
    """The kind of the values of --kv-tier."""

    def parse(self, text: str) -> TierConfig:
        kind, _, rest = text.partition(":")
        comma = r",(?=\w+=)" if kind in HOST_LISTS else ","
        head, *words = re.split(comma, rest if kind in ("ram", "disk") else text)
        options = [(name, value) for name, _, value in (word.partition("=") for word in words)]
        if kind == "disk" and words and "=" not in words[0]:
            options[0] = ("size", words[0])
        if kind in REDIS:
            kind = "redis"
        elif kind in OBJECT:
            kind = "object"
        elif kind not in ("ram", "disk"):
            raise ValueError
        return read_tier([(kind, head), *options])

    def expected(self) -> str:
        return (
            "ram:SIZE[,quota=SHARE], "
            "disk:PATH,SIZE[,daily-writes=SIZE][,quota=SHARE][,gds=true], "
            "redis://HOST:PORT/DB[,ttl=SECONDS], redis+cluster://HOST:PORT,HOST:PORT, "
            "redis+sentinel://HOST:PORT/SERVICE or the URL of an object store such as "
            "s3://BUCKET/PREFIX"
            "[,KEY=VALUE], with sizes like 4GiB"
        )


def read_tier(options: Iterable[tuple[str, str]]) -> TierConfig:
    """The tier that options describe, in any order; one of them names the kind of tier. Raises
    PartError if one is wrong.
    """
    said: dict[str, str] = {}
    for name, text in options:
        key = name.replace("_", "-")
        if key in said:
            raise PartError(f"has {key} twice", key)
        said[key] = text
    kind = _kind(said)
    known = OPTIONS[kind]
    others = {name: text for name, text in said.items() if name not in known}
    if others and kind != "object":
        unknown = next(iter(others))
        raise PartError(f"{kind}: unknown option {unknown!r}; there is {', '.join(known)}", unknown)
    for name in REQUIRED.get(kind, ()):
        if name not in said:
            raise PartError(f"{kind}: {name} is missing, expected {known[name][1].expected()}")
    fields: dict[str, Any] = {
        known[name][0]: _value(kind, name, said[name]) for name in known if name in said
    }
    return TierConfig(kind, **fields, options=tuple(starmap(_object_option, others.items())))


def _kind(said: Mapping[str, str]) -> str:
    named = [kind for kind in OPTIONS if kind in said]
    if not named:
        raise PartError(f"says of no tier what it is, expected one of {', '.join(OPTIONS)}")
    if len(named) > 1:
        raise PartError(
            f"is {' and '.join(named)} at once; each tier is an item of its own", named[1]
        )
    return named[0]


def _value(kind: str, name: str, text: str) -> object:
    expects = OPTIONS[kind][name][1]
    try:
        return expects.parse(text)
    except ValueError as error:
        part = kind if name == kind else f"{kind}: {name}"
        fault = f"{part} is {without_password(text)!r}, expected {expects.expected()}"
        raise PartError(fault, name) from error


def _object_option(name: str, text: str) -> tuple[str, str]:
    """An option that is passed on to the object store, whose option names have underscores."""
    if not name or not text:
        raise PartError(f"object: option {name!r} is {text!r}, expected a name with a value", name)
    return name.replace("-", "_"), text


def resolve_tiers(tiers: tuple[TierConfig, ...], chunk_tokens: int, block_size: int) -> TiersConfig:
    """The section of all tiers. Raises InvalidValueError or PenstockError for tiers that do not fit
    together.
    """
    if not tiers:
        return TiersConfig(chunk_tokens=chunk_tokens)
    if chunk_tokens % block_size:
        raise InvalidValueError(
            "--kv-chunk-tokens", chunk_tokens, f"a multiple of --block-size ({block_size})"
        )
    names = [tier.name for tier in tiers]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise PenstockError(f"--kv-tier {name} is given twice")
    if "ram" in names[1:]:
        raise PenstockError(
            "--kv-tier ram comes first: tiers are asked in their order, and RAM is the fastest"
        )
    return TiersConfig(tiers, chunk_tokens)


def object_options(tier: TierConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options of an object store, from the environment and the tier's flag, which takes
    precedence.
    """
    found = {
        f"aws_{name.lower()}": environ[f"AWS_{name}"] for name in AWS if environ.get(f"AWS_{name}")
    }
    return {**(found if (tier.url or "").startswith("s3:") else {}), **dict(tier.options)}
