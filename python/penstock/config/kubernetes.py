"""Address and credentials of a Kubernetes cluster's API server, from a kubeconfig file or from the
service account of the pod that this process runs in.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.config.documents import read_document
from penstock.core import PenstockError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

UNSUPPORTED = {
    "auth-provider": "an authentication provider",
    "username": "a password",
}
"""Members of a kubeconfig user with credentials that are not supported, each in words for
errors.
"""
EXEC_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))

Kubeconfig = Sequence[tuple[Path, Mapping[str, object]]]
"""Kubeconfig files with their contents. If several have an entry of one name, the first file wins,
as in kubectl.
"""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    cluster: Mapping[str, object]
    """JSON of `Cluster` in crates/gateway/kube/src/cluster.rs."""
    namespace: str
    """Namespace that is used where none is given."""


def default_kubeconfigs(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The files that the environment variable KUBECONFIG lists."""
    return tuple(Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name)


def cluster_access(
    kubeconfig: Path | None,
    environ: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> ClusterAccess:
    """Access to a cluster by the current context of `kubeconfig`, else of the files in KUBECONFIG,
    else by the service account of this pod. Raises PenstockError, which names the missing part.
    """
    if kubeconfig is not None:
        return _from_kubeconfigs([(kubeconfig, read_document(kubeconfig))], environ)
    if named := default_kubeconfigs(environ):
        there = [(path, read_document(path)) for path in named if path.exists()]
        if not there:
            raise PenstockError(f"KUBECONFIG={environ['KUBECONFIG']}: there is no such file")
        return _from_kubeconfigs(there, environ)
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise PenstockError(
            "this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set): "
            "give --kubeconfig FILE, or set KUBECONFIG"
        )
    token, authorities = account / "token", account / "ca.crt"
    if not token.is_file():
        raise PenstockError(
            f"{token} is missing: the pod has no service account token "
            "(automountServiceAccountToken)"
        )
    namespace = account / "namespace"
    return ClusterAccess(
        cluster={
            "server": f"https://{f'[{host}]' if ':' in host else host}:{port}",
            "authorities": {"file": str(authorities)},
            "token": {"file": str(token)},
        },
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )


def _from_kubeconfigs(files: Kubeconfig, environ: Mapping[str, str]) -> ClusterAccess:
    contexts = (
        (path, content["current-context"])
        for path, content in files
        if content.get("current-context")
    )
    path, current = next(contexts, (files[0][0], None))
    if current is None:
        raise PenstockError(f"{path}: there is no current-context")
    path, context = _named(path, files, "contexts", "context", current)
    from_cluster, cluster = _named(path, files, "clusters", "cluster", context.get("cluster"))
    from_user, user = _named(path, files, "users", "user", context.get("user"))
    found = _cluster(from_cluster, cluster) | _user(from_user, user)
    if user.get("exec"):
        found["exec"] = _plugin(from_user, user["exec"], from_cluster, cluster, environ)
    return ClusterAccess(found, str(context.get("namespace") or "default"))


def _named(
    asked: Path, files: Kubeconfig, key: str, member: str, name: object
) -> tuple[Path, dict[str, object]]:
    """The member `member` of the entry with this name in the list at `key`, and the file that
    contains it. Errors name the file `asked`.
    """
    for path, content in files:
        entries = content.get(key)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(member) or {}
                if isinstance(found, dict):
                    return path, found
    raise PenstockError(f"{asked}: {key} has no {name!r}")


def _cluster(path: Path, cluster: Mapping[str, object]) -> dict[str, object]:
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise PenstockError(f"{path}: the server is {server!r}, and has to be a URL")
    for key in ("insecure-skip-tls-verify", "tls-server-name", "proxy-url"):
        if cluster.get(key):
            raise PenstockError(f"{path}: {key} is not supported")
    authorities = _material(path, cluster, "certificate-authority")
    return {"server": server, **({"authorities": authorities} if authorities else {})}


def _user(path: Path, user: Mapping[str, object]) -> dict[str, object]:
    for key, what in UNSUPPORTED.items():
        if user.get(key):
            raise PenstockError(
                f"{path}: the user is known by {what} ({key}), which is not supported; a token, a "
                "tokenFile, a client certificate or exec is (`kubectl create token`)"
            )
    found: dict[str, object] = {}
    if user.get("tokenFile"):
        found["token"] = {"file": str(path.parent / str(user["tokenFile"]))}
    elif user.get("token"):
        found["token"] = {"text": str(user["token"])}
    certificate = _material(path, user, "client-certificate")
    secret = _material(path, user, "client-key")
    if (certificate is None) != (secret is None):
        raise PenstockError(f"{path}: client-certificate and client-key go together")
    if certificate is not None:
        found |= {"certificate": certificate, "key": secret}
    return found


def _material(path: Path, holder: Mapping[str, object], key: str) -> dict[str, object] | None:
    """A credential at `key`, given as a file (relative to the kubeconfig) or as text in the
    kubeconfig; None if there is none.
    """
    data = holder.get(f"{key}-data")
    if data:
        try:
            return {"text": base64.b64decode(str(data), validate=True).decode()}
        except (binascii.Error, UnicodeDecodeError) as error:
            raise PenstockError(f"{path}: {key}-data is no PEM in Base64") from error
    return {"file": str(path.parent / str(holder[key]))} if holder.get(key) else None


def _plugin(
    path: Path,
    given: object,
    from_cluster: Path,
    cluster: Mapping[str, object],
    environ: Mapping[str, str],
) -> dict[str, object]:
    """A command that prints credentials: `Plugin` in crates/gateway/kube/src/plugin.rs."""
    plugin = given if isinstance(given, dict) else {}
    version, command = plugin.get("apiVersion"), str(plugin.get("command") or "")
    if version not in EXEC_VERSIONS:
        raise PenstockError(
            f"{path}: exec.apiVersion is {version!r}; supported is {', '.join(EXEC_VERSIONS)}"
        )
    if plugin.get("interactiveMode") == "Always":
        raise PenstockError(f"{path}: exec asks at a terminal (interactiveMode), and there is none")
    # As in kubectl, a path is relative to the kubeconfig, and a bare name is looked up in PATH.
    place = str(path.parent / command) if os.sep in command else command
    program = shutil.which(place, path=environ.get("PATH")) if command else None
    if program is None:
        hint = plugin.get("installHint")
        raise PenstockError(
            f"{path}: exec.command {command!r} is no program{f': {hint}' if hint else ''}"
        )
    spec: dict[str, object] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(from_cluster, cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    pairs = [one for one in plugin.get("env") or [] if isinstance(one, dict)]
    env = {str(one.get("name")): str(one.get("value", "")) for one in pairs}
    return {
        "program": program,
        "args": [str(word) for word in plugin.get("args") or []],
        "env": env | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
        "api_version": version,
    }


def _cluster_info(path: Path, cluster: Mapping[str, object]) -> dict[str, object]:
    """The data about the cluster that a credential plugin gets (`Cluster` of
    client.authentication.k8s.io/v1).
    """
    info: dict[str, object] = {"server": cluster["server"]}
    authorities = _material(path, cluster, "certificate-authority") or {}
    if "file" in authorities:
        file = Path(str(authorities["file"]))
        try:
            pem = file.read_bytes()
        except OSError as error:
            raise PenstockError(f"{path}: certificate-authority: {error}") from error
        info["certificate-authority-data"] = base64.b64encode(pem).decode()
    elif authorities:
        info["certificate-authority-data"] = cluster["certificate-authority-data"]
    extensions = cluster.get("extensions")
    for one in extensions if isinstance(extensions, list) else []:
        if isinstance(one, dict) and one.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = one.get("extension")
    return info
