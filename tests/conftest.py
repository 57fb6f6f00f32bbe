"""Fixtures that every room's tests may use."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
E2E = REPOSITORY / "tests/e2e"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

# What a test needs beside the installed wheel, by the fixture that provides it.
NEEDS = {
    "model_file": "model",
    "cluster": "ray",
    "hosts": "net",
    "store": "store",
    "kept": "store",
}

# Files and directories that take seconds of processor time: `make check` leaves them out.
HEAVY = [
    REPOSITORY / "tests" / path
    for path in (
        "bench/report",
        "bench/traces",
        "cli/test_chat.py",
        "config/test_documents.py",
        "deploy/monitoring/test_alerts.py",
        "deploy/test_names.py",
        "deploy/test_plan_file.py",
        "plan/test_document.py",
        "plan/test_documentation.py",
        "plan/test_search.py",
        "plan/test_virtual.py",
        "scheduler/test_tier_traffic.py",
        "top/test_command.py",
        "up/test_command.py",
    )
]

# No deadline: the machines that run this are shared. No database: a failure prints how to repeat
# it.
hypothesis.settings.register_profile("penstock", deadline=None, database=None, print_blob=True)
# `make check`: all properties, on fewer examples
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("penstock"), max_examples=15
)
hypothesis.settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what its fixtures need; `make check` leaves the marked ones out."""
    for item in items:
        if item.path.is_relative_to(E2E):
            item.add_marker("server")
        if any(item.path.is_relative_to(path) for path in HEAVY):
            item.add_marker("heavy")
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in NEEDS:
                item.add_marker(NEEDS[fixture])


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Restore SIGINT: a shell makes background jobs ignore it, and so would all child processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The default model: PENSTOCK_MODEL, or where `penstock pull smollm2` puts it."""
    cached = Path.home() / ".cache/penstock/models" / MODEL_NAME
    path = Path(os.environ.get("PENSTOCK_MODEL", cached))
    if not path.is_file():
        pytest.skip(
            f"no default model at {path}: run `penstock pull smollm2` or set PENSTOCK_MODEL"
        )
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data outside the repository: PENSTOCK_SHARED, or `shared` beside the checkout."""
    path = Path(os.environ.get("PENSTOCK_SHARED", REPOSITORY.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no reference data at {path}: set PENSTOCK_SHARED")
    return path
