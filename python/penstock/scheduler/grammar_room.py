"""Byte budget for the grammars that one plan carries. Equal grammars count once."""

from __future__ import annotations

from penstock.core.plan import MAX_PLAN_GRAMMAR_BYTES
from penstock.scheduler.sequence import Sequence


class GrammarRoom:
    def __init__(self) -> None:
        self._grammars: set[bytes] = set()

    def clear(self) -> None:
        """Start a new plan."""
        self._grammars.clear()

    def takes(self, seq: Sequence) -> bool:
        """Reserve space for the sequence's grammar; False if the plan has too little space left."""
        grammar = seq.request.grammar
        if grammar and grammar not in self._grammars:
            if sum(map(len, self._grammars)) + len(grammar) > MAX_PLAN_GRAMMAR_BYTES:
                return False
            self._grammars.add(grammar)
        return True
