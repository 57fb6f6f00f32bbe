"""Where the API server of a cluster is, and as whom it is asked: a kubeconfig file, or the service
account of the pod that this runs in.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config.documents import read_document
from penstock.core import PenstockError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

UNSUPPORTED = {
    "exec": "a command",
    "auth-provider": "an authentication provider",
    "username": "a password",
}
"""What a user of a kubeconfig may have that is not looked at."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    cluster: Mapping[str, object]
    """As `Cluster` in crates/kube/src/cluster.rs."""
    namespace: str
    """The one that is meant where none is named."""


def cluster_access(
    kubeconfig: Path | None,
    environ: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> ClusterAccess:
    """Access by the current context of a kubeconfig, else by the service account of this pod.
    PenstockError names what is missing.
    """
    if kubeconfig is not None:
        return _from_kubeconfig(kubeconfig)
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise PenstockError(
            "this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set): "
            "give --kubeconfig FILE"
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


def _from_kubeconfig(path: Path) -> ClusterAccess:
    content = read_document(path)
    current = content.get("current-context")
    if not current:
        raise PenstockError(f"{path}: there is no current-context")
    context = _named(path, content, "contexts", "context", current)
    cluster = _named(path, content, "clusters", "cluster", context.get("cluster"))
    user = _named(path, content, "users", "user", context.get("user"))
    return ClusterAccess(
        cluster=_cluster(path, cluster) | _user(path, user),
        namespace=str(context.get("namespace") or "default"),
    )


def _named(
    path: Path, content: Mapping[str, object], key: str, member: str, name: object
) -> dict[str, object]:
    """The entry of a list that has this name."""
    entries = content.get(key)
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(member) or {}
            if isinstance(found, dict):
                return found
    raise PenstockError(f"{path}: {key} has no {name!r}")


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
                "tokenFile or a client certificate is (`kubectl create token`)"
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
    """A file, beside the kubeconfig where its path is relative, or what the kubeconfig carries."""
    data = holder.get(f"{key}-data")
    if data:
        try:
            return {"text": base64.b64decode(str(data), validate=True).decode()}
        except (binascii.Error, UnicodeDecodeError) as error:
            raise PenstockError(f"{path}: {key}-data is no PEM in Base64") from error
    return {"file": str(path.parent / str(holder[key]))} if holder.get(key) else None
