"""Combines the facts that all ranks report after they have loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from penstock.core import Numerics, PenstockError, WorkerFacts


def join_facts(ranks: Sequence[WorkerFacts]) -> WorkerFacts:
    """Facts of the whole model. Raises PenstockError if the ranks opened different checkpoints."""
    fingerprints = [rank.fingerprint for rank in ranks]
    for number, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            where = f" on {ranks[number].host}" if ranks[number].host else ""
            raise PenstockError(
                f"rank {number}{where} opened another checkpoint than rank 0: their files differ"
            )
    return WorkerFacts(
        fingerprint=fingerprints[0],
        numerics=join_numerics(rank.numerics for rank in ranks),
        device="+".join(sorted({rank.device for rank in ranks})),
        threads=sum(rank.threads for rank in ranks),
        weights_bytes=sum(rank.weights_bytes for rank in ranks),
        stages=ranks[0].stages,
        own_memory=ranks[0].own_memory,
        pauses=max(rank.pauses for rank in ranks),
    )


def join_numerics(ranks: Iterable[Numerics]) -> Numerics:
    """Numerics of the whole model. A rank reports only the formats of its own matrices. Activations
    are int8 if any rank uses int8.
    """
    each = list(ranks)
    weights = tuple(sorted({form for numerics in each for form in numerics.weights}))
    kinds = {numerics.activations for numerics in each if numerics.weights}
    activations = "int8" if "int8" in kinds else min(kinds, default="none")
    return Numerics(weights, activations, "+".join(sorted({numerics.kv for numerics in each})))


def cache_identity(facts: WorkerFacts, spec_json: str) -> bytes:
    """32-byte digest of everything that affects the values of a KV block. It does not depend on how
    the model is split over ranks.
    """
    parts = (facts.fingerprint.hex(), str(facts.numerics), spec_json)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
