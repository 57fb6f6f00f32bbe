"""`penstock gateway` before the pods: as a proxy, and as the endpoint picker of a Gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.gateway import complaint
from penstock.cli.main import main, parser
from tests.deploy.conftest import HERE, PLANS, Written

PROXY = ("--gateway", "proxy", "--gateway-image", "penstock:1")
PICKER = ("--gateway", "istio", "--gateway-image", "penstock:1")
ROLE = Path(__file__).parents[2] / "deploy/kubernetes-gateway.yaml"


def pod(files: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = files["gateway-deployment.yaml"]["spec"]["template"]["spec"]
    return found


def words(files: dict[str, Any]) -> list[str]:
    found: list[str] = pod(files)["containers"][0]["command"]
    return found


def test_a_proxy_follows_the_pods_that_serve(written: Written, tmp_path: Path) -> None:
    files = written("vllm-two-nodes", *PROXY)
    config = tmp_path / "gateway.yaml"
    config.write_text(files["gateway-config.yaml"]["data"]["gateway.yaml"])
    (pool,) = yaml.safe_load(config.read_text())["pools"]
    assert pool["kubernetes"]["ports"] == [8000]
    assert pool["kubernetes"]["selector"] == files["service.yaml"]["spec"]["selector"]
    # Other nodes of a group have another component.
    assert pool["kubernetes"]["selector"]["app.kubernetes.io/component"] == "server"
    assert complaint(config) is None
    given = parser().parse_args(words(files)[3:])
    assert given.config == "/etc/penstock/gateway.yaml"
    assert (given.log_format, given.access_log) == ("json", True)
    assert not {"gateway.yaml", "http-route.yaml", "inference-pool.yaml"} & set(files)


def test_a_proxy_may_see_pods_alone(written: Written) -> None:
    files = written(HERE, *PROXY)
    assert files["gateway-role.yaml"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]


def test_a_picker_may_do_what_the_published_role_has(written: Written) -> None:
    (role,) = (
        each for each in yaml.safe_load_all(ROLE.read_text()) if each and each["kind"] == "Role"
    )
    assert written(HERE, *PICKER)["gateway-role.yaml"]["rules"] == role["rules"]


def test_account_role_and_binding_belong_together(written: Written) -> None:
    files = written(HERE, *PROXY)
    name = files["gateway-account.yaml"]["metadata"]["name"]
    binding = files["gateway-role-binding.yaml"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    assert binding["roleRef"]["name"] == files["gateway-role.yaml"]["metadata"]["name"]
    assert pod(files)["serviceAccountName"] == name
    # Its token is what it watches with.
    assert pod(files).get("automountServiceAccountToken", True) is True


@pytest.mark.parametrize("kind", [*PLANS, HERE])
@pytest.mark.parametrize("front", [PROXY, PICKER], ids=["proxy", "picker"])
def test_selectors_find_the_gateway_and_never_an_engine(
    written: Written, kind: str, front: tuple[str, ...]
) -> None:
    files = written(kind, *front, "--pod-monitor")
    own = files["gateway-deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
    workload = files.get("deployment.yaml") or files["leader-worker-set.yaml"]
    engine = workload["metadata"]["labels"]
    for name, path in (
        ("gateway-deployment.yaml", ("selector", "matchLabels")),
        ("gateway-service.yaml", ("selector",)),
        ("gateway-disruption-budget.yaml", ("selector", "matchLabels")),
        ("gateway-network-policy.yaml", ("podSelector", "matchLabels")),
        ("gateway-pod-monitor.yaml", ("selector", "matchLabels")),
    ):
        labels = files[name]["spec"]
        for key in path:
            labels = labels[key]
        assert labels.items() <= own.items()
        assert not labels.items() <= engine.items()
    assert not files["service.yaml"]["spec"]["selector"].items() <= own.items()


def test_the_gateway_is_restricted(written: Written) -> None:
    files = written("vllm-one-device", *PICKER)
    spec = pod(files)
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"] == "penstock:1"


def test_a_route_leads_through_the_gateway_to_the_pods(written: Written) -> None:
    files = written("sglang-two-nodes", *PICKER, "--objective", "batch=-1")
    gateway, route, pool = (
        files[f"{name}.yaml"] for name in ("gateway", "http-route", "inference-pool")
    )
    assert gateway["spec"]["gatewayClassName"] == "istio"
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [
        {
            "group": "inference.networking.k8s.io",
            "kind": "InferencePool",
            "name": pool["metadata"]["name"],
        }
    ]
    # A stream has no end but its own.
    assert rule["timeouts"] == {"request": "0s"}
    assert pool["spec"]["selector"]["matchLabels"] == files["service.yaml"]["spec"]["selector"]
    picker = pool["spec"]["endpointPickerRef"]
    service = files["gateway-service.yaml"]
    assert picker["name"] == service["metadata"]["name"]
    assert picker["failureMode"] == "FailClose"
    ports = {port["port"]: port["name"] for port in service["spec"]["ports"]}
    assert ports[picker["port"]["number"]] == "grpc-ext-proc"
    objective = files["objective-batch.yaml"]
    assert objective["spec"]["priority"] == -1
    assert objective["spec"]["poolRef"]["name"] == pool["metadata"]["name"]
    given = parser().parse_args(words(files)[3:])
    assert given.inference_pool == pool["metadata"]["name"]
    assert given.ext_proc == f"[::]:{picker['port']['number']}"


def test_kinds_of_the_extension_have_no_finding(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own linter of the kinds reads them as the picker does."""
    files = written(HERE, *PICKER, "--objective", "chat=10", "--objective", "batch=-1")
    kept = [files[name] for name in files if name.startswith(("inference-", "objective-"))]
    path = tmp_path / "kinds.yaml"
    path.write_text(yaml.safe_dump_all(kept))
    assert main(["route", "lint", str(path)]) == 0
    assert "2 objectives, 0 errors" in capsys.readouterr().out


def test_a_certificate_is_for_both_doors_and_the_probes(written: Written) -> None:
    files = written(HERE, *PICKER, "--picker-tls-secret", "tls", "--pod-monitor")
    (container,) = pod(files)["containers"]
    assert "--ssl-certfile=/etc/penstock-tls/tls.crt" in container["command"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(files)["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert volumes["certificate"]["secret"] == {"secretName": "tls"}
    (endpoint,) = files["gateway-pod-monitor.yaml"]["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"


def test_keys_of_clients_and_replicas(written: Written) -> None:
    files = written(HERE, *PROXY, "--api-key-secret", "keys")
    (container,) = pod(files)["containers"]
    secrets = {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]
        for entry in container["env"]
        if "valueFrom" in entry
    }
    key = {"name": "keys", "key": "api-key"}
    assert secrets == {"PENSTOCK_API_KEY": key, "PENSTOCK_BACKEND_API_KEY": key}


def test_every_port_of_the_gateway_is_let_in(written: Written) -> None:
    for front in (PROXY, PICKER):
        files = written(HERE, *front)
        (container,) = pod(files)["containers"]
        (rule,) = files["gateway-network-policy.yaml"]["spec"]["ingress"]
        open_ports = {port["port"] for port in rule["ports"]}
        assert open_ports == {port["containerPort"] for port in container["ports"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--objective", "a=1"], "give --gateway"),
        (["--gateway-image", "i"], "give --gateway"),
        (["--gateway", "proxy", "--objective", "a=1"], "--gateway CLASS"),
        (["--gateway", "istio", "--objective", "a=x"], "a whole number"),
        (["--gateway", "istio", "--objective", "a"], "NAME=VALUE"),
        (["--gateway", "Istio_1"], "--gateway"),
    ],
)
def test_gateways_that_are_refused(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c", *given]
    assert main(["deploy", "k8s", str(plan(HERE)), *asked]) in (1, 2)
    assert said in capsys.readouterr().err


def test_another_engines_image_is_not_a_gateways(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c", "--gateway", "proxy"]
    assert main(["deploy", "k8s", str(plan("vllm-one-device")), *asked]) == 1
    assert "--gateway-image" in capsys.readouterr().err
