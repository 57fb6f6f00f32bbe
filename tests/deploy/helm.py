"""Helm, as the machine has it or built."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.programs import program


def helm() -> Path:
    """The program; the test is skipped, with the reason, where it cannot be built."""
    return program("helm.sh/helm/v4/cmd/helm", "v4.3.1")
