"""What `nvidia-smi -q -x` reports, which checks of NVIDIA devices share.

The XML names its values, so that drivers may add some; a cut text is no XML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from xml.parsers import expat

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import whole
from penstock_ops.verify.checks.pci import CLASSES, VENDORS, accelerators_on_bus
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import accelerator_of
from penstock_ops.verify.finding import Finding, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command, Source

# A GPU whose firmware hangs blocks nvidia-smi for 45 s.
SMI = Command("nvidia-smi", ("nvidia-smi", "-q", "-x"), 60.0)
SOURCES: tuple[Source, ...] = (SMI, CLASSES, VENDORS)
ABSENT = "N/A"
OPTIONAL = ("gpu_recovery_action", "ecc_errors/aggregate/sram_threshold_exceeded", "fabric")
"""Elements that only newer drivers have, then for all GPUs."""


@dataclass(slots=True)
class Element:
    tag: str
    line: int
    attributes: dict[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        return [child for child in self.children if child.tag == tag]

    def find(self, path: str) -> Element | None:
        """The element at a path of tags, if it is there. ParseError if it is there twice."""
        here: Element | None = self
        for tag in path.split("/"):
            found = here.all(tag) if here else []
            if len(found) > 1:
                raise ParseError(found[1].line, tag, f"one {tag}")
            here = found[0] if found else None
        return here

    def get(self, path: str) -> Element:
        found = self.find(path)
        if found is None:
            raise ParseError(self.line, self.tag, f"{path} in it")
        return found

    def flag(self, path: str, yes: str = "Yes", no: str = "No") -> bool | None:
        """A value of two words; None where the device does not report it."""
        found = self.get(path)
        if found.text not in (yes, no, ABSENT):
            raise ParseError(found.line, found.text, f"{yes}, {no} or {ABSENT}")
        return None if found.text == ABSENT else found.text == yes

    def count(self, path: str) -> int | None:
        """A whole number; None where the device does not report it."""
        found = self.get(path)
        return None if found.text == ABSENT else whole(found.text, found.line)


@dataclass(frozen=True, slots=True)
class Gpu:
    bus_id: str
    """As in sysfs: 0000:19:00.0."""
    product: str
    element: Element

    @property
    def accelerator(self) -> str:
        """Its name in the table of expected values; empty for one that is not in it."""
        return accelerator_of(self.product)


@dataclass(frozen=True, slots=True)
class Inventory:
    driver: str
    gpus: tuple[Gpu, ...]


def read_xml(text: str) -> Element:
    parser = expat.ParserCreate()
    root = Element("", 1, {})
    open_elements = [root]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, parser.CurrentLineNumber, attributes)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(tag: str) -> None:
        element = open_elements.pop()
        element.text = element.text.strip()
        if element.text and element.children:
            raise ParseError(element.line, element.text, f"only elements in {tag}")

    def data(words: str) -> None:
        open_elements[-1].text += words

    def entity(name: str, *_: object) -> None:
        raise ParseError(parser.CurrentLineNumber, name, "no entities, which could expand")

    parser.EntityDeclHandler = entity
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = data
    lines = text.split("\n")
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError) as error:
        number = min(getattr(error, "lineno", 1), len(lines))
        raise ParseError(number, lines[number - 1], f"XML: {error}") from error
    return root


@lru_cache(maxsize=4)
def parse(text: str) -> Inventory:
    """The GPUs of a text, which several checks of a node read."""
    log = read_xml(text).get("nvidia_smi_log")
    gpus = tuple(Gpu(sysfs_name(gpu), gpu.get("product_name").text, gpu) for gpu in log.all("gpu"))
    attached = log.get("attached_gpus")
    if whole(attached.text, attached.line) != len(gpus):
        raise ParseError(attached.line, attached.text, f"{len(gpus)}, the number of gpu elements")
    if len({gpu.bus_id for gpu in gpus}) != len(gpus):
        raise ParseError(attached.line, attached.text, "GPUs with different bus ids")
    for path in OPTIONAL:
        if len({gpu.element.find(path) is None for gpu in gpus}) > 1:
            raise ParseError(attached.line, path, "the same elements of all GPUs")
    return Inventory(log.get("driver_version").text, gpus)


def sysfs_name(gpu: Element) -> str:
    """Bus id with the domain in four digits, as the kernel writes it."""
    domain, _, rest = gpu.attributes.get("id", "").partition(":")
    if not rest or len(domain) < 4:
        raise ParseError(gpu.line, gpu.attributes.get("id", ""), "a bus id")
    return f"{domain[-4:]}:{rest}".lower()


def gpus(check: NodeCheck, node: Snapshot, needs: Needs) -> tuple[Inventory, list[Finding]]:
    """The GPUs of the driver, or none and the finding why."""
    smi = node[SMI.name]
    nothing = Inventory("", ())
    if smi.is_present:
        found = parse(smi.text)
        if found.gpus:
            return found, []
        status = Status.UNKNOWN if needs.devices else Status.SKIPPED
        remedy = "load the driver, or grant the pod its devices"
        return nothing, [check.finding(node, status, "nvidia-smi lists no GPU", remedy=remedy)]
    if not accelerators_on_bus(node) and not needs.devices:
        return nothing, [check.finding(node, Status.SKIPPED, "no GPU on the PCI bus")]
    return nothing, [check.absent(node, smi, is_needed=True)]


def unreported(check: NodeCheck, node: Snapshot, gpu: Gpu, what: str) -> Finding:
    """The finding for a value that the driver gives as N/A: unknown for devices of data centres,
    which report it.
    """
    status = Status.UNKNOWN if gpu.accelerator else Status.SKIPPED
    return check.finding(
        node,
        status,
        f"the driver reports no {what}",
        device=gpu.bus_id,
        remedy="update the driver; reset the device if it did report it",
    )


def each(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Gpu | Finding]:
    """All GPUs, or the finding why there are none."""
    inventory, findings = gpus(check, node, needs)
    yield from findings
    yield from inventory.gpus
