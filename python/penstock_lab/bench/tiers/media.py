"""Media to measure: the values of `--kv-tier` for one server, optionally behind a slow link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from penstock.config.sections import without_password
from penstock.core import InvalidValueError
from penstock_lab.bench.tiers.link import HOST, Link

NONE = "none"
JOIN = "+"
REDIS_PORT = 6379


@dataclass(frozen=True, slots=True)
class Medium:
    """The tiers of one server. `rate`: bytes per second of the link to a remote tier; None for no
    limit.
    """

    tiers: tuple[str, ...]
    rate: int | None = None

    @property
    def name(self) -> str:
        text = JOIN.join(map(without_password, self.tiers)) or NONE
        return text if self.rate is None else f"{text} at {self.rate / 1e6:g} MB/s"

    @property
    def only_ram(self) -> bool:
        return bool(self.tiers) and all(tier.startswith("ram:") for tier in self.tiers)

    @contextmanager
    def opened(self) -> Iterator[list[str]]:
        """Context manager that yields the flags of `penstock serve`, and runs the link
        meanwhile.
        """
        with ExitStack() as stack:
            words: list[str] = []
            for tier in self.tiers:
                if self.rate is not None and is_remote(tier):
                    host, port = _address(tier)
                    link = stack.enter_context(Link((host, port), self.rate))
                    tier = _through(tier, link.port)
                words += ["--kv-tier", tier]
            yield words


def media(texts: Sequence[str], rates: Sequence[int]) -> list[Medium]:
    """The media to measure: first no tier, then each of `texts`. Remote media are repeated with
    each of `rates`. Raises InvalidValueError for `rates` without a remote medium.
    """
    found = [Medium(())]
    for text in dict.fromkeys(texts):
        if text == NONE:
            continue
        tiers = tuple(text.split(JOIN))
        found.append(Medium(tiers))
        if any(map(is_remote, tiers)):
            found += [Medium(tiers, rate) for rate in dict.fromkeys(rates)]
    if rates and not any(medium.rate for medium in found):
        raise InvalidValueError("--bandwidth", rates[0], "a redis:// medium, whose link it limits")
    return found


def is_remote(tier: str) -> bool:
    return tier.startswith("redis://")


def _address(tier: str) -> tuple[str, int]:
    parts = urlsplit(tier)
    return parts.hostname or HOST, parts.port or REDIS_PORT


def _through(tier: str, port: int) -> str:
    parts = urlsplit(tier)
    login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=f"{login}{HOST}:{port}"))
