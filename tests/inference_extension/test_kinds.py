"""Resources in files against the texts of their custom resource definitions."""

from pathlib import Path

import pytest
import yaml

from penstock.core import PenstockError
from penstock.inference_extension import Rules, converted, read, rules_of

POOL = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama, labels: {tier: gold}}
spec:
  selector: {matchLabels: {app: llama}}
  targetPorts: [{number: 8001}]
  endpointPickerRef: {name: picker, port: {number: 9002}}
"""
REWRITE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: NAME, creationTimestamp: "TIME"}
spec:
  poolRef: {name: llama}
  rules:
  - matches: [{model: {type: Exact, value: chat}}]
    targets:
    - {modelRewrite: llama-8b, weight: 9}
    - {modelRewrite: llama-next, weight: 1}
"""
MODEL = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: reviews, namespace: prod, uid: x}
spec:
  modelName: food-review
  criticality: Sheddable
  poolRef: {name: llama}
  targetModels: [{name: food-review-1, weight: 100}]
"""
OBJECTIVE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: llama}}
"""


def rules(tmp_path: Path, *documents: str, pools: tuple[str, ...] = ()) -> tuple[Rules, list[str]]:
    """Rules of one file, and all findings as they are printed, without the folder."""
    file = tmp_path / "k.yaml"
    file.write_text("---".join(documents))
    resources, findings = read([file])
    found = rules_of(resources, pools)
    texts = [str(one).removeprefix(f"{tmp_path}/") for one in [*findings, *found.findings]]
    return found, texts


def test_resources_become_rules(tmp_path: Path) -> None:
    found, texts = rules(tmp_path, POOL, REWRITE, MODEL, OBJECTIVE)
    assert texts == []
    assert found.models == [
        {
            "name": "chat",
            "targets": [
                {"pool": "llama", "model": "llama-8b", "weight": 9},
                {"pool": "llama", "model": "llama-next", "weight": 1},
            ],
        },
        {
            "name": "food-review",
            "targets": [{"pool": "llama", "model": "food-review-1", "weight": 100}],
            "priority": -1,
        },
    ]
    assert found.objectives == [{"name": "batch", "pool": "llama", "priority": -1}]
    assert found.ports == {"llama": 8001}


def test_the_older_of_two_that_are_at_odds_wins(tmp_path: Path) -> None:
    new = REWRITE.replace("NAME", "new").replace("TIME", "2026-05-02T00:00:00Z")
    old = REWRITE.replace("NAME", "old").replace("TIME", "2026-05-01T00:00:00Z")
    found, texts = rules(tmp_path, POOL, new, old.replace("llama-8b", "first"))
    targets = found.models[0]["targets"]
    assert isinstance(targets, list)
    assert targets[0]["model"] == "first"
    text = "InferenceModelRewrite new: InferenceModelRewrite old is older and has model 'chat'"
    assert texts == [f"k.yaml:16: warning: {text} already"]


def test_a_rule_without_matches_is_for_all_other_models(tmp_path: Path) -> None:
    twice = REWRITE.replace("  - matches: [{model: {type: Exact, value: chat}}]\n    ", "  - ")
    found, texts = rules(tmp_path, twice, pools=("llama",))
    assert found.models[0]["name"] == "*"
    assert len(texts) == 1
    assert "that no replica lists" in texts[0]


def test_an_objective_may_select_pools_by_label(tmp_path: Path) -> None:
    by = OBJECTIVE.replace("poolRef: {name: llama}", "poolSelector: {matchLabels: {tier: gold}}")
    found, _ = rules(tmp_path, POOL, by)
    assert found.objectives == [{"name": "batch", "pool": "llama", "priority": -1}]
    every = OBJECTIVE.replace("poolRef: {name: llama}", "poolSelector: {}")
    found, _ = rules(tmp_path, POOL, every)
    assert found.objectives == [{"name": "batch", "priority": -1}]


@pytest.mark.parametrize(
    ("document", "old", "new", "wanted"),
    [
        (OBJECTIVE, "priority", "priorty", "k.yaml:13: error: InferenceObjective: spec has no"),
        (OBJECTIVE, "-1", "high", "spec.priority is 'high', and has to be a whole number"),
        (OBJECTIVE, "llama", "lama", "there is no pool 'lama'; there are: llama"),
        (OBJECTIVE, ", poolRef: {name: llama}", "", "poolRef, poolRefs or poolSelector is needed"),
        (OBJECTIVE, "v1alpha2", "v1", "there are inference.networking.x-k8s.io/v1alpha2, llm-d.ai"),
        (OBJECTIVE, "InferenceObjective", "Deployment", "warning: kind 'Deployment' is not"),
        (OBJECTIVE, "name: batch", "title: x", "metadata has no name"),
        (MODEL, "Sheddable", "Low", "criticality is 'Low'; Critical, Standard, Sheddable"),
        (MODEL, "weight: 100", "weight: 0", "error: InferenceModel reviews: a weight of 0"),
        (MODEL, "weight: 100", "weight: 2000000", "a weight is 2000000; 1 to 1000000"),
        (MODEL, ", weight: 100", "}, {name: b, weight: 1", "either all targets have a weight or"),
        (REWRITE, "type: Exact", "type: Regex", "the type of a match is Exact"),
        (REWRITE, "weight: 9", "weight: 0", "warning: InferenceModelRewrite NAME: a weight of 0"),
        (POOL, "name: llama, ", "name: llama, namespace: b, ", "is older and has this name"),
        (POOL, "targetPorts:", "appProtocol: kubernetes.io/h2c\n  targetPorts:", "HTTP/1.1"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, document: str, old: str, new: str, wanted: str
) -> None:
    assert old in document
    _, texts = rules(tmp_path, POOL, document.replace(old, new, 1))
    assert any(wanted in text for text in texts), texts


def test_a_list_is_its_items(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    items = [yaml.safe_load(POOL), yaml.safe_load(OBJECTIVE)]
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    resources, findings = read([file])
    assert [one.kind for one in resources] == ["InferencePool", "InferenceObjective"]
    assert findings == []


def test_new_kinds_say_what_the_old_ones_did(tmp_path: Path) -> None:
    old = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: llama}
spec:
  selector: {app: llama}
  targetPortNumber: 8001
  extensionRef: {name: picker, failureMode: FailOpen}
"""
    file = tmp_path / "old.yaml"
    file.write_text(f"{old}---{MODEL}---{OBJECTIVE}")
    resources, _ = read([file])
    text = converted(resources)
    pool, objective, rewrite = yaml.safe_load_all(text)
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    assert pool["spec"] == {
        "selector": {"matchLabels": {"app": "llama"}},
        "targetPorts": [{"number": 8001}],
        "endpointPickerRef": {
            "name": "picker",
            "failureMode": "FailOpen",
            "port": {"number": 9002},
        },
    }
    assert objective["metadata"] == {"name": "reviews", "namespace": "prod"}
    assert objective["spec"] == {"priority": -1, "poolRef": {"name": "llama"}}
    assert rewrite["kind"] == "InferenceModelRewrite"
    new = tmp_path / "new.yaml"
    new.write_text(text)
    again, findings = read([new])
    assert findings == []
    before, after = rules_of(resources, ()), rules_of(again, ())
    assert after.findings == before.findings == []
    assert after.ports == before.ports
    without = [{k: v for k, v in rule.items() if k != "priority"} for rule in before.models]
    assert after.models == without


def test_files_that_are_no_resources_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    for text, wanted in [("a: [", "x.yaml"), ("- 1", "x.yaml:1: a resource"), (None, "No such")]:
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        with pytest.raises(PenstockError, match=wanted):
            read([file])
