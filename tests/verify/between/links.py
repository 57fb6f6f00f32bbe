"""Faults of a link between two hosts that `tests.namespaces.Hosts` has made, by tc alone: the
kernel of a test need not have netem, actions or nftables.
"""

from __future__ import annotations

import subprocess

from tests.namespaces import Hosts, ip

PASS, DROP = -1 & 0xFFFFFFFF, 2
"""TC_ACT_UNSPEC and TC_ACT_SHOT of linux/pkt_cls.h."""
RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h: a load of a random word."""
LOAD_WORD, LOAD_HALF, LOAD_BYTE, LOAD_LENGTH = 0x20, 0x28, 0x30, 0x80
JUMP_EQUAL, JUMP_GREATER, RETURN = 0x15, 0x25, 0x06
ETHERTYPE, PROTOCOL, TCP_PORT = 12, 23, 36
"""Offsets in a frame of IPv4 without options; the port is the destination's."""


def tc(host: str | None, *words: str) -> None:
    inside = ["ip", "netns", "exec", host] if host else []
    done = subprocess.run([*inside, "tc", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"tc {' '.join(words)}: {done.stderr.strip()}")


def shape(hosts: Hosts, at: int, rate: str) -> None:
    """Limit both directions of a host's link."""
    tc(hosts.names[at], "qdisc", "replace", "dev", "eth0", "root", *tbf(rate))
    tc(None, "qdisc", "replace", "dev", hosts.links[at], "root", *tbf(rate))


def tbf(rate: str) -> list[str]:
    return ["tbf", "rate", rate, "burst", "32kb", "latency", "50ms"]


def lose(hosts: Hosts, at: int, share: float) -> None:
    """Drop a share of the packets that arrive at a host, and of those that it sends."""
    limit = int(share * 2**32)
    program = [(LOAD_WORD, 0, 0, RANDOM), (JUMP_GREATER, 0, 1, limit), *verdicts()]
    single_packets(hosts)
    filter_packets(hosts, at, program)
    # A drop in the host's own egress would be seen by its TCP as a full queue.
    filter_packets(hosts, at, program, on_bridge=True)


def hide_large(hosts: Hosts, at: int, size: int) -> None:
    """Drop frames above `size` bytes on their way to a host, without a message of ICMP."""
    single_packets(hosts)
    program = [(LOAD_LENGTH, 0, 0, 0), (JUMP_GREATER, 1, 0, size), *verdicts()]
    filter_packets(hosts, at, program)


def close_port(hosts: Hosts, at: int, port: int) -> None:
    """Drop TCP packets to a port of a host."""
    program = [
        (LOAD_HALF, 0, 0, ETHERTYPE),
        (JUMP_EQUAL, 0, 4, 0x0800),
        (LOAD_BYTE, 0, 0, PROTOCOL),
        (JUMP_EQUAL, 0, 2, 6),
        (LOAD_HALF, 0, 0, TCP_PORT),
        (JUMP_EQUAL, 1, 0, port),
        *verdicts(),
    ]
    filter_packets(hosts, at, program)


def close_all_ports(hosts: Hosts, at: int) -> None:
    """Drop all IPv4 packets to a host."""
    program = [(LOAD_HALF, 0, 0, ETHERTYPE), (JUMP_EQUAL, 1, 0, 0x0800), *verdicts()]
    filter_packets(hosts, at, program)


def verdicts() -> list[tuple[int, int, int, int]]:
    """The end of a program: a jump to the first passes the packet, to the second drops it."""
    return [(RETURN, 0, 0, PASS), (RETURN, 0, 0, DROP)]


def single_packets(hosts: Hosts) -> None:
    """Let a filter see packets of the wire's size: without segmentation offload a frame of up to
    64 KiB would cross a veth pair as one.
    """
    for place, name in enumerate(hosts.names):
        ip("-n", name, "link", "set", "eth0", "gso_max_segs", "1")
        ip("link", "set", hosts.links[place], "gso_max_segs", "1")


def filter_packets(
    hosts: Hosts, at: int, program: list[tuple[int, int, int, int]], *, on_bridge: bool = False
) -> None:
    """Run a program of classic BPF for packets that arrive at a host, or at the bridge from it."""
    host, device = (None, hosts.links[at]) if on_bridge else (hosts.names[at], "eth0")
    bytecode = ",".join([str(len(program)), *(" ".join(map(str, row)) for row in program)])
    tc(host, "qdisc", "replace", "dev", device, "clsact")
    words = ("filter", "add", "dev", device, "ingress", "bpf", "da", "bytecode", bytecode)
    tc(host, *words)
