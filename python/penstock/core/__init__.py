"""Plain data that crosses room boundaries. No behaviour beyond validation, no IO, no other room."""

from penstock.core.errors import InvalidValueError, PenstockError
from penstock.core.facts import WorkerFacts
from penstock.core.outputs import EngineStats, FinishReason, StepOutput, StepOutputs
from penstock.core.plan import LogprobRow, SlotParams, StepPlan, StepResult
from penstock.core.ranks import Ranks, RankTask
from penstock.core.request import Request, SamplingParams

__all__ = [
    "EngineStats",
    "FinishReason",
    "InvalidValueError",
    "LogprobRow",
    "PenstockError",
    "RankTask",
    "Ranks",
    "Request",
    "SamplingParams",
    "SlotParams",
    "StepOutput",
    "StepOutputs",
    "StepPlan",
    "StepResult",
    "WorkerFacts",
]
