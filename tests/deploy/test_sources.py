"""docs/deploy-sources.md names every difference between published manifests and ours."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.plan.calibration import shipped
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.memory import plan_memory
from penstock_ops.plan.speed import step_model
from penstock_ops.plan.subject import read_subject
from tests.deploy.conftest import CONFIGS, FP8, Written

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deploy-sources.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FOUND = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = [block.replace("\\\n", " ").splitlines() for block in FOUND]
DEVICES = ",".join(f"mlx5_{number}" for number in range(8))
SOURCES = {
    "002": ("DeepSeek-R1", "sglang-two-nodes", ("--rdma-devices", DEVICES)),
    "000": ("QwQ-32B", "vllm-one-node", ()),
}
SPELLINGS = {"--tp": "--tp-size", "--model-path": "", "--served-model-name": ""}
"""One name for flags that have several; what only names the model is no difference."""


def published(number: str) -> list[dict[str, Any]]:
    path = ROOT / f"tests/fixtures/deploy/source-{number}.yaml"
    return list(yaml.safe_load_all(path.read_text()))


def flags(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Flags of the server with their values, `--a b` and `--a=b` alike."""
    words = " ".join(map(str, container["command"])).split("vllm serve ")[-1].split()
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or name == "-m":
            continue
        following = words[at + 1] if at + 1 < len(words) else ""
        value = value if equals else "" if following.startswith("-") else following
        name = SPELLINGS.get(name, name)
        if name:
            yield name, value


def shape(container: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    """What of a pod can be compared, by its name."""
    found = dict(flags(container))
    found |= {entry["name"]: str(entry.get("value")) for entry in container.get("env", ())}
    found |= {key: str(container[key]) for key in container if key.endswith("Probe")}
    found |= {key: str(value) for key, value in container["resources"]["limits"].items()}
    security = container.get("securityContext", {})
    capabilities = security.get("capabilities", {})
    found |= {key: str(security[key]) for key in security if key != "capabilities"}
    found |= dict.fromkeys(capabilities.get("add", ()), "added")
    found |= dict.fromkeys(capabilities.get("drop", ()), "dropped")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        kind = next((key for key in volume if key != "name"), "none")
        path = "model" if "models" in mount["mountPath"] else mount["mountPath"]
        found[path] = f"{kind} {volume.get('emptyDir', {}).get('sizeLimit', '')}"
    left_out = ("containers", "volumes")
    return found | {key: str(spec[key]) for key in spec if key not in left_out}


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Shapes by role."""
    found = {}
    for manifest in objects:
        spec = manifest.get("spec", {})
        templates = spec.get("leaderWorkerTemplate") or {"leaderTemplate": spec.get("template")}
        for role in ("leaderTemplate", "workerTemplate"):
            pod = (templates.get(role) or {}).get("spec")
            if pod and manifest["kind"] in ("LeaderWorkerSet", "Deployment"):
                found[role] = shape(pod["containers"][0], pod)
    return found


@pytest.mark.parametrize("number", SOURCES)
def test_every_difference_of_pods_is_named(written: Written, number: str) -> None:
    title, kind, words = SOURCES[number]
    (section,) = (text for head, text in SECTIONS.items() if head.startswith(title))
    ours = pods(list(written(kind, *words).values()))
    theirs = pods(published(number))
    unnamed = set()
    for role, own in ours.items():
        other = theirs[role]
        for name in own.keys() | other.keys():
            if own.get(name) != other.get(name) and f"`{name}" not in section:
                unnamed.add((role, name, other.get(name), own.get(name)))
    assert not unnamed


def test_the_examples_run_and_their_manifests_have_no_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vm_topo_8h100_8ib_mod.xml").write_text('<system version="1"/>\n')
    for name in ("deepseek-ai/DeepSeek-R1", "Qwen/QwQ-32B"):
        quantised = {"quantization_config": FP8} if "DeepSeek" in name else {}
        folder = Path(name.rpartition("/")[2])
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **quantised}))
    first, *_ = BLOCKS
    for line in first:
        assert main(shlex.split(line)[1:]) == 0
    for folder in ("deepseek", "qwq"):
        assert main(["deploy", "lint", folder]) == 0


@pytest.mark.parametrize("line", BLOCKS[1])
def test_the_plan_chooses_by_the_load(line: str, tmp_path: Path) -> None:
    """The cut behind `#` is the one that is chosen, and the other one was simulated."""
    words = shlex.split(line, comments=True)[1:]
    config = {**CONFIGS["deepseek-ai/DeepSeek-R1"], "quantization_config": FP8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words[1] = str(tmp_path)
    output = tmp_path / "plan.yaml"
    assert main([*words, "-o", str(output)]) == 0
    plan = yaml.safe_load(output.read_text())
    choice, said = plan["choice"], line.rpartition("# ")[2].strip()
    names = ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel")
    assert str(Cut(*(choice[name] for name in names))) == said
    assert (choice["replicas"], choice["attention_by_requests"]) == (1, False)
    assert {"TP16", "TP8 x PP2"} - {said} <= {row["cut"] for row in plan["runners_up"]}


def test_two_stages_hold_twice_the_tokens(tmp_path: Path) -> None:
    """TP8 x PP2 against the published TP16, in the same memory."""
    config = {**CONFIGS["deepseek-ai/DeepSeek-R1"], "quantization_config": FP8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    where = ["--on", "dell-xe9680-h100:2", "--engine", "sglang", "--memory-fraction", "0.85"]
    asked = ["--rate", "0.2", "--isl", "100", "--osl", "20", "--requests", "10"]
    found = []
    for cut in (["-tp", "16"], ["-tp", "8", "-pp", "2"]):
        output = tmp_path / "plan.yaml"
        assert main(["plan", str(tmp_path), *where, *cut, *asked, "-o", str(output)]) == 0
        found.append(yaml.safe_load(output.read_text())["choice"]["kv_tokens"])
    words = " ".join(PAGE.split())
    assert f"({found[1]:,} in place of {found[0]:,})" in words
    assert f"{found[1] / found[0]:.2f} times" in words


def test_both_cuts_are_predicted_as_the_page_says(tmp_path: Path) -> None:
    """The table of TP16 beside TP8 x PP2, from the step model and plans."""
    config = {**CONFIGS["deepseek-ai/DeepSeek-R1"], "quantization_config": FP8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    subject, device = read_subject(str(tmp_path)), accelerator("h100-sxm-80gb")
    rows: dict[str, list[str]] = {}
    for cut in (Cut(16, 1), Cut(8, 2)):
        model = step_model(subject.spec, subject.weights, device, cut, shipped()[0])
        load = Load(chunk=2048, context=1300, fraction=0.85)
        sglang = engine("sglang")
        memory = plan_memory(subject.spec, subject.weights, device, cut, sglang, load)
        values = {"KV tokens": f"{memory.kv_tokens:,}"}
        batch = 5 / cut.pp
        sums = 2 * sum(stage.layers for stage in model.stages)
        each = model.all_reduce(batch)
        values["sums of a token, 5 clients"] = f"{sums} x {1e6 * each:.1f} us"
        values["TPOT, 5 clients of 200/50"] = f"{1e3 * model.tpot(5, 200, 50):.1f} ms"
        for isl, osl in ((200, 200), (1000, 1000), (5000, 500)):
            rate = 125 / model.tpot(125, isl, osl)
            values[f"tokens/s, 125 clients of {isl:,}/{osl:,}"] = f"{round(rate, -1):,.0f}"
        for name, value in values.items():
            rows.setdefault(name, []).append(value)
    for name, (one, two) in rows.items():
        assert f"| {name} | {one} | {two} |" in PAGE, (name, one, two)


@pytest.mark.parametrize("number", SOURCES)
def test_what_the_page_says_of_published_pods_is_there(number: str) -> None:
    """Rows name what one of the two has; values that are quoted as published are."""
    title, _, _ = SOURCES[number]
    (section,) = (text for head, text in SECTIONS.items() if head.startswith(title))
    rows = re.findall(r"^\| (`.+?) \| (.+?) \| (.+?) \| .+ \|$", section, re.MULTILINE)
    assert len(rows) > 10
    theirs = pods(published(number))["leaderTemplate"]
    for names, there, _ in rows:
        given = [name in theirs for name in re.findall(r"`(\S+?)`", names)]
        if there in ("left out", "none", "not there"):
            assert not any(given), names
        elif not there.startswith(("of the image", "by default", "true", "30")):
            assert any(given) or "Service" in names, names
