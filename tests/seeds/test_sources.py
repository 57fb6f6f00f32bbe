"""docs/sources.md: every command and manifest of the sources has a row there, each row's test
exists, and each command of Penstock parses.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main, parser
from penstock_lab.bench.main import parsers
from tests.seeds.sources import ROOT, Command, Row, commands, manifests, rows

ROWS = rows()
COUNTS = {"000": 30, "001": 20, "002": 59, "003": 21, "004": 17}
SHOWN = {"works", "CPUs only"}
"""Verdicts that a test shows."""
OPEN = {"partly", "missing"}
VERDICTS = SHOWN | OPEN | {"refused", "n/a"}
PUBLISHED = {"000": 5, "002": 78}
"""Rows of the groups in tests/fixtures/deploy."""


def test_rows_are_numbered_without_gaps_in_the_order_of_the_sources() -> None:
    wanted = [source for source, count in COUNTS.items() for _ in range(count)]
    assert [row.source for row in ROWS.values()] == wanted
    assert list(ROWS) == list(range(1, len(wanted) + 1))


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: str(row.number))
def test_a_verdict_has_its_test_or_its_reason(row: Row) -> None:
    assert row.verdict in VERDICTS
    if row.verdict in {"partly", "refused", "n/a"}:
        assert row.reason
    assert row.verdict not in SHOWN or row.tests
    assert row.verdict != "refused" or row.tests, "a refusal is shown by a test, too"
    for test in row.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), path
        assert not name or name in functions(path), test


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_commands_of_penstock_parse() -> None:
    """Files and addresses in them are placeholders."""
    own, of_bench = parser(), parsers()
    texts = {text for row in ROWS.values() for text in row.commands}
    assert len(texts) > 50
    for text in sorted(texts):
        words = shlex.split(text)
        if words[0] == "bench":
            of_bench[words[1]].parse_args(words[2:])
        else:
            own.parse_args(words)


@pytest.mark.parametrize("command", list(commands()), ids=lambda one: one.name)
def test_a_command_has_a_row_that_says_what_becomes_of_it(command: Command) -> None:
    row = ROWS[command.row]
    assert row.source == command.source
    if command.outcome == "runs":
        assert row.verdict in SHOWN | OPEN
        assert row.commands
    elif command.outcome == "refused":
        _, _, reason = command.reason.partition(": ")
        text = f"{row.verdict}: {row.reason}".replace("`", "")
        assert "refused" in text
        assert reason
        assert reason in text
    else:
        answered = row.commands or row.verdict in {"n/a", "missing"}
        assert answered, "neither a command of Penstock nor a reason why there is none"


@pytest.mark.parametrize(
    ("path", "row", "text"), list(manifests()), ids=lambda each: str(each)[:20]
)
def test_a_manifest_has_a_row_and_is_yaml(path: Path, row: int, text: str) -> None:
    assert ROWS[row].source == path.name.split("-")[1].removesuffix(".yaml")
    assert isinstance(yaml.safe_load(text), dict)


@pytest.mark.parametrize(("source", "row"), PUBLISHED.items())
def test_published_groups_have_rows(source: str, row: int) -> None:
    assert (ROOT / f"tests/fixtures/deploy/source-{source}.yaml").is_file()
    assert ROWS[row].source == source


@pytest.mark.parametrize(
    ("name", "status", "findings"),
    [
        ("source-000-cluster", 0, ()),
        ("source-001", 0, ()),
        (
            "source-002-cluster",
            1,
            (
                "NicClusterPolicy belongs to no namespace",
                "mofed-test-pod-1: error: rdma/rdma_shared_devices_a: limit None, request 1",
                "gdr-test-pod-1: error: nvidia.com/gpu: limit None, request 8",
                "mpi-nccl-cluster: warning: privileged",
            ),
        ),
    ],
)
def test_the_linter_reads_the_objects(
    name: str, status: int, findings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / f"tests/seeds/{name}.yaml"
    assert main(["deploy", "lint", str(path)]) == status
    output = capsys.readouterr()
    text = output.out + output.err
    assert not [finding for finding in findings if finding not in text]


def test_a_policy_of_the_source_offers_the_resources_that_pods_request() -> None:
    """Each of the 8 names has 63 devices of one interface."""
    path = ROOT / "tests/seeds/source-002-cluster.yaml"
    (policy,) = (
        each
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] == "NicClusterPolicy"
    )
    plugin = policy["spec"]["rdmaSharedDevicePlugin"]
    resources = json.loads(plugin["config"])["configList"]
    assert [each["resourceName"][-1] for each in resources] == list("abcdefgh")
    interfaces = [each["selectors"]["ifNames"] for each in resources]
    assert interfaces == [[f"ibs{number}"] for number in range(65, 80, 2)]
    text = (ROOT / "tests/fixtures/deploy/source-002.yaml").read_text(encoding="utf-8")
    requested = set(re.findall(r"rdma/(rdma_shared_devices_\w)", text))
    assert requested == {each["resourceName"] for each in resources}
