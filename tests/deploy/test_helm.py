"""`penstock deploy helm`: the chart renders what the generator makes, object by object.

Quick tests render with a reader of the few constructs that the templates have; the slow ones with
Helm itself.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from penstock.cli.main import main
from tests.deploy.conftest import HERE, PLANS, Written
from tests.deploy.helm import helm

CHART = Path(__file__).parents[2] / "deploy/helm"
FRONT = ("--gateway-image", "registry/penstock:1", "--gateway")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": ("--claim", "weights"),
    "pull": ("--pull", "org/name", "--storage-class", "fast", "--model-path", "m"),
    "host": ("--host-path", "/srv/models", "--node-selector", "gpu=h100"),
    "image": ("--image-volume", "registry/model:1", "--model-path", "m"),
    "proxy": ("--claim", "w", *FRONT, "proxy", "--api-key-secret", "keys", "--pod-monitor"),
    "picker": (
        *("--claim", "w", *FRONT, "istio", "--objective", "batch=-1", "--objective", "chat=10"),
        *("--picker-tls-secret", "tls", "--pod-monitor", "--autoscale-to", "9"),
    ),
    "hostile": ("--host-path", '/srv/"x" \\ {{ $.Values.image }} #', "--model-path", "$(A) 'b'"),
    "tiers": ("--claim", "w", "--kv-tier", "disk:/var/kv,64GiB"),
    "per-pod": ("--pull", "o/n", "--claim-per-pod", "--scrape-annotations"),
    "ephemeral": ("--pull", "o/n", "--claim-per-pod", "ephemeral", "--autoscale-to", "9"),
    "shared-tier": (
        *("--claim", "w", "--kv-tier", "disk:/var/kv,64GiB", "--kv-volume", "claim"),
        *("--image-pull-secret", "registry", "--ip-family", "IPv4"),
    ),
    "plain-listener": (
        *("--claim", "w", *FRONT, "istio"),
        "--plain-listener",
        "8080",
        "--listener",
        "81",
    ),
    "keda": ("--claim", "w", "--autoscale-to", "9", "--prometheus", "http://prometheus:9090"),
}
Charted = Callable[..., Path]
Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def charted(plan: Callable[[str], Path], tmp_path: Path) -> Charted:
    def write(kind: str, *words: str) -> Path:
        out = tmp_path / "chart"
        asked = ["--image", "registry/engine:0", "-o", str(out), *words]
        assert main(["deploy", "helm", str(plan(kind)), *asked]) == 0
        return out

    return write


def by_name(objects: Any) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects if each}


def looked_up(path: str, scope: Mapping[str, Any]) -> Any:
    """`$.Values.a.b`, or a variable of a loop."""
    if path in scope:
        return scope[path]
    found: Any = scope
    for key in path.removeprefix("$.").split("."):
        found = found[key]
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *given: next((each for each in given if not each), given[-1]),
    "or": lambda *given: next((each for each in given if each), given[-1]),
    "not": lambda value: not value,
    "gt": lambda one, other: one > other,
    "eq": lambda one, other: one == other,
    "int": int,
    "add": lambda one, other: one + other,
    "empty": lambda value: not value,
    "ternary": lambda one, other, which: one if which else other,
    "default": lambda other, value: value or other,
    "printf": lambda form, *values: form % values,
    "toJson": json.dumps,
}
"""What the templates' functions do, by Helm's documentation."""
WORDS = re.compile(r"`[^`]*`|[()|]|[^\s()|]+")


def evaluated(expression: str, scope: Mapping[str, Any]) -> Any:
    """The value of a template expression: a pipeline of calls."""
    return _pipeline(WORDS.findall(expression), scope)


def _pipeline(words: list[str], scope: Mapping[str, Any]) -> Any:
    """Consumes words up to the end, or to the closing parenthesis."""
    piped: list[Any] = []
    while True:
        call: list[Any] = []
        while words and words[0] not in ")|":
            word = words.pop(0)
            call.append(_pipeline(words, scope) if word == "(" else _word(word, scope))
        call += piped
        value = call[0](*call[1:]) if callable(call[0]) else call[0]
        if not words or words.pop(0) == ")":
            return value
        piped = [value]


def _word(word: str, scope: Mapping[str, Any]) -> Any:
    if word in FUNCTIONS:
        return FUNCTIONS[word]
    if word.startswith("`"):
        return word.strip("`")
    return int(word) if word.isdecimal() else looked_up(word, scope)


def truth(condition: str, scope: Mapping[str, Any]) -> bool:
    return bool(evaluated(condition, scope))


def text(expression: str, scope: Mapping[str, Any]) -> str:
    return str(evaluated(expression, scope))


def rendered(lines: list[str], scope: Mapping[str, Any]) -> list[str]:
    """Lines of a template; `lines` is consumed up to the end of its block."""
    found: list[str] = []
    while lines:
        line = lines.pop(0)
        if re.fullmatch(r" *\{\{- end \}\}", line):
            return found
        if block := re.fullmatch(r" *\{\{- if (.+) \}\}", line):
            inside = rendered(lines, scope) if truth(block[1], scope) else skipped(lines)
            found += inside
        elif block := re.fullmatch(r"\{\{- range (\S+), (\S+) := (\S+) \}\}", line):
            body = list(lines)
            skipped(lines)
            for key, item in looked_up(block[3], scope).items():
                found += rendered(list(body), {**scope, block[1]: key, block[2]: item})
        else:
            found.append(re.sub(r"\{\{ (.+?) \}\}", lambda m: text(m[1], scope), line))
    return found


def skipped(lines: list[str]) -> list[str]:
    depth = 1
    while depth:
        line = lines.pop(0)
        depth += 1 if re.search(r"\{\{- (if|range) ", line) else 0
        depth -= 1 if "{{- end }}" in line else 0
    return []


def read(folder: Path, name: str) -> Objects:
    """Objects of a chart, without its tests."""
    scope = {
        "Values": yaml.safe_load((folder / "values.yaml").read_text()),
        "Release": {"Name": name},
    }
    found: Objects = {}
    for file in (folder / "templates").glob("*.yaml"):
        lines = rendered(file.read_text().splitlines(), scope)
        found |= by_name(yaml.safe_load_all("\n".join([*lines, ""])))
    return found


def by_helm(folder: Path, name: str, *words: str) -> Objects:
    done = subprocess.run(
        [helm(), "template", name, folder, "--skip-tests", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return by_name(yaml.safe_load_all(done.stdout))


def generated(written: Written, kind: str, variant: str) -> tuple[str, Objects]:
    files = written(kind, *VARIANTS[variant])
    return files["service.yaml"]["metadata"]["name"], by_name(files.values())


CASES = [
    (kind, variant)
    for kind in (*PLANS, HERE)
    for variant in VARIANTS
    if "tier" not in variant or kind == HERE
]
QUICK = ("sglang-two-nodes", "vllm-one-device", HERE)


@pytest.mark.parametrize(("kind", "variant"), [case for case in CASES if case[0] in QUICK])
def test_the_chart_has_the_generators_objects(
    written: Written, charted: Charted, kind: str, variant: str
) -> None:
    name, wanted = generated(written, kind, variant)
    assert read(charted(kind, *VARIANTS[variant]), name) == wanted


@pytest.mark.parametrize("kind", ["vllm-one-device", HERE])
def test_pods_wait_for_a_download_that_only_values_name(
    written: Written, charted: Charted, kind: str
) -> None:
    deployment = written(kind, "--pull", "org/name")["deployment.yaml"]
    folder = charted(kind, "--claim", "w")
    values = yaml.safe_load((folder / "values.yaml").read_text())
    values["model"] |= {"claim": "", "pull": "org/name"}
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    name = deployment["metadata"]["name"]
    found, wanted = read(folder, name)["Deployment", name]["spec"], deployment["spec"]
    assert found["progressDeadlineSeconds"] == wanted["progressDeadlineSeconds"]
    pod, wanted_pod = found["template"]["spec"], wanted["template"]["spec"]
    assert pod["initContainers"] == wanted_pod["initContainers"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_helm_renders_the_generators_objects(
    written: Written, charted: Charted, kind: str, variant: str
) -> None:
    name, wanted = generated(written, kind, variant)
    assert by_helm(charted(kind, *VARIANTS[variant]), name) == wanted


@pytest.mark.slow
def test_one_chart_renders_every_plan(written: Written, charted: Charted, tmp_path: Path) -> None:
    """The templates know no plan: with the values of another they are its chart."""
    own = charted("sglang-two-nodes", *VARIANTS["picker"]) / "values.yaml"
    folder = tmp_path / "published"
    shutil.copytree(CHART, folder)
    shutil.copy(own, folder)
    name, wanted = generated(written, "sglang-two-nodes", "picker")
    assert by_helm(folder, name) == wanted


@pytest.mark.slow
def test_single_values_are_changed_on_the_command_line() -> None:
    found = by_helm(CHART, "m", "--set", "replicas=3,gateway.enabled=true,apiKeySecret=keys")
    assert found["Deployment", "m"]["spec"]["replicas"] == 3
    (container,) = found["Deployment", "m-gateway"]["spec"]["template"]["spec"]["containers"]
    assert {entry["name"] for entry in container["env"]} >= {"PENSTOCK_API_KEY"}


def test_the_published_chart_is_what_the_generator_writes(tmp_path: Path) -> None:
    """`penstock deploy helm deploy/helm/plan.yaml -o deploy/helm --image penstock:0.2.0 --claim
    weights` writes it again.
    """
    words = ["--image", "penstock:0.2.0", "--claim", "weights", "-o", str(tmp_path / "helm")]
    assert main(["deploy", "helm", str(CHART / "plan.yaml"), *words]) == 0
    made = {path.relative_to(tmp_path / "helm") for path in (tmp_path / "helm").rglob("*.*")}
    there = {path.relative_to(CHART) for path in CHART.rglob("*.*")}
    assert there == {*made, Path("plan.yaml")}
    for name in made:
        assert (CHART / name).read_text() == (tmp_path / "helm" / name).read_text(), name


def test_the_chart_brings_no_definitions_and_a_test() -> None:
    assert not (CHART / "crds").exists()
    (test,) = (CHART / "templates/tests").iterdir()
    pod = yaml.safe_load(re.sub(r"\{\{ .+ \| toJson \}\}", "engine", test.read_text()))
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


@pytest.mark.slow
def test_helm_lints_the_chart_strictly() -> None:
    done = subprocess.run(
        [helm(), "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


WRONG: dict[str, dict[str, Any]] = {
    "no image": {"image": ""},
    "a number that is a text": {"replicas": "2"},
    "no replica": {"replicas": 0},
    "no pods": {"nodes": 0},
    "a word that is not there": {"replica": 2},
    "another engine": {"engine": "tgi"},
    "two sources of the model": {"model": {"hostPath": "/m"}},
    "a claim and an image": {"model": {"image": "registry/model:1"}},
    "no source of the model": {"model": {"claim": ""}},
    "a size without a unit": {"sharedMemory": "64"},
    "a threshold that is no number": {"autoscaling": {"kvUse": {"threshold": "80%"}}},
    "a gateway without an image": {"gateway": {"enabled": True, "image": ""}},
    "a priority that is a text": {"gateway": {"objectives": {"batch": "low"}}},
}


def merged(values: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    found = dict(values)
    for key, item in change.items():
        inner = isinstance(item, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], item) if inner else item
    return found


@pytest.mark.parametrize("wrong", WRONG)
def test_values_that_the_schema_refuses(wrong: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft202012Validator(schema).validate(values)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(merged(values, WRONG[wrong]))


@pytest.mark.slow
def test_helm_refuses_them_too(tmp_path: Path) -> None:
    for change in WRONG.values():
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(change))
        done = subprocess.run(
            [helm(), "template", "m", CHART, "--values", path], capture_output=True, check=False
        )
        assert done.returncode != 0, change


def test_what_is_the_clusters_is_not_in_a_chart(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--image", "i", "--claim", "c", "-o", str(tmp_path), "--nic-interfaces", "ibs65"]
    assert main(["deploy", "helm", str(plan("sglang-two-nodes")), *words]) == 1
    assert "NicClusterPolicy" in capsys.readouterr().err
