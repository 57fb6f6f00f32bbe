"""Writes the files of a Helm chart."""

from __future__ import annotations

import json
from pathlib import Path

from penstock import __version__
from penstock.core import PenstockError
from penstock_ops.deploy.chart.places import places
from penstock_ops.deploy.chart.values import COMMENTS, schema, values
from penstock_ops.deploy.emit import dump, under
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.files import FILES
from penstock_ops.deploy.kinds.inference_objective import inference_objective
from penstock_ops.deploy.kinds.smoke_test import smoke_test
from penstock_ops.deploy.kubernetes import check
from penstock_ops.deploy.parts import Condition, Text, Truth, ValueReference
from penstock_ops.deploy.settings import Settings

OBJECTIVES = "range $objective, $priority := $.Values.gateway.objectives"
NOTES = """\
{{ $.Release.Name }} serves the OpenAI API at http://{{ $.Release.Name }}:8000/v1 in this namespace
when its pods are ready:

  kubectl -n {{ $.Release.Namespace }} get pods -l app.kubernetes.io/instance={{ $.Release.Name }}
"""


def chart(settings: Settings) -> dict[str, str]:
    """File contents by name. values.yaml has the plan's choice; features that the plan does not
    choose are disabled. PenstockError for a plan that pods cannot serve, and for settings that need
    a cluster-wide object.
    """
    check(settings)
    if settings.nic_interfaces:
        raise PenstockError("a NicClusterPolicy is the cluster's: see `penstock deploy k8s`")
    if settings.volume.nfs or settings.kv_volume.nfs:
        raise PenstockError(
            "a PersistentVolume is the cluster's: make it by `penstock deploy k8s`, and give its "
            "claim by --claim, or --kv-volume claim:NAME"
        )
    if settings.front and (settings.front.canary or settings.front.mirror):
        raise PenstockError("--canary and --mirror name another release: `penstock deploy k8s`")
    return {
        "Chart.yaml": _head(),
        "values.yaml": _commented(values(settings)),
        "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        **{f"templates/{name}": text for name, text in templates().items()},
    }


def templates() -> dict[str, str]:
    """The chart's template files by name. They are the same for all plans."""
    known = places()
    found = {
        file.name: _template(file.make(known), condition)
        for file in FILES
        if (condition := file.condition(known)) is not False
    }
    found["objectives.yaml"] = _objectives(known)
    found["tests/answers.yaml"] = dump(smoke_test(known))
    found["NOTES.txt"] = NOTES
    return found


def _template(manifest: dict[str, object], condition: Truth) -> str:
    text = dump(manifest)
    if not isinstance(condition, Condition):
        return text
    return "\n".join(under(condition, text.splitlines())) + "\n"


def _objectives(known: Facts) -> str:
    one = dump(inference_objective(known, Text.at("$objective"), ValueReference("$priority")))
    each = ["---", *one.splitlines()]
    looped = [f"{{{{- {OBJECTIVES} }}}}", *each, "{{- end }}"]
    condition = known.picked
    assert isinstance(condition, Condition)
    return "\n".join(under(condition, looped)) + "\n"


def _head() -> str:
    return dump(
        {
            "apiVersion": "v2",
            "name": "penstock",
            "description": "Pods of a plan, made by penstock deploy helm",
            "type": "application",
            "version": __version__,
            "appVersion": __version__,
        }
    )


def _commented(chosen: dict[str, object]) -> str:
    return "\n".join(f"# {COMMENTS[key]}\n{dump({key: part})}" for key, part in chosen.items())


def write_chart(files: dict[str, str], directory: Path) -> list[Path]:
    """Write the files of `chart`. Existing files that the chart no longer has stay in
    `directory`.
    """
    written = []
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
