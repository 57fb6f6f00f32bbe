import argparse
import json
from pathlib import Path

import pytest

from penstock.cli import gateway, gateway_flags
from penstock.core import InvalidValueError, PenstockError


def settings(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    gateway_flags.add_arguments(parser)
    return gateway.settings(parser.parse_args(arguments), 500)


def test_flags_make_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "from-environment")
    monkeypatch.setenv("PENSTOCK_BACKEND_API_KEY", "theirs")
    found = settings("--backend", "http://a:1", "--backend", "http://b:1", "--api-key", "k")
    static = {"static": [{"url": "http://a:1"}, {"url": "http://b:1"}]}
    assert found["pools"] == [{"name": "default", "source": static}]
    assert found["api_keys"] == ["k", "from-environment"]
    assert found["backend_api_key"] == "theirs"
    assert found["limits"] == {"max_connections": 500}
    assert (found["host"], found["port"]) == ("127.0.0.1", 8080)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("port: 1\nretries: 7\npools: [{name: p, dns: 'x.y:80'}]")
    found = settings("--config", str(file), "--port", "2")
    assert (found["port"], found["retries"]) == (2, 7)
    assert "replica_header" not in found
    hidden = settings("--config", str(file), "--replica-header", "name")
    assert hidden["replica_header"] == "name"
    dns = {"dns": {"name": "x.y", "port": 80}}
    assert found["pools"] == [{"name": "p", "source": dns}]


def test_flags_of_the_log_win_over_the_file_member_by_member(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("pools: [{name: p, dns: 'x.y:80'}]\nlog: {color: false, format: json}\n")
    assert settings("--config", str(file))["log"] == {"color": False, "format": "json"}
    found = settings("--config", str(file), "--log-level", "error")
    assert found["log"] == {"color": False, "format": "json", "level": "error"}


def test_a_profile_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("scorers: [{name: queue, weight: 2}]")
    found = settings("--backends-file", "list", "--profile", str(file))
    profile = {"scorers": [{"name": "queue", "weight": 2}]}
    assert found["pools"] == [{"name": "default", "source": {"file": "list"}, "profile": profile}]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pools: [{name: p}]", "pool 1: one of backends, file, dns and kubernetes"),
        ("pools: [{name: p, backends: x}]", "backends is a list"),
        ("[1]", "a mapping of settings"),
        ("a: [", "g.yaml"),
        ("port: 1", "replicas are missing"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    with pytest.raises(PenstockError, match=wanted):
        settings("--config", str(file))


REPLICAS = """
port: 1
pools:
  - name: a
    backends:
      - http://a:1
      - {url: http://b:1, wait: 3}
  - name: b
    file: list
    hedge: {after_ms: "soon"}
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "wanted"),
    [
        ("", "", 7, "unknown field `wait`"),
        (", wait: 3", "", 10, "invalid type: string"),
        ("port: 1", "prot: 1", 2, "unknown field `prot`; did you mean port?"),
        ("pools:", "pols:", 3, "unknown field `pols`; did you mean pools?"),
        ("port: 1", "port: 99999", 2, "invalid value"),
        ("pools:", "pools: [\n", 5, "not YAML"),
        ("file: list", "flie: list", 8, "pool 2: one of backends"),
        ("name: b", "name: a", 10, "invalid type"),
    ],
)
def test_errors_have_the_line_of_the_file(
    tmp_path: Path, before: str, after: str, line: int, wanted: str
) -> None:
    file = tmp_path / "g.yaml"
    text = REPLICAS.replace(before, after)
    file.write_text(text if line == 7 or "wait" in before else text.replace(", wait: 3", ""))
    said = gateway.complaint(file)
    assert said
    assert said.startswith(f"{file}:{line}: error: {wanted}")


@pytest.mark.parametrize(
    ("more", "line", "wanted"),
    [
        ("  - name: a\n    file: other", 6, 'there are two pools "a"'),
        ("    mirror: {pool: c, share: 0.1}", 4, 'pool "b": mirror names pool "c"'),
        ("models: 3", 6, "models is a list"),
    ],
)
def test_errors_of_meaning_have_the_line_of_what_they_name(
    tmp_path: Path, more: str, line: int, wanted: str
) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(f"pools:\n  - name: a\n    file: one\n  - name: b\n    file: two\n{more}\n")
    assert f"{file}:{line}: error: {wanted}" in str(gateway.complaint(file))


def test_a_queue_is_the_pool_s() -> None:
    found = settings("--backends-file", "list", "--queue")
    pool = {"name": "default", "source": {"file": "list"}, "flow": {"queue": True}}
    assert found["pools"] == [pool]


def test_hedging_is_the_pool_s_by_time_or_percentile() -> None:
    for text, wanted in (("800", {"after_ms": 800.0}), ("p95", {"percentile": 0.95})):
        found = settings("--backends-file", "list", "--hedge", text)
        pool = {"name": "default", "source": {"file": "list"}, "hedge": wanted}
        assert found["pools"] == [pool]
    with pytest.raises(InvalidValueError, match="p95"):
        settings("--backends-file", "list", "--hedge", "often")


def test_streams_go_on_by_their_text_only_where_it_is_asked_for() -> None:
    assert "resume_by_text" not in settings("--backend", "http://a:1")
    assert settings("--backend", "http://a:1", "--resume-by-text")["resume_by_text"] is True
    assert settings("--backend", "http://a:1", "--resume-bytes", "5")["resume_bytes"] == 5


KINDS = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8001}]}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: chat}
spec: {modelName: chat, criticality: Critical, poolRef: {name: llama}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: llama}}
"""


def test_kinds_add_rules_and_objectives_and_are_watched(tmp_path: Path) -> None:
    kinds, file = tmp_path / "kinds.yaml", tmp_path / "g.yaml"
    kinds.write_text(KINDS)
    own = {"name": "chat", "targets": [{"pool": "llama", "model": "own"}]}
    text = f"kinds: [{kinds}]\npools: [{{name: llama, dns: llama.default.svc}}]\n"
    file.write_text(text)
    found = settings("--config", str(file))
    source = {"dns": {"name": "llama.default.svc", "port": 8001}}
    assert found["pools"] == [{"name": "llama", "source": source}]
    assert found["models"] == [{"name": "chat", "targets": [{"pool": "llama"}], "priority": 1}]
    assert found["objectives"] == [{"name": "batch", "pool": "llama", "priority": -1}]
    assert found["watched"] == [str(file), str(kinds)]
    assert "kinds" not in found
    file.write_text(f"{text}models: [{json.dumps(own)}]")
    assert settings("--config", str(file))["models"] == [own]
    kinds.write_text(KINDS.replace("poolRef: {name: llama}}\n---", "poolRef: {name: x}}\n---"))
    with pytest.raises(PenstockError, match="there is no pool 'x'"):
        settings("--config", str(file))


def test_backends_beside_pools_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("pools: [{name: p, file: x}]")
    with pytest.raises(InvalidValueError, match="--backend"):
        settings("--config", str(file), "--backend", "http://a:1")


def test_an_endpoint_picker_has_an_address_and_a_pool(tmp_path: Path) -> None:
    found = settings("--backend", "http://a:1", "--ext-proc", "[::1]:9002", "--pool", "llama")
    assert found["ext_proc"] == {"host": "::1", "port": 9002, "pool": "llama"}
    (pool,) = found["pools"]  # type: ignore[misc]
    assert pool["name"] == "llama"
    file = tmp_path / "g.yaml"
    file.write_text("ext_proc: {host: h, port: 1, pool: p}\npools: [{name: p, file: x}]")
    picker = settings("--config", str(file), "--ext-proc", "0.0.0.0:2")["ext_proc"]
    assert picker == {"host": "0.0.0.0", "port": 2, "pool": "p"}
    assert "ext_proc" not in settings("--backend", "http://a:1", "--pool", "llama")


@pytest.mark.parametrize("place", ["9002", "h:", "h:x", "h:70000", ":1"])
def test_a_picker_s_address_is_host_and_port(place: str) -> None:
    with pytest.raises(PenstockError, match="HOST:PORT"):
        settings("--backend", "http://a:1", "--ext-proc", place)


def test_a_pool_of_a_file_is_for_the_picker(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("pools: [{name: p, file: x}]")
    with pytest.raises(PenstockError, match="--ext-proc"):
        settings("--config", str(file), "--pool", "p")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u, namespace: models}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://a'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )
    return file


CLUSTER = {"server": "https://a", "token": {"text": "t"}}


def test_an_inference_pool_is_named_by_a_flag(kubeconfig: Path) -> None:
    found = settings("--inference-pool", "llama", "--kubeconfig", str(kubeconfig))
    source = {"cluster": CLUSTER, "namespace": "models", "inference_pool": "llama"}
    assert found["pools"] == [{"name": "llama", "source": {"kubernetes": source}}]
    assert found["watched"] == [str(kubeconfig)]
    found = settings("--inference-pool", "a/b", "--pool", "p", "--kubeconfig", str(kubeconfig))
    (pool,) = found["pools"]  # type: ignore[misc]
    source = {"cluster": CLUSTER, "namespace": "a", "inference_pool": "b"}
    assert pool == {"name": "p", "source": {"kubernetes": source}}


def test_pods_of_a_file_have_a_selector_and_ports(tmp_path: Path, kubeconfig: Path) -> None:
    file = tmp_path / "g.yaml"
    text = "{namespace: b, selector: {app: llama, tier: a}, ports: [8000, 8001]}"
    file.write_text(f"kubeconfig: {kubeconfig}\npools: [{{name: p, kubernetes: {text}}}]")
    found = settings("--config", str(file))
    pods = {
        "cluster": CLUSTER,
        "namespace": "b",
        "selector": "app=llama,tier=a",
        "ports": [8000, 8001],
    }
    assert found["pools"] == [{"name": "p", "source": {"kubernetes": pods}}]
    assert found["watched"] == [str(file), str(kubeconfig)]
    assert "kubeconfig" not in found


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("[llama]", "the name of an InferencePool, or a mapping"),
        ("{inferencePool: llama}", "kubernetes has no 'inferencePool'; there are inference_pool"),
        ("{selector: app=llama}", "a selector and ports"),
        ("{inference_pool: a, ports: [0]}", "ports is a list"),
        ("{inference_pool: a, selector: [a]}", "selector is a mapping"),
    ],
)
def test_wrong_pods_are_named(tmp_path: Path, kubeconfig: Path, value: str, wanted: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(f"kubeconfig: {kubeconfig}\npools: [{{name: p, kubernetes: {value}}}]")
    with pytest.raises(PenstockError, match=wanted):
        settings("--config", str(file))


def test_resources_of_the_cluster_add_rules(tmp_path: Path, kubeconfig: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(
        f"kubeconfig: {kubeconfig}\nobjectives: [{{name: own, priority: 9}}]\n"
        "pools: [{name: p, kubernetes: llama}, {name: q, backends: []}]"
    )
    resources = [
        {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": name, "namespace": "models"},
            "spec": {"priority": -1, "poolRef": {"name": pool}},
        }
        for name, pool in (("batch", "llama"), ("own", "llama"), ("other", "q"))
    ]
    parser = argparse.ArgumentParser()
    gateway_flags.add_arguments(parser)
    parsed = parser.parse_args(["--config", str(file)])
    found = gateway.settings(parsed, 500, json.dumps(resources))
    assert found["objectives"] == [
        {"name": "own", "priority": 9},
        {"name": "batch", "pool": "p", "priority": -1},
    ]
    assert "warnings" not in found
    resources[0]["spec"]["priority"] = "high"  # type: ignore[index]
    found = gateway.settings(parsed, 500, json.dumps(resources))
    assert "priority is 'high'" in str(found["warnings"])
