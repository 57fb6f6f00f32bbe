"""The agent's side of RDMA measurements: one run of perftest at a time, as its server or client.

Programs and options are fixed; a request chooses a test by name, an adapter of this node, a memory
and a port of a small range.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from penstock.config.sources import tool_environment
from penstock.core import PenstockError
from penstock_ops.verify.evidence import Absence
from penstock_ops.verify.sources import KILL_SECONDS, run_command

FIRST_PORT, PORTS = 18515, 64
"""18515 is perftest's own default."""
BYTES = 1 << 20
"""Of a message that reaches the rate of a link."""
TESTS: Mapping[str, tuple[str, ...]] = {
    "write_bandwidth": ("ib_write_bw", "-F", "--report_gbits", "-q", "4", "-s", str(BYTES)),
    "read_latency": ("ib_read_lat", "-F", "-s", "8"),
}
RUN_SECONDS = 20.0
LISTEN_SECONDS = 10.0
"""Until a server listens: it registers memory first, and with a GPU begins CUDA."""
HELP_SECONDS = 5.0
POLL_SECONDS = 0.05
LISTENING = "0A"
"""State of a socket in /proc/net/tcp (include/net/tcp_states.h)."""
GPU_OPTION = "--use_cuda"
LAUNCHER = ("env", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
"""CUDA numbers GPUs by speed unless it is told otherwise."""
NVIDIA, DISPLAYS = "0x10de", ("0x0300", "0x0302")
INFINIBAND, PCI = "sys/class/infiniband", "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An RDMA adapter whose first port is active. `gpu` is the number of the GPU with the shortest
    path to it, or -1 without GPUs.
    """

    name: str
    layer: str
    gbit_per_s: float
    gpu: int


def missing_program() -> str:
    """Why no test can run here; empty if both programs are installed."""
    for words in TESTS.values():
        if run_command((words[0], "--version"), HELP_SECONDS).absence is Absence.MISSING:
            return f"no program {words[0]}: install perftest"
    return ""


def has_gpu_option() -> bool:
    """Whether perftest was built with CUDA."""
    program = TESTS["write_bandwidth"][0]
    return GPU_OPTION in run_command((program, "--help"), HELP_SECONDS).text


def adapters(root: Path = Path("/")) -> list[Adapter]:
    """Adapters with an active port, by name."""
    gpus = _gpus(root)
    found: list[Adapter] = []
    for device in sorted((root / INFINIBAND).glob("*")):
        port = device / "ports/1"
        with suppress(OSError, ValueError, IndexError):
            if "ACTIVE" not in (port / "state").read_text():
                continue
            rate = float((port / "rate").read_text().split()[0])
            layer = (port / "link_layer").read_text().strip()
            gpu = _nearest(device / "device", gpus, len(found))
            found.append(Adapter(device.name, layer, rate, gpu))
    return found


def _gpus(root: Path) -> list[Path]:
    """GPUs in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    found = []
    for device in sorted((root / PCI).glob("*")):
        with suppress(OSError):
            kind = (device / "class").read_text()[:6]
            if (device / "vendor").read_text().strip() == NVIDIA and kind in DISPLAYS:
                found.append(device.resolve())
    return found


def _nearest(adapter: Path, gpus: list[Path], number: int) -> int:
    """The GPU that shares the most PCI bridges. Among several, as in virtual machines, which show
    no bridges, the one whose number is the adapter's.
    """
    path = adapter.resolve().parts

    def same(pair: tuple[str, str]) -> bool:
        return pair[0] == pair[1]

    shared = [sum(1 for _ in takewhile(same, zip(path, gpu.parts, strict=False))) for gpu in gpus]
    nearest = [at for at, length in enumerate(shared) if length == max(shared)]
    return nearest[number % len(nearest)] if nearest else -1


def words_of(test: str, device: str, port: int, gpu: int) -> tuple[str, ...]:
    """The command of a server. PenstockError unless the adapter is one of this node."""
    if device not in {each.name for each in adapters()}:
        raise PenstockError(f"no active RDMA adapter {device!r} here")
    memory = (f"{GPU_OPTION}={gpu}",) if gpu >= 0 else ()
    return (*TESTS[test], "-d", device, "-p", str(port), *memory)


def measure(words: tuple[str, ...], address: str) -> str:
    """What the client prints. PenstockError if it fails, ends by a signal, or hangs."""
    if address.startswith("-"):
        raise PenstockError(f"{address!r} is not an address")
    found = run_command(_ordered((*words, address)), RUN_SECONDS)
    if not found.is_present:
        raise PenstockError(f"{words[0]}{found.detail.removeprefix(LAUNCHER[0])}")
    return found.text


def _ordered(words: tuple[str, ...]) -> tuple[str, ...]:
    return (*LAUNCHER, *words)


class Server:
    """At most one server of perftest. It ends by itself after one client."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: tuple[str, ...], port: int) -> None:
        """Start a server, in place of one that runs, and wait until it listens. PenstockError if
        it does not.
        """
        self.close()
        if listens(port):
            raise PenstockError(f"port {port} is in use")
        self._process = subprocess.Popen(
            _ordered(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=tool_environment(),
            start_new_session=True,
        )
        end = time.monotonic() + LISTEN_SECONDS
        while not listens(port):
            status = self._process.poll()
            if status is not None:
                raise PenstockError(f"{words[0]}: the server ended with status {status}")
            if time.monotonic() > end:
                self.close()
                raise PenstockError(f"{words[0]}: no server on port {port}")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)


def listens(port: int) -> bool:
    """Whether a TCP socket of this node listens on a port. A connection would end the server."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    return True
    return False
