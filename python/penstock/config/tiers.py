"""KV tiers as they are written on the command line, and what LMCache's environment says about them.

ram:SIZE      disk:PATH,SIZE      redis://HOST:PORT/DB      s3://BUCKET/PREFIX      each with ,KEY=VALUE ...
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.config.kinds import Bytes
from penstock.config.sections import TierConfig, TiersConfig, without_password
from penstock.core import InvalidValueError, PenstockError

SIZE = Bytes(2**16, 2**50)
REDIS = ("redis", "rediss", "unix")
OBJECT = ("s3", "gs", "az", "azure", "abfs", "http", "https", "file", "memory")
DIRECT = ("auto", "on", "off")
AWS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "DEFAULT_REGION", "ENDPOINT_URL")
"""What object stores take from the environment, each after AWS_."""
_GIB = 2**30

log = logging.getLogger("penstock.config")


@dataclass(frozen=True)
class Tier:
    """Kind of the values of --kv-tier."""

    def parse(self, text: str) -> TierConfig:
        kind, _, rest = text.partition(":")
        head, *words = (rest if kind in ("ram", "disk") else text).split(",")
        if kind == "ram":
            return _with(TierConfig("ram", SIZE.parse(head)), words, _RAM)
        if kind == "disk":
            if not head or not words:
                raise ValueError
            return _with(TierConfig("disk", SIZE.parse(words[0]), path=head), words[1:], _DISK)
        if kind in REDIS:
            return _with(TierConfig("redis", url=head), words, _REDIS)
        if kind in OBJECT and rest.startswith("//"):
            options = tuple((key, value) for key, _, value in (word.partition("=") for word in words))
            if not all(key and value for key, value in options):
                raise ValueError
            return TierConfig("object", url=head, options=options)
        raise ValueError

    def expected(self) -> str:
        return (
            "ram:SIZE[,quota=SHARE], disk:PATH,SIZE[,daily-writes=SIZE][,direct=auto|on|off], "
            "redis://HOST:PORT/DB[,ttl=SECONDS] or the URL of an object store such as s3://BUCKET/PREFIX"
            "[,KEY=VALUE], with sizes like 4GiB"
        )


def _quota(tier: TierConfig, text: str) -> TierConfig:
    if not 0.0 < float(text) <= 1.0:
        raise ValueError
    return replace(tier, quota=float(text))


def _daily_writes(tier: TierConfig, text: str) -> TierConfig:
    return replace(tier, daily_write_bytes=SIZE.parse(text))


def _direct(tier: TierConfig, text: str) -> TierConfig:
    if text not in DIRECT:
        raise ValueError
    return replace(tier, direct=text)


def _ttl(tier: TierConfig, text: str) -> TierConfig:
    if int(text) < 1:
        raise ValueError
    return replace(tier, ttl_seconds=int(text))


Setter = Callable[[TierConfig, str], TierConfig]
_RAM: Mapping[str, Setter] = {"quota": _quota}
_DISK: Mapping[str, Setter] = {"daily-writes": _daily_writes, "direct": _direct}
_REDIS: Mapping[str, Setter] = {"ttl": _ttl}


def _with(tier: TierConfig, words: list[str], setters: Mapping[str, Setter]) -> TierConfig:
    for word in words:
        key, _, value = word.partition("=")
        if key not in setters:
            raise ValueError
        tier = setters[key](tier, value)
    return tier


def resolve_tiers(tiers: tuple[TierConfig, ...], chunk_tokens: int, block_size: int) -> TiersConfig:
    """The section; InvalidValueError or PenstockError for tiers that do not go together."""
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
    """Options of an object store: those of the environment under those of the flag."""
    found = {f"aws_{name.lower()}": environ[f"AWS_{name}"] for name in AWS if environ.get(f"AWS_{name}")}
    return {**(found if (tier.url or "").startswith("s3:") else {}), **dict(tier.options)}


def lmcache_tiers(environ: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Settings by key that LMCache's environment amounts to, and the names that said so."""
    texts: list[str] = []
    names: list[str] = []
    size = _gigabytes(environ, "LMCACHE_MAX_LOCAL_CPU_SIZE")
    if size and environ.get("LMCACHE_LOCAL_CPU", "true").lower() not in ("false", "0"):
        texts.append(f"ram:{size}")
        names.append("LMCACHE_MAX_LOCAL_CPU_SIZE")
    disk, room = environ.get("LMCACHE_LOCAL_DISK"), _gigabytes(environ, "LMCACHE_MAX_LOCAL_DISK_SIZE")
    if disk and room:
        texts.append(f"disk:{disk.removeprefix('file://')},{room}")
        names += ["LMCACHE_LOCAL_DISK", "LMCACHE_MAX_LOCAL_DISK_SIZE"]
    if remote := environ.get("LMCACHE_REMOTE_URL"):
        texts.append(remote)
        names.append("LMCACHE_REMOTE_URL")
    found = {"kv_tier": tuple(texts)} if texts else {}
    if texts and (chunk := environ.get("LMCACHE_CHUNK_SIZE")):
        found["kv_chunk_tokens"] = (chunk,)
        names.append("LMCACHE_CHUNK_SIZE")
    return found, tuple(names)


def notice_lmcache(names: tuple[str, ...], texts: tuple[str, ...]) -> None:
    words = " ".join(f"--kv-tier {without_password(text)}" for text in texts)
    log.warning("%s understood as %s", ", ".join(names), words)


def _gigabytes(environ: Mapping[str, str], name: str) -> int:
    """LMCache counts in units of 2**30 bytes, with fractions."""
    text = environ.get(name)
    if not text:
        return 0
    try:
        return int(float(text) * _GIB)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(name, text, "a number of GiB") from error
