"""The boards as Grafana reads them."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.monitoring.boards import BOARDS, COLUMNS, board_text
from penstock_ops.deploy.monitoring.files import SCRAPE
from penstock_ops.deploy.monitoring.panels import Board

UNITS = {"short", "s", "percentunit", "bytes", "Bps", "reqps"}
NAME = re.compile(r"\b(?:vllm|penstock):\w+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def tree(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(board_text(board))
    return found


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_panels_have_places_of_their_own(board: Board) -> None:
    panels = tree(board)["panels"]
    assert [panel["id"] for panel in panels] == [*range(1, len(panels) + 1)]
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_panels_use_the_variables_of_their_board(board: Board) -> None:
    found = tree(board)
    names = {one["name"] for one in found["templating"]["list"]}
    for panel in found["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["targets"], panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used, target
            assert used <= names
            assert target["legendFormat"]
            assert target["datasource"]["uid"] == "${datasource}"
        assert len({target["legendFormat"] for target in panel["targets"]}) == len(panel["targets"])


def test_the_boards_are_different_to_grafana() -> None:
    assert len({board.uid for board in BOARDS}) == len({board.title for board in BOARDS}) == 3
    assert all(len(board.uid) <= 40 for board in BOARDS)
    for board in BOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles)


def test_documents_have_every_metric_of_a_panel(repository: Path) -> None:
    pages = ("gateway-reference.md", "kv-tiers.md", "operating.md")
    text = "\n".join((repository / "docs" / page).read_text() for page in pages)
    words = set(re.findall(r"penstock:\w+|_\w+", text))
    used = {
        SUFFIX.sub("", name)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        for name in NAME.findall(query.expression)
        if name.startswith("penstock:")
    }
    documented = {name for name in used if name in words or _abbreviated(name, words)}
    assert used - documented == set()


def _abbreviated(name: str, words: set[str]) -> bool:
    """Whether a table has the name by its end: `penstock:kv_tier_hits_total`, `_misses_total`."""
    stem = "penstock:kv_tier"
    return name.startswith(stem) and name.removeprefix(stem) in words


def test_plain_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new/boards"
    assert main(["deploy", "dashboards", "-o", str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        str(folder / name)
        for name in (
            "penstock-server.json",
            "penstock-tiers.json",
            "penstock-gateway.json",
            "rules.yaml",
            "scrape.yaml",
        )
    ]
    assert json.loads((folder / "penstock-tiers.json").read_text())["uid"] == "penstock-tiers"
    rules = yaml.safe_load((folder / "rules.yaml").read_text())["groups"][0]["rules"]
    assert len(rules) == 12
    jobs = yaml.safe_load((folder / "scrape.yaml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["penstock", "penstock-gateway"]
    assert (folder / "scrape.yaml").read_text() == SCRAPE


def test_objects(tmp_path: Path) -> None:
    words = ["--objects", "--name", "llama", "--label", "release=kps", "--label", "a.b/c="]
    assert main(["deploy", "dashboards", "-o", str(tmp_path), *words]) == 0
    found = {path.name: yaml.safe_load(path.read_text()) for path in tmp_path.iterdir()}
    rule = found.pop("prometheus-rule.yaml")
    assert rule["kind"] == "PrometheusRule"
    assert rule["metadata"] == {"name": "llama", "labels": {"release": "kps", "a.b/c": ""}}
    assert len(rule["spec"]["groups"][0]["rules"]) == 12
    assert {made["metadata"]["name"] for made in found.values()} == {
        "llama-dashboard-server",
        "llama-dashboard-tiers",
        "llama-dashboard-gateway",
    }
    for made in found.values():
        assert made["metadata"]["labels"] == {
            "grafana_dashboard": "1",
            "release": "kps",
            "a.b/c": "",
        }
        (text,) = made["data"].values()
        assert json.loads(text)["tags"] == ["penstock"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--label", "release=kps"], 1, "--label is for objects: give --objects, too"),
        (["--objects", "--label", "release"], 2, "expected LABEL=VALUE"),
        (["--objects", "--label", "a b=c"], 2, "expected LABEL=VALUE"),
        (["--objects", "--label", "a=\n"], 2, "expected LABEL=VALUE"),
        (["--name", "Llama"], 2, "--name is 'Llama'"),
        (["--plan", "/nowhere/plan.yaml"], 1, "/nowhere/plan.yaml"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path,
    words: list[str],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["deploy", "dashboards", "-o", str(tmp_path / "x"), *words]) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["deploy", "dashboards", "-o", str(tmp_path / "file/x")]) == 1
    assert f"{tmp_path}/file/x: Not a directory" in capsys.readouterr().err
