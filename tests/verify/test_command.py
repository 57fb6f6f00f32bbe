"""`penstock verify` in this process: flags, exit status, reports."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.verify import command
from penstock_ops.verify.between.judgement import CHECKS as BETWEEN
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.verdict import Verdict, verdict

PLAN = Path(__file__).parents[2] / "deploy" / "helm" / "plan.yaml"
LIGHT = "devices,limits,huge-pages,hca"
"""Checks without a measurement."""


def finding(status: Status, **changes: Any) -> Finding:
    members = {"check": "ecc", "layer": Layer.DEVICE, "node": "n", "device": "d", "summary": "s"}
    return Finding(**{**members, "status": status, "remedy": "r", **changes})


def test_this_machine_is_judged_or_skipped_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, suites = tmp_path / "report.json", tmp_path / "junit.xml"
    words = ["verify", "--plan", str(PLAN), "--checks", LIGHT]
    status = main([*words, "--json", str(report), "--junit", str(suites)])
    printed = capsys.readouterr().out
    found = json.loads(report.read_text())
    assert found["schema"] == 1
    assert {each["check"] for each in found["findings"]} == set(LIGHT.split(","))
    assert all(each["summary"] for each in found["findings"])
    assert {each["node"] for each in found["findings"]} == {platform.node()}
    assert status == {"holds": 0, "does not hold": 1, "not proven": 3}[found["verdict"]]
    assert f"plan.yaml (SmolLM2-135M): {found['verdict']}" in printed
    root = ElementTree.fromstring(suites.read_text())
    assert int(root.attrib["tests"]) == len(root.findall(".//testcase")) == len(found["findings"])


def test_json_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", "--checks", "limits", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["plan"] is None


def test_all_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list-checks"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*(check.name for check in CHECKS), *BETWEEN]
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--checks", "ec"], 2, "did you mean ecc?"),
        (["--plan", "absent.yaml"], 1, "absent.yaml"),
        (["--weights", "absent"], 1, "--weights absent: no such directory"),
        (["--config", "absent.yaml"], 1, "absent.yaml"),
        (["--checks", "limits", "--json", "/proc/absent/x"], 1, "/proc/absent/x: No such file"),
    ],
)
def test_a_wrong_flag_is_named(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *words]) == status
    assert said in capsys.readouterr().err


def test_a_directory_and_tiers_of_the_configuration_are_measured(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    disk, model = tmp_path / "kv", tmp_path / "model"
    model.mkdir()
    tiers = [f"disk:{disk},1GiB", "redis://:secret@kv:6379/0"]
    config.write_text(yaml.safe_dump({"model": str(model), "kv-tier": tiers}))
    parsed = command_line(["--config", str(config), "--plan", str(PLAN)])
    needs = command.requirements(parsed)
    assert needs.directories == {"weights": str(model), "disk": str(disk)}
    assert (len(needs.stores), needs.hosts) == (1, ("kv",))
    words = [
        word
        for check in CHECKS
        for source in check.sources_for(needs)
        for word in getattr(source, "words", ())
    ]
    assert "secret" not in " ".join([*words, *needs.stores])


def command_line(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_the_verdict_names_the_first_layer_that_fails() -> None:
    slow = finding(Status.FAIL, layer=Layer.FABRIC)
    lost = finding(Status.FAIL)
    assert verdict([slow, lost]).cause is lost
    assert verdict([finding(Status.UNKNOWN), slow]).cause is slow
    assert verdict([finding(Status.UNKNOWN)]).exit_status == 3
    assert verdict([finding(Status.SKIPPED)]).exit_status == 3
    assert verdict([]).exit_status == 3
    assert verdict([finding(Status.WARN), finding(Status.SKIPPED)]).exit_status == 0


def hostile() -> Verdict:
    text = "a\x1b[2J\r\nb\x00\ud800]]>"
    bound = Bound(1.0, float("inf"), "GB/s")
    return verdict(
        [
            finding(status, summary=text, device=text, evidence=text, measured=0.5, bound=bound)
            for status in Status
        ]
    )


def test_reports_escape_control_characters() -> None:
    from penstock_ops.verify.reports.document import document, dump
    from penstock_ops.verify.reports.junit import junit
    from penstock_ops.verify.reports.text import text

    lines = text(hostile(), Needs())
    assert not set("\x1b\r\x00\ud800") & set(lines)
    assert "a\\x1b[2J\\r\\nb\\x00\\ud800]]>" in lines
    cases = ElementTree.fromstring(junit(hostile()).encode()).findall(".//testcase")
    assert [[child.tag for child in case] for case in cases] == [
        [], ["system-out"], ["failure"], ["error"], ["skipped"],
    ]  # fmt: skip
    found = json.loads(dump(document(hostile(), Needs())))
    assert found["findings"][0]["bound"]["expected"] == "unlimited"


def test_styles_are_optional() -> None:
    from penstock_ops.verify.reports.text import text

    styled = text(verdict([finding(Status.FAIL)]), Needs(), is_styled=True)
    assert styled.splitlines()[1].startswith("\x1b[31;1mfail")
