"""kubeconform, and the schemas that it asks for: of Kubernetes' own kinds and of defined ones.

tests/fixtures/kubernetes/openapi has the OpenAPI definitions of the kinds that manifests have, as
the API server of that version serves them, without descriptions (Apache-2.0).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.deploy.definitions import definitions, strict
from tests.deploy.programs import program
from tests.kubernetes.bed import CRDS
from tests.kubernetes.binary import VERSION

NATIVE = CRDS / f"openapi/v{VERSION}.json"
REFERENCE = "#/definitions/"
METADATA = f"{REFERENCE}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
TEXT_OR_NUMBER = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
TEMPLATE = "{{.ResourceKind}}{{.KindSuffix}}.json"
"""Name of a schema's file: kubeconform's suffix has the group's first label and the version."""


def kubeconform() -> Path:
    """The program; the test is skipped, with the reason, where it cannot be built."""
    return program("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")


def native() -> dict[str, Any]:
    """OpenAPI definitions by name."""
    found: dict[str, Any] = json.loads(NATIVE.read_text())
    return found


def write_schemas(folder: Path) -> None:
    """A file for each kind, in which no field is taken that the kind does not have."""
    known = {name: strict(each) for name, each in native().items()}
    known[TEXT_OR_NUMBER] = {"type": ["string", "integer"]}
    for name, definition in native().items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            schema = {"$ref": f"{REFERENCE}{name}", "definitions": known}
            _write(folder, kind["kind"], kind["group"], kind["version"], schema)
    for custom in definitions():
        spec = custom["spec"]
        (version,) = spec["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        text = {"type": "string"}
        own = {"apiVersion": text, "kind": text, "metadata": {"$ref": METADATA}}
        whole = strict({**schema, "properties": {**schema["properties"], **own}})
        whole["definitions"] = known
        _write(folder, spec["names"]["kind"], spec["group"], version["name"], whole)


def _write(folder: Path, kind: str, group: str, version: str, schema: object) -> None:
    words = [kind.lower(), *filter(None, [group.partition(".")[0]]), version]
    (folder / f"{'-'.join(words)}.json").write_text(json.dumps(schema))


def findings(schemas: Path, *manifests: Path) -> tuple[int, list[str]]:
    """How many objects were checked, and what is wrong with which."""
    done = subprocess.run(
        [
            *(kubeconform(), "-strict", "-verbose", "-output", "json"),
            *("-schema-location", f"{schemas}/{TEMPLATE}", *manifests),
        ],
        capture_output=True,
        text=True,
        check=False,
        # Without a network by its own choice: no schema is anywhere else.
        env={"HTTPS_PROXY": "http://127.0.0.1:9"},
    )
    results = json.loads(done.stdout)["resources"]
    wrong = [each for each in results if each["status"] != "statusValid"]
    assert (done.returncode == 0) is (not wrong), done.stderr
    return len(results), [f"{each['kind']} {each['name']}: {each['msg']}" for each in wrong]
