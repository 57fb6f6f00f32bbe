"""10,000 mutated topology files: no error but the typed one, and nothing broken passes in silence.

What is broken, an XML parser says: a file that is no XML is refused, or has a notice.
"""

from __future__ import annotations

import random
from xml.etree import ElementTree

from penstock_ops.deploy.topology.faults import ERROR, WARNING
from penstock_ops.deploy.topology.grammar import TopologyError
from penstock_ops.deploy.topology.lint import lint_topology
from penstock_ops.deploy.topology.reader import Topology, read_topology
from penstock_ops.deploy.topology.writer import write_topology
from tests.deploy.topology.trees import PAIR, repaired, shape

SEED, COUNT = 37, 10_000
PIECES = (
    *(" ", "  ", "\n", "\t", "\r\n", "\0", '"', "'", "<", ">", "/", "=", "&", "é", "\x1b[1m"),
    *("</", "/>", "<pci>", "</pci>", "<nic/>", ' busid="x"', "1e+05", ",5", "<!--", "-->", "<?"),
)


def mutated(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(text))
        end = at + chance.choice((1, 1, 2, 5, 40))
        lines = text.split("\n")
        line, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[line], lines[other] = lines[other], lines[line]
        text = chance.choice(
            (
                text[:at] + text[end:],
                text[:at] + chance.choice(PIECES) + text[at:],
                text[:at] + chance.choice(PIECES) + text[end:],
                text[:end] + text[at:],
                text[: at + 1],
                "\n".join(lines),
                "\n".join(lines[:line] + lines[line + 1 :]) or " ",
            )
        )
    return text


def is_xml(text: str) -> bool:
    try:
        ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return False
    return True


def read(data: bytes) -> Topology | TopologyError:
    try:
        return read_topology(data)
    except TopologyError as error:
        return error


def test_mutated_files() -> None:
    chance = random.Random(SEED)
    printed = repaired()
    refused = 0
    for number in range(COUNT):
        text = mutated(printed if number % 200 == 0 else PAIR, chance)
        found, faults = read(text.encode()), lint_topology(text.encode())
        severities = {fault.severity for fault in faults}
        assert all(fault.text.isprintable() for fault in faults), text
        if isinstance(found, TopologyError):
            refused += 1
            assert 1 <= found.line <= text.count("\n") + 1
            assert str(found).isprintable()
            assert ERROR in severities
            continue
        assert severities & {ERROR, WARNING} or is_xml(text), text
        if not severities & {ERROR, WARNING}:
            # A file without a fault is one that NCCL, and we, read back to the same tree.
            again = read_topology(write_topology(found.system).encode())
            assert shape(again.system) == shape(found.system)
    assert COUNT // 3 < refused < COUNT
