"""The engine's side of ranks on several hosts: nodes gathered, ranks started, joined, and shown to
work.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penstock.config import EngineConfig
from penstock.core import Ranks
from penstock.executor.nodes.crew import Crew
from penstock.executor.nodes.messages import Job, Made, Make, Opened, Start, encode, session_key
from penstock.executor.nodes.muster import Member, Muster
from penstock.executor.nodes.places import Node, hosts, ranks_of
from penstock.executor.processes import Processes
from penstock.executor.ranks import LEAST_ANSWER, RanksExecutor
from penstock.executor.rings import LineAnswers, Rings, answer_bytes
from penstock.executor.wiring import Part, keyed, parts, wire
from penstock.ranks import Line, LocalParts, SharedFiles

JOIN = 300.0
"""Seconds that the other nodes get to call; their hosts may still be fetching an image."""
MAKE = 30.0
"""Seconds in which a node makes what joins its ranks."""
CALL = 60.0
"""Seconds in which ranks on other nodes start and call."""


class NodesExecutor(RanksExecutor):
    """`worker` names the module that is run for each rank of this node, the others know their own.
    Returns when all ranks have computed a step.

    Raises PenstockError: a node that is missing or differs, or the reason of the first rank that
    cannot load.
    """

    def __init__(
        self,
        worker: str,
        ranks: Ranks,
        config: EngineConfig,
        directory: Path,
        key: bytes,
        card: Mapping[str, str],
        join_timeout: float = JOIN,
    ) -> None:
        super().__init__(ranks)
        self._config = config
        self._directory = directory
        self._key = key
        self._session = secrets.token_hex(16)
        self._crew: Crew | None = None
        self._own = ranks_of(ranks, config.parallel.nnodes)[0]
        parallel = config.parallel
        self._muster = Muster(parallel.master, key, card, parallel.nnodes)
        try:
            self._start(worker, self._muster.gather(join_timeout))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks on their nodes, in their order."""
        return self._crew.pids if self._crew else []

    def close(self) -> None:
        if self._crew is not None:
            self._close_tiers()
            self._crew.end()
        self._muster.close()

    def _start(self, worker: str, members: Sequence[Member]) -> None:
        # Node 0 knows its address from those who have reached it.
        nodes = [Node(0, members[0].called), *(member.node for member in members)]
        where = hosts(self._ranks, nodes)
        local = LocalParts(self._directory)
        try:
            wirings = self._join(local, members, where)
            crew = self._members = self._crew = Crew(members, where, self.on_exit)
            lines = self._start_elsewhere(crew, members, wirings)
            files = SharedFiles(self._directory)
            try:
                rings = Rings(self._ranks, lines, files)
                files.seal()
                self._start_here(worker, crew, rings, wirings, (local.files, files))
                facts = self._await_ready()
            finally:
                files.close()
        finally:
            local.close()
        for member in members:
            member.line.send(encode(Opened()))
        self.facts = tuple(
            replace(own, host=node.address) for own, node in zip(facts, where, strict=True)
        )
        self._compute_first_step()

    def _join(
        self, local: LocalParts, members: Sequence[Member], where: Sequence[Node]
    ) -> list[dict[str, Any]]:
        """Have made what joins the ranks; the wiring of each, but for keys."""
        wanted = parts(self._ranks, where)

        def of(node: int) -> list[Part]:
            return [part for part in wanted if where[part.maker].id == node]

        made = {0: iter(local.make([part.wanted for part in of(0)]))}
        for member in members:
            asked = Make(self._session, [list(part.wanted) for part in of(member.node.id)])
            answer = member.ask(asked, Made, MAKE)
            made[member.node.id] = iter(answer.made)
        things = [next(made[where[part.maker].id]) for part in wanted]
        return wire(self._ranks, wanted, things)

    def _start_elsewhere(
        self, crew: Crew, members: Sequence[Member], wirings: Sequence[dict[str, Any]]
    ) -> dict[int, Line]:
        """Start the ranks of other nodes; a line to each."""
        ranks = self._ranks
        limit = max(ranks.plan_bytes, ranks.result_bytes, LEAST_ANSWER)
        held = ranks_of(ranks, len(members) + 1)
        for member in members:
            jobs = [
                Job(
                    rank=rank,
                    reads=rank == ranks.reader,
                    num_blocks=ranks.num_blocks,
                    shard=ranks.shards[rank],
                    wiring=wirings[rank],
                    capacity=answer_bytes(ranks, rank),
                    limit=limit,
                )
                for rank in held[member.node.id]
            ]
            member.line.send(encode(Start([asdict(job) for job in jobs])))
        away = range(self._own.stop, ranks.size)
        check = self._check_called
        return self._muster.take_ranks(away, self._session, limit, CALL, check, crew.on_line_end)

    def _check_called(self) -> None:
        """While ranks are still calling: those that have may have said why they are gone."""
        self._answers = [LineAnswers(line) for line in self._muster.ranks.values()]
        self.check()

    def _start_here(
        self,
        worker: str,
        crew: Crew,
        rings: Rings,
        wirings: Sequence[dict[str, Any]],
        memory: Sequence[SharedFiles],
    ) -> None:
        key = session_key(self._key, self._session)
        tasks = self._ranks.tasks(
            self._config.to_json(), [keyed(wiring, key) for wiring in wirings]
        )
        jobs = [json.dumps({"task": asdict(tasks[rank]), **rings.jobs[rank]}) for rank in self._own]
        self._plans, self._answers = rings.plans, rings.answers
        self._fences = [*rings.fences, *(fence for files in memory for fence in files.fences())]
        descriptors = [descriptor for files in memory for descriptor in files.descriptors]
        crew.add_processes(Processes(worker, jobs, descriptors, crew.on_local_exit, host=crew.host))
        self.check()
