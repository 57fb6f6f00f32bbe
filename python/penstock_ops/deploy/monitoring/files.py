"""The files and objects: boards, rules, scraping; for disks and for Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.monitoring.alerts import Bounds, alerts
from penstock_ops.deploy.monitoring.boards import BOARDS, board_text
from penstock_ops.deploy.settings import GATEWAY_PORT, PORT

GROUP = "penstock"
Made = dict[str, object]

SCRAPE = f"""\
# A part of prometheus.yml. /metrics needs no key. With --metrics-port, the port is that one.
scrape_configs:
  - job_name: penstock
    scrape_interval: 10s
    static_configs:
      - targets: ["server-1:{PORT}", "server-2:{PORT}"]
  - job_name: penstock-gateway
    scrape_interval: 10s
    static_configs:
      - targets: ["gateway:{GATEWAY_PORT}"]
rule_files: [rules.yaml]
"""


def rules(bounds: Bounds) -> Made:
    """The content of a file of rules."""
    return {"groups": [{"name": GROUP, "rules": [alert.rule() for alert in alerts(bounds)]}]}


def plain_files(bounds: Bounds) -> dict[str, str]:
    """Texts by name: for Grafana's import or provisioning, and for Prometheus."""
    boards = {f"{board.uid}.json": board_text(board) for board in BOARDS}
    return {**boards, "rules.yaml": dump(rules(bounds)), "scrape.yaml": SCRAPE}


def objects(name: str, bounds: Bounds, labels: Mapping[str, str]) -> dict[str, Made]:
    """Objects by the name of their file: a ConfigMap for each board, which Grafana's sidecar finds
    by its label, and the rules for the Prometheus operator. `labels` are those by which an operator
    selects rules, such as `release`.
    """
    found: dict[str, Made] = {}
    for board in BOARDS:
        kind = board.uid.removeprefix("penstock-")
        found[f"dashboard-{kind}.yaml"] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"{name}-dashboard-{kind}",
                "labels": {"grafana_dashboard": "1", **labels},
            },
            "data": {f"{name}-{kind}.json": board_text(board)},
        }
    found["prometheus-rule.yaml"] = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": rules(bounds),
    }
    return found
