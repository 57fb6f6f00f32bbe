"""Media, their links, and gains against sums by hand; rounds on servers that are played."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import flags, runs
from penstock_lab.bench.rounds import Figures, Summary
from penstock_lab.bench.tiers import command
from penstock_lab.bench.tiers.gains import charts, exhausted, gains, lines
from penstock_lab.bench.tiers.link import Link
from penstock_lab.bench.tiers.media import Medium, media
from tests.bench.measuring import parse

NONE, RAM, DISK = Medium(()), Medium(("ram:1GiB",)), Medium(("disk:/kv,8GiB",))


def test_no_tier_is_first_and_remote_media_have_each_bandwidth() -> None:
    texts = ["ram:1GiB", "none", "ram:1GiB+redis://:secret@store:1/0"]
    found = media(texts, [5_000_000, 20_000_000])
    assert [medium.name for medium in found] == [
        "none",
        "ram:1GiB",
        "ram:1GiB+redis://store:1/0",
        "ram:1GiB+redis://store:1/0 at 5 MB/s",
        "ram:1GiB+redis://store:1/0 at 20 MB/s",
    ]
    assert [medium.only_ram for medium in found] == [False, True, False, False, False]
    with pytest.raises(InvalidValueError, match="--bandwidth"):
        media(["ram:1GiB"], [5_000_000])


def test_a_link_takes_the_place_of_the_store() -> None:
    medium = Medium(("ram:1GiB", "redis://user:secret@127.0.0.1:7000/3"), 1_000_000)
    with medium.opened() as words:
        assert words[:3] == ["--kv-tier", "ram:1GiB", "--kv-tier"]
        assert words[3].startswith("redis://user:secret@127.0.0.1:")
        assert words[3].endswith("/3")
        assert ":7000" not in words[3]
    with Medium(medium.tiers).opened() as words:
        assert words[3] == medium.tiers[1]


def test_a_link_passes_all_bytes_and_no_more_than_its_rate() -> None:
    size, rate = 200_000, 1_000_000
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            peer, _ = server.accept()
            with peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

        threading.Thread(target=echo, daemon=True).start()
        message = bytes(range(200)) * (size // 200)
        with Link(server.getsockname(), rate) as link:
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", link.port)) as client:
                threading.Thread(target=client.sendall, args=(message,), daemon=True).start()
                back = b""
                while len(back) < size:
                    back += client.recv(1 << 16)
            took = time.monotonic() - began
    assert back == message
    assert took >= size / rate


def summary(workload: str, ttft: float, throughput: float, cached: float) -> Summary:
    first, later = Figures(1e9, 1.0, 0.0), Figures(ttft, throughput, cached)
    return Summary(workload, first, later, 3, 0, partial=False)


def found_by(values: dict[Medium, dict[int, tuple[float, float, float]]]) -> list[Any]:
    return gains(
        {
            medium: {length: summary(f"{length}/1", *each) for length, each in by.items()}
            for medium, by in values.items()
        }
    )


VALUES = {
    NONE: {100: (10.0, 1000.0, 0.0), 1000: (100.0, 900.0, 0.0), 10_000: (1500.0, 600.0, 0.0)},
    RAM: {100: (5.0, 4000.0, 0.9), 1000: (9.0, 9000.0, 0.98), 10_000: (1500.0, 590.0, 0.02)},
    DISK: {100: (9.0, 2000.0, 0.9), 1000: (20.0, 4500.0, 0.98), 10_000: (90.0, 6000.0, 0.99)},
}


def test_gains_and_the_length_that_exhausts_ram() -> None:
    rows = found_by(VALUES)
    by = {(row.medium, row.length): row.gain for row in rows}
    assert by[NONE, 1000] == 1
    assert by[RAM, 1000] == 10
    assert by[DISK, 10_000] == 10
    assert exhausted(rows) == {RAM: 10_000}
    printed = list(lines(rows))
    assert printed[-1] == "ram:1GiB is exhausted from 10,000 tokens on"
    assert sum("10.00x" in line for line in printed) == 2


def test_ram_that_never_held_anything_is_not_exhausted() -> None:
    flat = dict.fromkeys((100, 1000), (10.0, 1000.0, 0.0))
    assert exhausted(found_by({NONE: flat, RAM: flat})) == {}
    whole = dict.fromkeys((100, 1000), (10.0, 1000.0, 0.9))
    assert exhausted(found_by({NONE: flat, RAM: whole})) == {}


def test_charts_are_against_length_and_bandwidth() -> None:
    slow, fast = (Medium(("redis://store",), rate) for rate in (5_000_000, 20_000_000))
    both = {slow: VALUES[RAM], fast: VALUES[DISK]}
    plots = {plot.key: plot for plot in charts(found_by(VALUES | both))}
    assert list(plots) == ["ttft", "throughput", "gain", "bandwidth"]
    named = {each.name: [(p.x, p.y) for p in each.points] for each in plots["gain"].series}
    assert named["ram:1GiB"] == [(100, 4), (1000, 10), (10_000, 590 / 600)]
    limited = {each.name: [(p.x, p.y) for p in each.points] for each in plots["bandwidth"].series}
    assert limited["10,000 tokens"] == [(5, 590 / 600), (20, 10)]
    assert "bandwidth" not in {plot.key for plot in charts(found_by(VALUES))}


def test_an_error_of_the_server_without_tiers_ends_the_command() -> None:
    def opened(_: Medium) -> Any:
        raise PenstockError("no such model")

    with pytest.raises(PenstockError, match="no such model"):
        command.measure(parse(command, "model"), [NONE, RAM], opened)


def test_every_medium_has_a_server_and_prompts_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_: list[str] = []
    seeds: dict[str, set[int]] = {}

    @contextmanager
    def opened(medium: Medium) -> Iterator[str]:
        assert not open_, "one server at a time"
        if medium.tiers == ("redis://gone",):
            raise PenstockError("it is not ready")
        open_.append(medium.name)
        try:
            yield f"http://{len(seeds)}"
        finally:
            open_.clear()

    def measure_at(_target: object, parsed: argparse.Namespace, kind: str) -> Any:
        own = seeds.setdefault(parsed.label, set())

        def measure(words: list[str], *, seed: int, tags: dict[str, Any]) -> dict[str, Any]:
            own.add(seed)
            if parsed.label == "redis://lost" and tags["point"] == 3:
                raise PenstockError("it ended")
            late = tags["point"] > 1 and parsed.label != "none"
            penstock = {"command": kind, "server": parsed.label, "partial": False, **tags}
            penstock["usage"] = {"cached_tokens": 90 if late else 0}
            numbers = {"mean_ttft_ms": 1.0, "total_token_throughput": 50.0 if late else 10.0}
            counts = {"completed": 2, "failed": 0, "total_input_tokens": 100}
            return {**numbers, **counts, "penstock": penstock}

        return measure

    monkeypatch.setattr(runs, "measure_at", measure_at)
    monkeypatch.setattr(flags, "target", lambda parsed: parsed.base_url)
    parsed = parse(command, "model", "--lengths", "100,200", "--rounds", "3")
    failed = [Medium(("redis://gone",)), Medium(("redis://lost",))]
    rows, keeper = command.measure(parsed, [NONE, RAM, *failed, DISK], opened)
    assert not keeper.interrupted
    errors = capsys.readouterr().err
    assert "redis://gone: it is not ready\n" in errors
    assert "redis://lost: it ended\n" in errors
    assert [(row.medium, row.length, row.gain) for row in rows] == [
        *((NONE, length, 1) for length in (100, 200)),
        *((RAM, length, 5) for length in (100, 200)),
        *((DISK, length, 5) for length in (100, 200)),
    ]
    del seeds["redis://lost"]
    assert len(set.union(*seeds.values())) == sum(map(len, seeds.values())) == 6
