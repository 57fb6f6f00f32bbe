"""Plain data exchanged between packages: plans, results, transfers, requests, errors. No behaviour
beyond validation, no IO, and no import of another package.
"""

from penstock.core.errors import (
    CodecError,
    DeviceLostError,
    InvalidValueError,
    PenstockError,
    did_you_mean,
    shortened,
)
from penstock.core.facts import (
    Allocation,
    KvGroup,
    KvSpec,
    Loaded,
    Numerics,
    StateSpec,
    WorkerFacts,
)
from penstock.core.outputs import EngineStats, FinishReason, StepOutput, StepOutputs
from penstock.core.plan import LogprobRow, Registration, StepPlan, StepResult
from penstock.core.pooling import Pooler, PoolerOutput, Pooling
from penstock.core.request import GenerationParams, Request
from penstock.core.tiers import (
    KvAction,
    KvCommand,
    KvOutcome,
    KvReply,
    TierKind,
    TierKinds,
    TierTokens,
)

__all__ = [
    "Allocation",
    "CodecError",
    "DeviceLostError",
    "EngineStats",
    "FinishReason",
    "GenerationParams",
    "InvalidValueError",
    "KvAction",
    "KvCommand",
    "KvGroup",
    "KvOutcome",
    "KvReply",
    "KvSpec",
    "Loaded",
    "LogprobRow",
    "Numerics",
    "PenstockError",
    "Pooler",
    "PoolerOutput",
    "Pooling",
    "Registration",
    "Request",
    "StateSpec",
    "StepOutput",
    "StepOutputs",
    "StepPlan",
    "StepResult",
    "TierKind",
    "TierKinds",
    "TierTokens",
    "WorkerFacts",
    "did_you_mean",
    "shortened",
]
