"""Runs one client against one simulated engine, each on its own core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock_lab.bench.compare.processes import ProcessTree, uninterrupted, wait_until_quiet
from support import clients, watching
from support.servers import Server, simulation

ENGINE_CPU, CLIENT_CPU = 0, 1
QUIET_WAIT_S, MAX_FOREIGN, ATTEMPTS = 60.0, 0.05, 2


Words = Callable[[clients.Place, Path], list[str]]
"""Function (address of the engine, directory for results) -> command line of a client."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a run. `result` has vLLM's keys; `slipped_s` is how late the engine itself
    was, in seconds.
    """

    result: Mapping[str, Any]
    watched: watching.Watched
    slipped_s: float


@dataclass(frozen=True, slots=True)
class Lab:
    """The setup of the runs. `profile` names the simulated engine's timing; `gguf` and
    `peers/hf-bf16` have the same tokenizer.
    """

    profile: Mapping[str, object] | str
    gguf: str
    peers: Path
    patience: float

    @contextmanager
    def engine(self) -> Iterator[tuple[Server, clients.Place, Path]]:
        """Context with a fresh engine, so that no prefix is cached, and a directory for the
        client's results.
        """
        with (
            TemporaryDirectory(prefix="clients-") as name,
            simulation(self.profile, self.gguf, [ENGINE_CPU], Path(name)) as server,
        ):
            yield (
                server,
                clients.Place(server.url, self.gguf, self.peers / "hf-bf16", self.peers),
                Path(name),
            )

    def run(self, client: str, words: Words) -> Finished:
        """Run a client up to ATTEMPTS times. Returns the first run that other processes did not
        disturb, else the least disturbed one.

        Raises:
            RuntimeError: the client left no result, or no request succeeded.
        """
        done: list[Finished] = []
        while len(done) < ATTEMPTS and (not done or done[-1].watched.foreign_share > MAX_FOREIGN):
            wait_until_quiet(QUIET_WAIT_S, MAX_FOREIGN)
            done.append(self._once(client, words))
        return min(done, key=lambda finished: finished.watched.foreign_share)

    def _once(self, client: str, words: Words) -> Finished:
        with self.engine() as (server, place, directory):
            log, results = directory / "client.log", directory / "results"
            results.mkdir()
            with uninterrupted():
                tree = ProcessTree(
                    words(place, results), clients.ENVIRONMENT[client], log, [CLIENT_CPU]
                )
            try:
                watched = watching.watch(tree, server, self.patience)
                result = clients.read(client, results)
            except FileNotFoundError as error:
                raise RuntimeError(
                    f"{client} left no result:\n{log.read_text(errors='replace')}"
                ) from error
            finally:
                tree.end()
            if not result["completed"]:
                raise RuntimeError(
                    f"{client}: no request succeeded:\n{log.read_text(errors='replace')}"
                )
            return Finished(
                result, watched, server.counters()["penstock:sim_slipped_seconds_total"]
            )
