"""Plain data that crosses room boundaries. No behaviour beyond validation, no IO, no other room is imported."""

from penstock.core.errors import InvalidValue, PenstockError
from penstock.core.outputs import EngineStats, FinishReason, StepOutput, StepOutputs
from penstock.core.plan import LogprobRow, SlotParams, StepPlan, StepResult
from penstock.core.request import Request, SamplingParams

__all__ = [
    "EngineStats",
    "FinishReason",
    "InvalidValue",
    "LogprobRow",
    "PenstockError",
    "Request",
    "SamplingParams",
    "SlotParams",
    "StepOutput",
    "StepOutputs",
    "StepPlan",
    "StepResult",
]
