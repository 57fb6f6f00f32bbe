"""The loop of one rank, independent of the transport of its messages."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends import CarryingBackend, StepFuture, load_backend
from penstock.config import EngineConfig
from penstock.core import Loaded, StepResult
from penstock.core.codec import decode_plan, is_plan
from penstock.core.progress import Report, silent
from penstock.executor.ranks import HeartbeatStream, RankTask
from penstock.executor.ranks.messages import (
    ALLOCATE,
    Computed,
    Failed,
    LoadStatus,
    MoverClosed,
    MoverReport,
    Ready,
    decode_allocate,
    encode_answer,
)
from penstock.executor.ranks.transfers import END, OPEN, decode_open
from penstock.executor.worker.transfer_channel import Channel, TransferChannel
from penstock.model import load_model

if TYPE_CHECKING:
    from penstock._native import RingReader, RingWriter

WAIT = 60.0
"""Timeout in seconds of one wait for a message; the rank then waits again."""
NOTHING = b""
"""Answer to a plan from a rank whose results the engine does not read."""


class MessageChannel:
    """Channel to the executor over rings in shared memory, or over a stream. `capacity`: maximum
    bytes of an answer.
    """

    def __init__(
        self,
        plans: RingReader | HeartbeatStream,
        answers: RingWriter | HeartbeatStream,
        capacity: int,
    ) -> None:
        self._plans = plans
        self._answers = answers
        self.capacity = capacity

    def receive(self) -> bytes | None:
        try:
            while (message := self._plans.receive(WAIT)) is None:
                pass
        except ConnectionError:
            return None
        return message

    def ready(self) -> bool:
        return self._plans.ready()

    def answer(self, message: bytes) -> None:
        if message:
            self._answers.send(message)


@dataclass(slots=True)
class Step:
    """A plan that a rank has received but not answered."""

    number: int = 0
    """Step number; 0 if the message was not a valid plan."""
    future: StepFuture | None = None
    outcome: StepResult | Exception | None = None

    def wait(self) -> None:
        """Wait until there is an `outcome`."""
        if self.outcome is None and self.future is not None:
            try:
                self.outcome = self.future.result()
            except Exception as error:  # noqa: BLE001 - the engine gets every error
                self.outcome = error


class Rank:
    """One rank without its channel: computes the answers to messages, at most `capacity` bytes
    each. Every exception of the backend becomes an answer. `usable` is False after a fatal
    exception.
    """

    backend: CarryingBackend

    def __init__(self, task: RankTask, capacity: int) -> None:
        self._task = task
        self._capacity = capacity
        self.usable = True

    def load(self, report: Report = silent) -> bytes:
        task = self._task
        try:
            config = EngineConfig.from_json(task.config)
            own = config.model
            info = load_model(Path(own.path), served=own.max_model_len, dummy=own.dummy)
            backend = self.backend = load_backend(config, info, (task.shard, task.wiring), report)
            loaded = Loaded(backend.facts, backend.kv_spec(), backend.free_memory())
        except Exception as error:  # noqa: BLE001 - the engine gets every error
            return self._fail(0, error)
        return encode_answer(loaded)

    def start(self, message: bytes) -> Step:
        """Decode a plan and submit it to the backend. Does not raise: an error becomes the step's
        outcome.
        """
        step = Step()
        try:
            plan = decode_plan(message)
            step.number = plan.step
            step.future = self.backend.submit(plan)
        except Exception as error:  # noqa: BLE001 - the engine gets every error
            step.outcome = error
        return step

    def finish(self, step: Step) -> bytes:
        """Wait for a step; returns the answer to its plan."""
        step.wait()
        if isinstance(step.outcome, StepResult):
            reads = self._task.reads
            return encode_answer(Computed(step.number, step.outcome)) if reads else NOTHING
        assert step.outcome is not None
        return self._fail(step.number, step.outcome)

    def answer(self, message: bytes) -> bytes:
        """The answer to a plan, or to the message that allocates the pools."""
        if message.startswith(ALLOCATE):
            return self._allocate(message)
        return self.finish(self.start(message))

    def failure(self, error: Exception) -> bytes:
        """The answer that reports an error outside the steps. Such an error ends the rank."""
        return encode_answer(Failed.of(self._task.rank, 0, error), self._capacity)

    def _fail(self, step: int, error: Exception) -> bytes:
        failed = Failed.of(self._task.rank, step, error)
        self.usable = not failed.fatal
        return encode_answer(failed, self._capacity)

    def _allocate(self, message: bytes) -> bytes:
        try:
            self.backend.allocate(decode_allocate(message))
        except Exception as error:  # noqa: BLE001 - the engine gets every error
            return self._fail(0, error)
        # Loaded objects stay until the end, and steps create no reference cycles, so the garbage
        # collector would find nothing.
        gc.collect()
        gc.freeze()
        gc.disable()
        return encode_answer(Ready())


def serve(rank: Rank, channel: Channel) -> bool:
    """Load the model, then answer messages until the executor closes the channel. Returns False if
    the rank became unusable.

    A plan that has already arrived starts before the result of the previous plan is sent.
    """
    channel.answer(rank.load(lambda line: channel.answer(encode_answer(LoadStatus.of(line)))))
    running: Step | None = None
    while rank.usable:
        if running is not None:
            running.wait()
        message = channel.receive() if running is None or channel.ready() else NOTHING
        started = rank.start(message) if message and is_plan(message) else None
        if running is not None:
            channel.answer(rank.finish(running))
        running = started
        if message is None:
            break
        if message and started is None:
            channel = handle(message, channel, rank)
    return rank.usable


def handle(message: bytes, channel: Channel, rank: Rank) -> Channel:
    """Answer a message that is not a plan; returns the channel to use from now on."""
    if message.startswith(OPEN):
        return open_tiers(message, channel, rank) or channel
    if message.startswith(END) and isinstance(channel, TransferChannel):
        channel.close()
        channel.answer(encode_answer(MoverClosed()))
    else:
        channel.answer(rank.answer(message))
    return channel


def open_tiers(message: bytes, channel: Channel, rank: Rank) -> TransferChannel | None:
    """Open the tiers and answer. Returns `channel` extended by transfers, or None if the tiers
    cannot be opened.
    """
    try:
        tiers = decode_open(message)
        mover = rank.backend.open_tiers(tiers)
        channel.answer(encode_answer(MoverReport(mover.report())))
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - the engine gets every error
        rank.usable = False
        channel.answer(rank.failure(error))
        return None
    opened = TransferChannel(channel, mover, tiers.flush_s, rank.failure)
    opened.start()
    return opened
