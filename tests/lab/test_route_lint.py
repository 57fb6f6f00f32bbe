"""`penstock route lint`."""

import re
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main

MODEL = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: a}
spec: {modelName: chat, criticality: Critical, poolRef: {name: llama}}
"""


def test_findings_have_a_file_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(f"{MODEL}---{MODEL.replace('name: a', 'name: b')}")
    assert main(["route", "lint", str(file), "--pool", "llama"]) == 0
    out = capsys.readouterr().out
    assert f"{file}:10: warning: InferenceModel b: InferenceModel a is older" in out
    assert "2 resources: 1 rules for models, 0 objectives, 0 errors" in out
    file.write_text(MODEL)
    assert main(["route", "lint", str(file)]) == 1
    assert "there is no pool 'llama'; there are: none" in capsys.readouterr().out
    assert main(["route", "lint", str(file), "--pool", "llama"]) == 0


def test_new_kinds_are_printed_for_old_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(MODEL)
    assert main(["route", "lint", "--convert", "--pool", "llama", str(file)]) == 0
    (objective,) = yaml.safe_load_all(capsys.readouterr().out)
    assert objective["kind"] == "InferenceObjective"
    assert objective["spec"] == {"priority": 1, "poolRef": {"name": "llama"}}


def test_policies_of_a_gateway_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.yaml"
    pools = "pools: [{{name: a, file: x, mirror: {}}}, {{name: b, file: y}}]"
    file.write_text(pools.format("{pool: b, share: 0.1}"))
    assert main(["route", "lint", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "0 resources: 0 rules for models, 0 objectives, 0 errors\n"
    file.write_text(pools.format("{pool: c, share: 0.1}"))
    assert main(["route", "lint", "--config", str(file)]) == 1
    out = capsys.readouterr().out
    assert f'{file}:1: error: pool "a": mirror names pool "c"; there are a, b' in out
    file.write_text("pools: [{name: a}]")
    assert main(["route", "lint", "--config", str(file)]) == 1
    assert "one of backends, file, dns and kubernetes is expected" in capsys.readouterr().out


def test_a_configuration_for_a_cluster_is_checked_outside_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("penstock._native", reason="the extension is not built")
    file = tmp_path / "gateway.yaml"
    file.write_text("pools: [{name: p, kubernetes: llama}]")
    assert main(["route", "lint", "--config", str(file)]) == 0
    file.write_text("pools: [{name: p, kubernetes: {pool: llama}}]")
    assert main(["route", "lint", "--config", str(file)]) == 1
    assert "kubernetes has no 'pool'" in capsys.readouterr().out


def test_the_examples_of_the_documents_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every gateway.yaml of docs/gateway.md, and the profile of docs/routing.md as a pool's."""
    docs = Path(__file__).parents[2] / "docs"
    found = re.findall(r"```yaml\n(.*?)```", (docs / "gateway.md").read_text(), re.S)
    kinds = [text for text in found if text.startswith("apiVersion:")]
    assert len(kinds) == 1
    resources = tmp_path / "kinds.yaml"
    resources.write_text(kinds[0])
    assert main(["route", "lint", str(resources), "--pool", "llama"]) == 0
    assert "2 resources: 1 rules for models, 1 objectives, 0 errors" in capsys.readouterr().out
    # a list is a part of Envoy's configuration
    examples = [
        text.replace("kinds.yaml", str(resources))
        for text in found
        if text not in kinds and isinstance(yaml.safe_load(text), dict)
    ]
    profile = re.search(r"```yaml\n(.*?)```", (docs / "routing.md").read_text(), re.S)
    assert profile
    pool = {"name": "a", "backends": ["http://127.0.0.1:1"], "profile": yaml.safe_load(profile[1])}
    examples.append(yaml.safe_dump({"pools": [pool]}))
    assert len(examples) >= 11
    file = tmp_path / "gateway.yaml"
    for text in examples:
        file.write_text(text)
        assert main(["route", "lint", "--config", str(file)]) == 0, capsys.readouterr().out
    file.write_text(examples[-1].replace("queue", "cue"))
    assert main(["route", "lint", "--config", str(file)]) == 1
    assert "cue" in capsys.readouterr().out
