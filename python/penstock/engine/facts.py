"""What the ranks say about themselves, as one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from penstock.core import PenstockError, WorkerFacts


def join_facts(ranks: Sequence[WorkerFacts]) -> WorkerFacts:
    """Facts of the whole model; PenstockError when the ranks did not open the same checkpoint."""
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
        isa="+".join(sorted({rank.isa for rank in ranks})),
        threads=sum(rank.threads for rank in ranks),
        weights_bytes=sum(rank.weights_bytes for rank in ranks),
        stages=ranks[0].stages,
    )


def join_numerics(each: Iterable[str]) -> str:
    """As the decoder names them for the whole: all weight forms, and int8 activations where one has
    them.

    A rank knows the forms of its own matrices only; one without layers and head has none.
    """
    forms: set[str] = set()
    kv: set[str] = set()
    for numerics in each:
        weights, _, cached = numerics.split("/")
        forms.update(form for form in weights.split("+") if form)
        kv.add(cached)
    names = sorted(forms)
    activations = (
        "int8" if any(name.startswith("w") for name in names) else next(iter(names), "none")
    )
    return f"{'+'.join(names)}/{activations}/{'+'.join(sorted(kv))}"


def cache_identity(facts: WorkerFacts, spec_json: str) -> bytes:
    """32 bytes that stand for everything which changes the values of a KV block, however it is cut."""
    parts = (facts.fingerprint.hex(), facts.numerics, spec_json)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
