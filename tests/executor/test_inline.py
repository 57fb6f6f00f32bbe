from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Loaded,
    Numerics,
    StepPlan,
    StepResult,
    WorkerFacts,
)
from penstock.core.transfer import OpenTiers, Transfer, TransferKind, TransferResult
from penstock.executor.inline import InlineExecutor

FACTS = WorkerFacts(bytes(32), Numerics((), "none", "fake"), "none", 1, 0)
SPEC = KvSpec(16, (KvGroup((0,), 64), KvGroup((1,), 32, 128)))


class Done:
    def result(self, timeout: float | None = None) -> StepResult:
        return StepResult()


class Mover:
    closed: float | None = None

    def submit(self, transfer: Transfer) -> None:
        self.over = [TransferResult(transfer.id, True)]

    def take(self, timeout: float) -> list[TransferResult]:
        assert timeout == 0.0
        over, self.over = self.over, []
        return over

    def report(self) -> str:
        return "{}"

    def close(self, seconds: float) -> None:
        self.closed = seconds


class Backend:
    facts = FACTS
    allocation: Allocation | None = None
    closed = False

    def __init__(self) -> None:
        self.mover = Mover()

    def kv_spec(self) -> KvSpec:
        return SPEC

    def free_memory(self) -> int:
        return 7

    def allocate(self, allocation: Allocation) -> None:
        self.allocation = allocation

    def submit(self, plan: StepPlan) -> Done:
        return Done()

    def open_tiers(self, tiers: OpenTiers) -> Mover:
        self.opened = tiers
        return self.mover

    def close(self) -> None:
        self.closed = True


def test_steps_go_straight_to_the_backend() -> None:
    backend = Backend()
    executor = InlineExecutor(backend)
    assert executor.loaded == (Loaded(FACTS, SPEC, 7),)
    executor.allocate(Allocation((3, 2), 5))
    assert backend.allocation == Allocation((3, 2), 5)
    executor.check()
    assert executor.submit(StepPlan(3)).result() == StepResult()
    executor.close()
    assert backend.closed


def test_transfers_go_straight_to_the_mover() -> None:
    backend = Backend()
    executor = InlineExecutor(backend)
    transfers = executor.transfers
    assert transfers.mover_reports() == ()
    transfers.open_tiers(OpenTiers("c0ffee", 1, 1.5))
    assert backend.opened == OpenTiers("c0ffee", 1, 1.5)
    assert transfers.mover_reports() == ("{}",)
    transfers.transfer(Transfer(7, TransferKind.REMOVE, keys=bytes(32)))
    assert transfers.moved() == [TransferResult(7, True)]
    assert transfers.moved() == []
    executor.close()
    assert backend.mover.closed == 1.5
