"""The load of the tests on a real node sees what it is there to see: beside a simulated server."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.deploy.cluster.pods import MODEL, Deployed
from tests.e2e.server import eventually
from tests.limits import HANG

SIM = (sys.executable, "-m", "penstock", "sim", "--port", "0", "--served-model-name", MODEL)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((), ""),
        (("--fault", "cut:0.5"), "APIConnectionError"),
        (("--fault", "no-finish:0.5"), "no finish reason"),
        (("--fault", "error-event:0.5"), "APIError"),
    ],
)
def test_broken_streams_are_failures(fault: tuple[str, ...], said: str) -> None:
    loaded = object.__new__(Deployed)  # Its load needs no node.
    with subprocess.Popen([*SIM, *fault], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            with loaded.load(f"{url}/v1", clients=0, streams=2) as failed:
                if said:
                    eventually(lambda: any(said in each for each in failed), said)
                else:
                    time.sleep(1)
            assert bool(failed) == bool(said), failed
        finally:
            server.terminate()
            server.wait(HANG)
