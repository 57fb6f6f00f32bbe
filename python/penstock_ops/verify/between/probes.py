"""Probes of one node: what it measures with its peers over TCP.

Every agent has a `ProbeServer`. A client sends the run's key and a mode, and gets READY; then the
server echoes small messages, or counts bytes until the client has sent all and returns the count.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

KEY_BYTES = 32
ECHO, SINK = b"E", b"S"
READY = b"R"
MESSAGE = 64
"""Bytes of a message whose round trip is measured."""
COUNT = struct.Struct("!Q")
CONNECT_SECONDS = 4.0
"""Long enough for two lost packets of a handshake: TCP sends them again after 1 and 3 s."""
IDLE_SECONDS = 15.0
"""Seconds after which either end gives up a connection without data."""
DRAIN_SECONDS = 6.0
"""Seconds that the last bytes of a transfer may take."""
MOST_CONNECTIONS = 256
MOST_TRANSFER = 16 << 30
"""Bytes of a transfer at most."""
CHUNK = 1 << 20
SEGMENT_TRIAL = 1 << 16
"""Bytes that are sent to see whether segments of a size arrive."""
SEGMENT_SECONDS = 1.5
SEGMENT_SIZES = (8948, 4052, 1448, 1398, 1348, 1220, 1160, 536)
"""Sizes of segments to try: what MTUs of 9000, 4104, 1500, 1450, 1400, 1280 and smaller leave."""
INFO = struct.Struct("=60xI36xI16xQ28xI")
"""Fields of Linux's struct tcp_info (linux/tcp.h): tcpi_pmtu, tcpi_total_retrans, tcpi_bytes_acked,
tcpi_data_segs_out.
"""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one transfer took, by the receiver's count and the sender's TCP_INFO."""

    bytes: int
    seconds: float
    path_mtu: int
    """Bytes of the largest packet that the sender's kernel sends."""
    segments: int
    resent: int
    has_ended: bool
    """Whether all bytes arrived in time."""

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9


class ProbeServer:
    """Serves peers that have `key`, each connection on a thread, until `close`."""

    def __init__(self, host: str = "") -> None:
        self._key: bytes | None = None
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() and not host else socket.AF_INET
        if host:
            self._socket = socket.create_server((host, 0), family=family)
        else:
            dual = family == socket.AF_INET6
            self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name="probe server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def admit(self, key: bytes) -> None:
        """Serve peers with this key; before, nobody is served."""
        self._key = key

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(IDLE_SECONDS)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                if not self._slots.acquire(blocking=False):
                    peer.close()
                    continue
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer, suppress(OSError):
                peer.settimeout(IDLE_SECONDS)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                greeting = receive_exactly(peer, KEY_BYTES + 1)
                if self._key is None or not hmac.compare_digest(greeting[:KEY_BYTES], self._key):
                    return
                peer.sendall(READY)
                if greeting[KEY_BYTES:] == ECHO:
                    _echo(peer)
                else:
                    peer.sendall(COUNT.pack(_count(peer)))
        finally:
            self._slots.release()


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """ConnectionError if the peer ends before."""
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        if not part:
            raise ConnectionError("the peer closed the connection")
        found += part
    return found


def _echo(peer: socket.socket) -> None:
    while data := peer.recv(MESSAGE):
        peer.sendall(data)


def _count(peer: socket.socket) -> int:
    room = bytearray(CHUNK)
    total = 0
    while total < MOST_TRANSFER and (size := peer.recv_into(room)):
        total += size
    return total


def connect(address: str, port: int, key: bytes, mode: bytes, segment: int = 0) -> socket.socket:
    """A connection to a peer's server, after READY. `segment` limits the size of segments.
    OSError if the peer cannot be reached.
    """
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    peer = socket.socket(family, socket.SOCK_STREAM)
    try:
        peer.settimeout(CONNECT_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if segment:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        peer.connect((address, port))
        peer.sendall(key + mode)
        receive_exactly(peer, len(READY))
    except BaseException:
        peer.close()
        raise
    return peer


def round_trips(peer: socket.socket, samples: int) -> list[float]:
    """Microseconds of each round trip of a small message, sorted."""
    found = []
    message = bytes(MESSAGE)
    for _ in range(samples):
        start = time.perf_counter()
        peer.sendall(message)
        receive_exactly(peer, MESSAGE)
        found.append((time.perf_counter() - start) * 1e6)
    return sorted(found)


def transfer(address: str, port: int, key: bytes, seconds: float) -> Transfer:
    """Send for `seconds`, and wait until the peer has counted all of it. OSError if the peer cannot
    be reached by small messages.
    """
    with connect(address, port, key, SINK) as peer:
        start = time.perf_counter()
        sent = _send(peer, start + seconds)
        counted = _counted(peer)
        elapsed = time.perf_counter() - start
        mtu, resent, acked, segments = tcp_info(peer)
    arrived = counted if counted is not None else max(acked - KEY_BYTES - 1, 0)
    return Transfer(
        bytes=min(arrived, sent),
        seconds=elapsed,
        path_mtu=mtu,
        segments=segments,
        resent=resent,
        has_ended=counted is not None,
    )


def _send(peer: socket.socket, deadline: float) -> int:
    peer.settimeout(0.1)
    data = memoryview(bytes(CHUNK))
    sent = 0
    while time.perf_counter() < deadline and sent < MOST_TRANSFER - CHUNK:
        with suppress(TimeoutError):
            sent += peer.send(data)
    return sent


def _counted(peer: socket.socket) -> int | None:
    """The peer's count of bytes; None if not all of them arrive in time."""
    peer.settimeout(DRAIN_SECONDS)
    with suppress(OSError):
        peer.shutdown(socket.SHUT_WR)
        return int(COUNT.unpack(receive_exactly(peer, COUNT.size))[0])
    return None


def tcp_info(peer: socket.socket) -> tuple[int, int, int, int]:
    """The fields of INFO; 0 for those that an older kernel lacks."""
    data = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
    mtu, resent, acked, segments = INFO.unpack(data.ljust(INFO.size, b"\0"))
    return mtu, resent, acked, segments


def largest_segment(
    address: str, port: int, key: bytes, sizes: Sequence[int] = SEGMENT_SIZES
) -> int:
    """The largest of `sizes` whose segments arrive at the peer; 0 if none does. All are tried at
    once, because each that does not arrive takes a timeout.
    """

    def arriving(size: int) -> int:
        with suppress(OSError), connect(address, port, key, SINK, size) as peer:
            peer.settimeout(SEGMENT_SECONDS)
            peer.sendall(bytes(SEGMENT_TRIAL))
            peer.shutdown(socket.SHUT_WR)
            if COUNT.unpack(receive_exactly(peer, COUNT.size))[0] == SEGMENT_TRIAL:
                return size
        return 0

    with ThreadPoolExecutor(len(sizes)) as pool:
        return max(pool.map(arriving, sizes))


def all_reduce_times(
    address: str, key: bytes, rank: int, ranks: int, size: int, repeats: int
) -> list[float]:
    """Microseconds of each of `repeats` all-reduces of `size` bytes between hosts, as the ranks of
    a CPU plan transport them: a gather to rank 0, and its broadcast. The sum itself is not part of
    it. ConnectionError if a rank is lost, or data differs.
    """
    from penstock._native import Star

    star = Star(address, key, rank, ranks, size, IDLE_SECONDS)
    part, result = bytes([rank % 256]) * size, bytes([255]) * size
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        parts = star.gather(part)
        shared = star.share(result)
        times.append((time.perf_counter() - start) * 1e6)
        if parts is not None and any(
            got != bytes([at % 256]) * size for at, got in enumerate(parts, 1)
        ):
            raise ConnectionError("the part of a rank arrived changed")
        if shared is not None and shared != result:
            raise ConnectionError("the shared result arrived changed")
    return times
