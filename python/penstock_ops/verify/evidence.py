"""Evidence: what a node's files and commands contain, as text. Checks judge it, on this node or on
another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Absence(StrEnum):
    """Why there is no evidence from a source."""

    MISSING = "missing"
    """No such file or program: what it describes is not on this node, or not in this container."""
    DENIED = "denied"
    """The process lacks a permission."""
    FAILED = "failed"
    """The command ended with an error, or the file could not be read."""
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one source gave: `files` by path for files and links, `text` for a command's output."""

    text: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    absence: Absence | None = None
    detail: str = ""
    """The reason in words, if evidence is absent."""

    @property
    def is_present(self) -> bool:
        return self.absence is None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All evidence of one node, by the names of its sources."""

    node: str
    evidence: Mapping[str, Evidence]

    def __getitem__(self, source: str) -> Evidence:
        return self.evidence[source]
