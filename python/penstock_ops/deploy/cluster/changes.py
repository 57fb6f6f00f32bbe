"""Changes objects in a cluster: server-side apply, its dry run, and deletion."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.core import PenstockError
from penstock_ops.deploy.cluster.api import APPLY, CONFLICT, INVALID, NOT_FOUND, Api, ApiError
from penstock_ops.deploy.cluster.manifests import Reference
from penstock_ops.deploy.emit import dump

MANAGER = "penstock-deploy"
"""Name under which the API server records that Penstock set a field (its field manager)."""
SERVERS_OWN = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
"""Metadata fields that only the API server writes."""
GONE_TIMEOUT = 120
OLD_GROUPS = (
    "claims of pods need LeaderWorkerSet 0.8 or later: upgrade it, or penstock deploy k8s "
    "--claim-per-pod ephemeral"
)
"""Remedy for a LeaderWorkerSet whose definition does not have claims of pods."""


def live(api: Api, reference: Reference) -> dict[str, Any] | None:
    """The object in the cluster; None if it does not exist."""
    try:
        return api.call("GET", reference.path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def tried(api: Api, reference: Reference, *, force: bool) -> dict[str, Any]:
    """Dry run of an apply: returns the object that would result, with the server's defaults. It
    changes nothing. PenstockError names the object and the fault.
    """
    return _patched(api, reference, force=force, dryRun="All")


def applied(api: Api, reference: Reference, *, force: bool) -> str:
    """Apply the object. Returns created, configured, unchanged or replaced."""
    before = live(api, reference)
    try:
        after = _patched(api, reference, force=force)
    except ApiError as error:
        if before is None or not must_be_replaced(reference, error):
            raise
        delete(api, reference)
        _patched(api, reference, force=force)
        return "replaced"
    if before is None:
        return "created"
    # Compare contents: a claim gets a new resource version even if nothing changes.
    return "unchanged" if _comparable(before) == _comparable(after) else "configured"


def must_be_replaced(reference: Reference, error: ApiError) -> bool:
    """Whether an apply must delete and recreate the object. A Job's pods cannot be changed, and its
    download can be repeated.
    """
    return reference.kind == "Job" and error.status == INVALID


def _patched(api: Api, reference: Reference, *, force: bool, **query: str) -> dict[str, Any]:
    asked = {"fieldManager": MANAGER, "fieldValidation": "Strict", **query}
    if force:
        asked["force"] = "true"
    try:
        return api.call("PATCH", reference.path, reference.manifest, APPLY, **asked)
    except ApiError as error:
        raise ApiError(error.status, _explained(reference, error), error.causes) from error


def _explained(reference: Reference, error: ApiError) -> str:
    lines = [f"{reference.title}: {error}"]
    if error.status == CONFLICT:
        lines += [f"  {cause}" for cause in error.causes]
        lines.append("  others own these fields; --force-conflicts takes them over")
    elif "volumeClaimTemplates" in str(error):
        lines.append(f"  {OLD_GROUPS}")
    elif error.status == NOT_FOUND and reference.namespace:
        lines.append(f"  kubectl create namespace {reference.namespace}")
    return "\n".join(lines)


def difference(reference: Reference, before: Mapping[str, Any] | None, after: object) -> list[str]:
    """Lines of a unified diff between the object in the cluster and the one after an apply."""
    old = dump(_comparable(before)).splitlines() if before else []
    new = dump(_comparable(after)).splitlines()
    return list(
        difflib.unified_diff(
            old, new, f"cluster: {reference.title}", f"applied: {reference.title}", lineterm=""
        )
    )


def _comparable(found: object) -> dict[str, object]:
    """The object without fields that only the server writes."""
    data = dict(found) if isinstance(found, Mapping) else {}
    data.pop("status", None)
    metadata = data.get("metadata")
    if isinstance(metadata, Mapping):
        data["metadata"] = {key: metadata[key] for key in metadata if key not in SERVERS_OWN}
    return data


def delete(api: Api, reference: Reference, clock: Callable[[], float] = time.monotonic) -> bool:
    """Delete the object and its dependents (such as its pods), and wait until it is gone. Returns
    False if it did not exist. PenstockError if something blocks the deletion.
    """
    found = live(api, reference)
    if found is None:
        return False
    options = {
        "propagationPolicy": "Foreground",
        # Do not delete another object that was created under this name in the meantime.
        "preconditions": {"uid": found["metadata"]["uid"]},
    }
    try:
        api.call("DELETE", reference.path, options)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise PenstockError(f"{reference.title}: {error}") from error
    end = clock() + GONE_TIMEOUT
    while (now := live(api, reference)) is not None:
        if now["metadata"]["uid"] != found["metadata"]["uid"]:
            break
        if clock() > end:
            held = ", ".join(now["metadata"].get("finalizers") or ["its pods"])
            raise PenstockError(f"{reference.title} is marked, and not gone: {held} keeps it")
        time.sleep(0.5)
    return True
