"""Reading a topology file as NCCL does. The expectations are those of src/graph/xml.cc of
NVIDIA/nccl 2.30.7, whose reader, compiled, agreed on 20,000 mutations: the same 5,772 were read to
the same trees.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.deploy.topology.grammar import (
    ATTRIBUTES,
    CHILDREN,
    Element,
    TopologyError,
    c_number,
    lane_rate,
)
from penstock_ops.deploy.topology.reader import read_topology
from penstock_ops.deploy.topology.writer import write_topology
from tests.deploy.topology.trees import PAIR, shape

HEAD = '<system version="1">'
REFUSED = {
    "": (1, "no element <system"),
    '<?xml version="1.0"?>\n': (1, "no XML declaration"),
    f"{HEAD}\n\t<cpu/></system>": (2, "a tab between tags"),
    f"{HEAD}\n text</system>": (2, "'t' between tags"),
    f'{HEAD}<cpu numaid="0"\narch="x"/></system>': (1, "a line break in <cpu>"),
    f"{HEAD}<cpu\n/></system>": (1, "a line break in <cpu>"),
    f'{HEAD}<cpu numaid = "0"/></system>': (1, "has no quotes"),
    f"{HEAD}<cpu numaid=0/></system>": (1, "the value of numaid has no quotes"),
    f'{HEAD}<cpu numaid="0"arch="x"/></system>': (1, "'a' in <cpu>"),
    f"{HEAD}\n<cpu>\n</pci></system>": (3, "</pci> in <cpu> of line 2: write </cpu>"),
    f"{HEAD}\n<cpu>\n</cpu>": (3, "<system> of line 1 has no end"),
    f"{HEAD}\n<cpu numaid=": (2, "the file ends in a tag"),
    f"{HEAD}</system >": (1, "has more than a name"),
    f"{HEAD}</system></cpu>": (1, "</cpu> closes nothing"),
    f"{HEAD}<!-- </system>": (1, "a comment has no end"),
    "<system></system>": (1, "<system> has no version"),
    '<system version="2"></system>': (1, "NCCL reads version 1"),
    f'{HEAD}<cpu numaid="{"0" * 254}"/></system>': (1, "over 253 characters"),
    f"{HEAD}<{'c' * 254} /></system>": (1, "a name of more than 253 characters"),
    f"{HEAD}{'<cpu/>' * 255}</system>": (1, "at most 255 elements"),
    f"{HEAD}<cpu>{'<pci>' * 200}": (1, "more than 100 elements inside each other"),
    f"{HEAD}<cpu/>\0</system>": (1, "a control character, U+0000"),
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_where_nccl_ends(text: str) -> None:
    line, why = REFUSED[text]
    with pytest.raises(TopologyError) as error:
        read_topology(text.encode())
    assert why in error.value.text
    assert error.value.line == line


def test_bytes_that_no_config_map_holds() -> None:
    for data, why in ((HEAD.encode() + b"\n\xff", "not UTF-8"), (b" " * (2**20 + 1), "1048576")):
        with pytest.raises(TopologyError, match=why):
            read_topology(data)


NOTICED = {
    "two spaces": ('<pci  busid="a"/>', {"busid": "a"}, "one space before each"),
    "no value": ("<pci busid/>", {"busid": ""}, "busid has no value"),
    "twice": ('<pci busid="a" busid="b"/>', {"busid": "a"}, "given twice"),
    "text after /": ('<pci busid="a"/b>', {"busid": "a"}, "reads over 'b'"),
    "an entity": ('<pci busid="&lt;"/>', {"busid": "&lt;"}, "as they are"),
    "a line break in a value": ('<pci busid="a\n"/>', {"busid": "a\n"}, "line break in its value"),
}


@pytest.mark.parametrize("name", NOTICED)
def test_what_nccl_reads_in_another_way(name: str) -> None:
    text, attributes, why = NOTICED[name]
    found = read_topology(f"{HEAD}<cpu>{text}</cpu></system>".encode())
    (pci,) = found.system.every("pci")
    assert pci.attributes == attributes
    assert why in found.notices[0].text


def test_what_nccl_reads_without_a_word() -> None:
    text = f"""<!-- <cpu> -->{HEAD}\r\n<cpu numaid='0' />\n<!---->\n</system>\n"""
    found = read_topology(text.encode())
    assert shape(found.system) == (
        "system",
        (("version", "1"),),
        (("cpu", (("numaid", "0"),), ()),),
    )
    assert found.notices == []


def test_elements_of_other_places_are_skipped_with_all_in_them() -> None:
    text = f'{HEAD}<cpu><gpu><nvlink/></pci><pci busid="a"/></cpu><x/></system>'
    found = read_topology(text.encode())
    assert [each.name for each in found.system.descendants()] == ["cpu", "pci"]
    assert [notice.text for notice in found.notices] == [
        "NCCL skips <gpu> in <cpu>, with all in it",
        "NCCL skips <x> in <system>, with all in it",
    ]


def test_the_seventeenth_attribute() -> None:
    names = [*ATTRIBUTES["net"], "one", "two", "three"]
    row = " ".join(f'{name}="1"' for name in names)
    found = read_topology(f"{HEAD}<cpu><nic><net {row}/></nic></cpu></system>".encode())
    (net,) = found.system.every("net")
    assert [*net.attributes] == names[:16]
    assert "drops two, three" in found.notices[0].text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("0x1f", 31),
        ("017", 15),
        (" -3", -3),
        ("1e5", 1),
        ("08", 0),
        ("", None),
        ("x", None),
    ],
)
def test_numbers_as_c_reads_them(text: str, number: int | None) -> None:
    assert c_number(text) == number


@pytest.mark.parametrize(
    ("speed", "rate"),
    [
        ("32.0 GT/s PCIe", 240),
        ("16 GT/s", 120),
        ("64.0 GT/s PCIe", 480),
        ("32GT/s", 60),  # as lspci prints it
        ("64 GT/s", 60),
        ("16.0 GT/s", 60),
        ("", 60),
    ],
)
def test_the_rate_of_a_lane(speed: str, rate: int) -> None:
    assert lane_rate(speed) == rate


VALUES = st.text("0azé .:,/-_=+'>", max_size=8)


@st.composite
def elements(draw: st.DrawFn, name: str = "system", depth: int = 0) -> Element:
    names = draw(st.lists(st.sampled_from(ATTRIBUTES[name] or ("x",)), unique=True, max_size=2))
    attributes = {each: draw(VALUES) for each in names}
    if name == "system":
        attributes = {**attributes, "version": "1"}
    kinds = CHILDREN.get(name, ()) if depth < 5 else ()
    inside = draw(st.lists(st.sampled_from(kinds), max_size=2)) if kinds else []
    return Element(name, attributes, [draw(elements(kind, depth + 1)) for kind in inside])


@given(elements())
def test_what_is_written_is_read(system: Element) -> None:
    found = read_topology(write_topology(system).encode())
    assert shape(found.system) == shape(system)
    assert found.notices == []


@pytest.mark.parametrize("value", ['"', "a\nb", "<", "x" * 254, "\x7f"])
def test_what_cannot_be_written(value: str) -> None:
    with pytest.raises(TopologyError, match="cannot be written"):
        write_topology(Element("system", {"name": value}))


def test_a_file_of_the_form_that_is_written() -> None:
    assert write_topology(read_topology(PAIR.encode()).system) == PAIR
