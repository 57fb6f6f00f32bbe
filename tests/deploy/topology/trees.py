"""Topologies to read: the one that source 002 prints, repaired by hand, and a small one."""

from __future__ import annotations

import re
from pathlib import Path

from penstock_ops.deploy.topology.grammar import Element

PRINTED = Path(__file__).parents[2] / "fixtures/deploy/source-002-topology.xml"
"""Appendix I of "Deploy Distributed LLM Inference with GPUDirect RDMA over InfiniBand in VMware
Private AI", with the faults that it has in print.
"""
FAULTS: tuple[tuple[str, str, int], ...] = (
    (r'"\n(\w+=)', r'" \1', 32),  # tags broken over lines
    (r"^  arch=", "  <cpu numaid=NUMBER arch=", 2),  # two openings lost
    ("000004:03.0", "0000:04:03.0", 1),
    (r"</apu>", "</gpu>", 2),
    (r'(tclass="0x068000"/>\n)(\s+</pci>)', r"\1</gpu>\2", 1),  # the first GPU has no end
    (r"^net name", "<net name", 1),
    (r"(\n\s*)(<pci [^<]*\n\s*)(<net )", r"\1\2<nic>\3", 3),
    (r"\b[aq]dr=", "gdr=", 5),
    (r' [gq]uid="\w+"', "", 8),  # those of one host
    ('class="0x020000"', 'class="0x020700"', 8),  # InfiniBand
)
"""Faults of the print: a pattern, what belongs there, and how often the print has it."""


def repaired() -> str:
    """The printed file with each fault repaired by its pattern, and nothing else changed."""
    text = PRINTED.read_text()
    for pattern, right, times in FAULTS:
        text, found = re.subn(pattern, right, text, flags=re.MULTILINE)
        assert found == times, (pattern, found)
    for number in ('"0"', '"1"'):
        text = text.replace("NUMBER", number, 1)
    return text


def shape(element: Element) -> tuple[object, ...]:
    """An element with all below it, without the order of children and attributes."""
    children = sorted(map(shape, element.children), key=repr)
    return (element.name, tuple(sorted(element.attributes.items())), tuple(children))


PAIR = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:00:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:04:00.0" class="0x030200" device="0x2330" link_speed="32.0 GT/s PCIe">
        <gpu dev="0" sm="90"/>
      </pci>
      <pci busid="0000:04:01.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""
"""One GPU and its adapter, without a fault."""
