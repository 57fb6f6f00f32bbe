"""Plans that are not as `penstock plan` writes them: an error with file, key and remedy."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli.main import main
from tests.deploy.conftest import HERE

CHART = Path(__file__).parents[2] / "deploy/helm"
CLUSTER = ("--image", "i", "--claim", "c", "--autoscale-to", "9999")
TARGETS: dict[str, tuple[str, ...]] = {
    "k8s": CLUSTER,
    "ray": ("--image", "i", "--claim", "c"),
    "helm": CLUSTER,
    "compose": ("--image", "i", "--host-path", "/srv/m"),
    "systemd": ("--model-path", "/srv/m"),
    "slurm": ("--model-path", "/srv/m"),
}
KINDS = [HERE, "penstock-two-nodes", "vllm-one-node", "sglang-by-requests"]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**30, float("nan"), float("inf"), "", "x", "1\ntouch x"),
    *([], [1], [None], [[]], {}, {"x": 1}, {1: None}),
]
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
READ = ("schema", "model", "target", "engine", "choice", "memory", "start", "thresholds")
REMEDY = "make the plan again: penstock plan MODEL ... -o"
Plan = Callable[[str], Path]
Steps = tuple[str | int, ...]


def places(value: object, path: Steps = ()) -> Iterator[Steps]:
    """The ways to all members and items."""
    items: Iterable[tuple[Any, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def without(plan: dict[str, Any], path: Steps) -> dict[str, Any]:
    found = copy.deepcopy(plan)
    del parent(found, path)[path[-1]]
    return found


def replaced(plan: dict[str, Any], path: Steps, value: object) -> dict[str, Any]:
    found = copy.deepcopy(plan)
    parent(found, path)[path[-1]] = value
    return found


def parent(plan: Any, path: Steps) -> Any:
    for key in path[:-1]:
        plan = plan[key]
    return plan


def outcome(
    folder: Path, plan: object, target: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Status and what is said; an exception that is not Penstock's own leaves `main`."""
    path = folder / "mutated.yaml"
    path.write_text(yaml.dump(plan, Dumper=DUMPER), encoding="utf-8")
    status = main(["deploy", target, str(path), "-o", str(folder / target), *TARGETS[target]])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("target", TARGETS)
def test_the_published_plan_is_one_for_every_target(tmp_path: Path, target: str) -> None:
    words = ["-o", str(tmp_path / "made"), *TARGETS[target]]
    assert main(["deploy", target, str(CHART / "plan.yaml"), *words]) == 0


@cache
def short(path: Path) -> dict[str, Any]:
    """A plan without most of what deploy does not read, which is long. Not to be changed in
    place.
    """
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return {key: found[key] for key in (*READ, "sources") if key in found}


@pytest.mark.parametrize("target", TARGETS)
def test_a_member_that_is_missing_is_named(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """Where it is not needed, nothing is said."""
    whole = short(plan(HERE if target in ("compose", "systemd") else "penstock-two-nodes"))
    before = outcome(tmp_path, whole, target, capsys)
    needed = 0
    for path in [each for each in places(whole) if not any(isinstance(k, int) for k in each)]:
        status, said = outcome(tmp_path, without(whole, path), target, capsys)
        key = ".".join(map(str, path))
        if (status, said) == before:
            continue
        assert status == 1, key
        if path == ("schema",):
            assert "not a plan of schema 1; " + REMEDY in said
        else:
            assert f"mutated.yaml: {key} is missing; {REMEDY}" in said
        needed += 1
    assert needed >= 30


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_mutated_plan_ends_in_an_error_or_is_one(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, data: st.DataObject
) -> None:
    found = short(plan(kind))
    changed = []
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(found))))
        if data.draw(st.booleans()):
            found = replaced(found, path, data.draw(st.sampled_from(VALUES)))
        else:
            found = without(found, path)
        changed.append(path)
    target = data.draw(st.sampled_from(list(TARGETS)))
    status, said = outcome(tmp_path, found, target, capsys)
    assert status in (0, 1, 2), (changed, said)
    if "mutated.yaml" in said:
        assert REMEDY in said
        assert len(said) < 500


TYPED = [
    (("choice", "replicas"), "1\ntouch x"),
    (("choice", "tensor_parallel_size"), "8"),
    (("choice", "replicas"), 10**9),
    (("choice", "max_model_len"), True),
    (("choice", "max_num_seqs"), 2.0),
    (("choice", "memory_fraction"), float("nan")),
    (("memory", 0, "left"), "x"),
    (("memory", 0, "left"), -1),
    (("memory", 0, "left"), 1 << 50),
    (("choice", "expert_parallel"), "no"),
    (("engine",), "other"),
    (("target", "per_node"), 0),
    (("target", "resource"), "nvidia.com/gpu: 1"),
    (("target", "fabric_resources"), {"rdma/ib0\n": 1}),
    (("memory",), []),
    (("memory", 0, "ranks"), []),
    (("memory", 0, "kv"), "4"),
    (("memory", 0, "kept_free"), 10**15),
    (("start", "weights", "claim", "seconds"), None),
    (("thresholds", "kv_use", "needed"), float("inf")),
    (("model", "name"), "a\nb"),
    (("model", "name"), 5),
    (("model",), "name"),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("path", "value"), TYPED, ids=str)
def test_a_value_of_another_type_is_named(
    plan: Plan,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: Steps,
    value: object,
    target: str,
) -> None:
    whole = yaml.safe_load(plan(HERE).read_text())
    status, said = outcome(tmp_path, replaced(whole, path, value), target, capsys)
    assert status == 1
    key = ".".join(map(str, path))
    # With the line, where JSON lacks the value.
    assert re.search(rf"mutated\.yaml(:\d+)?: (a name in )?{re.escape(key)} is", said), said
    assert REMEDY in said
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_further_members_are_for_others(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    whole = yaml.safe_load(plan(HERE).read_text())
    outcome(tmp_path, whole, target, capsys)
    before = _written(tmp_path / target)
    for path in list(places(whole)):
        if isinstance(path[-1], str):
            whole = replaced(whole, (*path[:-1], "later"), {"x": [None]})
    assert outcome(tmp_path, whole, target, capsys)[0] == 0
    assert _written(tmp_path / target) == before


@pytest.mark.parametrize(
    "text",
    [
        "schema: 1\nmodel: 0x" + "f" * 9999,
        "x: 2026-13-45",
        "x: " + "9" * 5000,
        "[" * 3000,
        "- 1",
    ],
    ids=["hexadecimal", "month", "digits", "depth", "list"],
)
def test_a_file_that_yaml_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "mutated.yaml").write_text(text)
    words = [str(tmp_path / "mutated.yaml"), *TARGETS["systemd"]]
    assert main(["deploy", "systemd", *words]) == 1
    said = capsys.readouterr().err
    assert re.search(r"mutated\.yaml:\d+: ", said)
    assert REMEDY in said


def _written(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {file.name: file.read_text() for file in files}


def test_replicas_of_one_host_have_its_devices(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = yaml.safe_load(plan("vllm-one-node").read_text())
    found["choice"]["replicas"] = 2
    status, said = outcome(tmp_path, found, "compose", capsys)
    assert status == 1
    assert "2 replicas need 8 devices, and a host of it has 4" in said
    path = tmp_path / "mutated.yaml"
    path.write_text(plan(HERE).read_text())
    words = ["deploy", "compose", str(path), *TARGETS["compose"], "--port"]
    assert main([*words, "65535"]) == 2
    assert "1 to 65534, for 2 replicas" in capsys.readouterr().err
