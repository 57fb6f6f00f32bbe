"""Hardware of a file of the user's: its format is that of the files that ship."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli.main import main
from penstock.core import InvalidValueError, PenstockError
from penstock_ops.plan.hardware import ROOT, Node, accelerator, names, node, of_file, parse_target
from penstock_ops.plan.hardware.files import NEEDED, read_hardware
from tests.plan.conftest import read

FOUR = "accelerator: h100\naccelerators: 4\n"
PAIR = """name: pair-a10
title: Server with two A10
accelerator: a10-24gb
accelerators: 2
network_gb_per_s: 12.5
fabric_resources:
  rdma/port: 2
"""
OWN = """memory_mib: 98304
memory_gb_per_s: 1600
tflops: {bf16: 400, int8: 800}
link_gb_per_s: 28
linked: 8
per_node: 8
pcie_gb_per_s: 32
resource: example.com/device
"""

Written = Callable[[str, str], Path]
Result = TypeVar("Result")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written(name, text)`: the path of a file."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("kind", ["accelerators", "nodes"])
def test_a_copy_of_a_shipped_file_is_the_same_hardware(kind: str, tmp_path: Path) -> None:
    for name in names(kind):  # type: ignore[arg-type]
        copy = tmp_path / f"{name}.yaml"
        copy.write_bytes((ROOT / kind / f"{name}.yaml").read_bytes())
        own, shipped = parse_target(f"{copy}:2@3.5"), parse_target(f"{name}:2@3.5")
        assert (own.accelerator, own.node, own.count, own.price) == (
            shipped.accelerator,
            shipped.node,
            shipped.count,
            shipped.price,
        )
        assert own.on == f"{copy}:2"
        assert own.word == str(copy)


def test_a_node_of_four(written: Written) -> None:
    target = parse_target(f"{written('four.yaml', FOUR)}:3")
    assert (target.count, target.per_node, target.name) == (12, 4, "four")
    assert target.accelerator.linked == 4
    assert not target.node.verified if target.node else False


def test_a_node_of_a_device_of_ones_own(written: Written) -> None:
    written("own.yaml", OWN)
    path = written("node.yaml", "accelerator: own.yaml\naccelerators: 16\n")
    found = of_file(path)
    assert isinstance(found, Node)
    assert found.device.memory == 98304 * 2**20
    assert found.device.resource == "example.com/device"
    assert found.devices().per_node == 16


def test_two_devices_in_a_node_make_a_group_of_nodes(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """QwQ-32B as two stages of two, three copies: the deployment of source 000."""
    path = written("pair.yaml", PAIR)
    output = tmp_path / "plan.yaml"
    words = ["--on", f"{path}:6", "-tp", "2", "-pp", "2", "--replicas", "3", "--rate", "0.5"]
    words += ["--requests", "20", "--weights", "fp8", "-o", str(output)]
    assert main(["plan", "QwQ-32B", *words]) == 0
    plan = read(output)
    assert plan["target"]["per_node"] == 2
    assert plan["target"]["on"] == f"{path}:6"
    assert plan["target"]["fabric_resources"] == {"rdma/port": 2}
    choice = plan["choice"]
    assert (choice["replicas"], choice["devices"]) == (3, 12)
    assert (choice["tensor_parallel_size"], choice["pipeline_parallel_size"]) == (2, 2)
    assert "3 replicas of TP2 x PP2" in capsys.readouterr().out


def test_the_list_names_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--list-hardware"])
    printed = capsys.readouterr().out
    assert "--on FILE.yaml" in printed
    assert Path(printed.splitlines()[-1].strip(), "nodes").is_dir()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accelerator: h100\n", "accelerators is missing, which a node needs"),
        ("memory_mib: 5\n", "memory_gb_per_s is missing, which an accelerator needs"),
        ("", ":1: a mapping is expected"),
        ("- 1\n", ":1: a mapping is expected"),
        ("a: [\n", "not YAML"),
        (FOUR + "netwrk_gb_per_s: 5\n", ":3: unknown member 'netwrk_gb_per_s'; did you mean "),
        (FOUR + "1: 5\n", "unknown member 1, none of"),
        (FOUR + "zzz: 5\n", "unknown member 'zzz', none of accelerator, accelerators, name"),
        (FOUR + "network_gb_per_s: 0\n", ":3: network_gb_per_s is 0, expected a number of 0.001"),
        (FOUR + "network_gb_per_s: .nan\n", ":3: network_gb_per_s is nan"),
        (FOUR + "network_gb_per_s: true\n", "network_gb_per_s is True"),
        (FOUR + "name: ''\n", ":3: name is ''"),
        (FOUR + 'name: "a\\nb"\n', "name is 'a\\nb', expected a text without control characters"),
        ("accelerator: h100\naccelerators: 0\n", ":2: accelerators is 0, expected a whole number"),
        ("accelerator: h100\naccelerators: 1.5\n", "accelerators is 1.5"),
        ("accelerator: h1000\naccelerators: 4\n", "accelerator is 'h1000', expected one of a10-"),
        ("accelerator: dell-xe9680-h100\naccelerators: 4\n", "expected one of a10-24gb"),
        ("accelerator: none.yaml\naccelerators: 4\n", "none.yaml: No such file or directory"),
        (OWN.replace("bf16: 400, ", ""), ":3: tflops.bf16 is missing"),
        (OWN.replace("bf16", "fp16"), "fp16"),
        (OWN.replace("98304", "1e9"), "memory_mib is "),
    ],
)
def test_files_that_are_no_hardware(
    written: Written, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("own.yaml", text)
    assert main(["plan", "Qwen3-8B", "--on", f"{path}:2"]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert "own.yaml" in error or "none.yaml" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "on",
    ["missing.yaml", "missing.yaml:2", "/x.yml:0", "x.yaml:-1", "x.yaml@0", "\0.yaml", ".yaml"],
)
def test_targets_that_name_no_file(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Qwen3-8B", "--on", on]) in (1, 2)
    assert "yaml" in capsys.readouterr().err or "yml" in on


def test_a_number_of_thousands_of_digits_is_an_error() -> None:
    with pytest.raises(InvalidValueError, match="N of 1 to 999999"):
        parse_target(f"h100:{'9' * 5000}")


def attempted(act: Callable[[], Result]) -> tuple[Result | None, str]:
    """The result, or none and the text of the error."""
    try:
        return act(), ""
    except PenstockError as error:
        return None, str(error)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.sampled_from([*NEEDED["accelerators"], *NEEDED["nodes"], "x"]),
    value=st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([1])
    ),
)
def test_any_value_is_hardware_or_a_named_error(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "any.yaml"
    row = yaml.safe_load(OWN) if key in NEEDED["accelerators"] else yaml.safe_load(FOUR)
    path.write_text(yaml.safe_dump({**row, key: value}), encoding="utf-8")
    target, why = attempted(lambda: parse_target(str(path)))
    if target is None:
        assert "any.yaml" in why
    else:
        assert target.count >= 1
        assert target.accelerator.memory > 0
        assert target.accelerator.bandwidth > 0


def test_mutations_of_a_file_are_hardware_or_one_error(tmp_path: Path) -> None:
    """Bytes changed, removed and doubled, with a fixed seed."""
    draw, path = random.Random(37), tmp_path / "mutated.yaml"
    for text in (OWN, PAIR):
        for _ in range(150):
            data = bytearray(text.encode())
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(len(data))
                data[at : at + draw.randint(0, 2)] = bytes(
                    [draw.randrange(256)] * draw.randint(0, 2)
                )
            path.write_bytes(data)
            found, why = attempted(lambda: read_hardware(path))
            if found is None:
                assert re.match(rf"{re.escape(str(path))}[:,]", why)
            else:
                assert set(NEEDED[found[0]]) <= set(found[1])


def test_shipped_hardware_keeps_its_numbers() -> None:
    """By a reader of YAML that is not ours."""
    for name in names("accelerators"):
        row = yaml.safe_load((ROOT / "accelerators" / f"{name}.yaml").read_text())
        found = accelerator(name)
        assert found.memory == row["memory_mib"] << 20
        assert found.bandwidth == row["memory_gb_per_s"] * 1e9
    for name in names("nodes"):
        row = yaml.safe_load((ROOT / "nodes" / f"{name}.yaml").read_text())
        assert (node(name).device.name, node(name).count) == (
            row["accelerator"],
            row["accelerators"],
        )
