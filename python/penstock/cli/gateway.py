"""`penstock gateway`: a reverse proxy in front of replicas (docs/gateway.md)."""

from __future__ import annotations

import argparse
import json
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from penstock import __version__
from penstock.cli.descriptors import raise_descriptors
from penstock.cli.gateway_file import UNKNOWN_FIELD, check
from penstock.cli.gateway_flags import add_arguments
from penstock.cli.gateway_kubernetes import (
    RESOURCES,
    WrongSettingError,
    add_cluster_rules,
    has_pods,
    pods_of,
)
from penstock.config import (
    CERTIFICATE_AND_KEY,
    ClusterAccess,
    backend_api_key,
    cluster_access,
    default_kubeconfigs,
    gateway_api_key,
    notify_socket,
    read_document,
)
from penstock.config.documents import Tree, read_tree
from penstock.config.terminal import has_styles
from penstock.core import InvalidValueError, PenstockError
from penstock.inference_extension import Rules, read, rules_of

Access = Callable[[Path | None], ClusterAccess]


def run(parsed: argparse.Namespace) -> int:
    """Run the gateway until a signal ends it; returns its exit status after the drain."""
    connections = raise_descriptors()

    def again(resources: str) -> str:
        return json.dumps(_checked(parsed, settings(parsed, connections, resources)))

    return run_gateway(_checked(parsed, settings(parsed, connections)), again)


def _checked(parsed: argparse.Namespace, found: dict[str, object]) -> dict[str, object]:
    """Return the settings `found`. Raises WrongSettingError, with the line in the file of --config,
    if the gateway rejects them.
    """
    file = None if parsed.config is None else Path(parsed.config)
    check(found, file, _flags(parsed).keys())
    return found


def settings(
    parsed: argparse.Namespace,
    connections: int,
    resources: str = RESOURCES,
    access: Access = cluster_access,
) -> dict[str, object]:
    """Configuration of `crates/gateway/gateway` (`Config` in its src/config.rs). `resources` is a
    JSON array with the Kubernetes cluster's resources; `access` finds the cluster's API server.
    """
    found: dict[str, object] = {"host": "127.0.0.1", "port": 8080, "drain_timeout_s": 30.0}
    if parsed.config is not None:
        found |= _from_file(Path(parsed.config), parsed.kubeconfig, access)
    found |= _flags(parsed)
    _add_log(found, parsed)
    _add_picker(found, parsed)
    pool = _pool(parsed, access)
    if pool is not None and "pools" in found:
        raise InvalidValueError("--backend", "with pools in --config", "one of the two")
    if pool is not None:
        found["pools"] = [pool]
    if "pools" not in found:
        raise _without_replicas(parsed, found)
    limits = found.setdefault("limits", {})
    if isinstance(limits, dict):
        limits.setdefault("max_connections", connections)
        if parsed.max_request_bytes is not None:
            limits["max_body_bytes"] = parsed.max_request_bytes
    if parsed.profile is not None:
        found["watched"] = [*_watched(found), parsed.profile]
    if parsed.kubeconfig is not None:
        found["watched"] = [*_watched(found), parsed.kubeconfig]
    elif has_pods(found):
        found["watched"] = [*_watched(found), *map(str, default_kubeconfigs())]
    add_cluster_rules(found, resources)
    found["version"] = __version__
    found["notify_socket"] = notify_socket()
    return found


def _without_replicas(parsed: argparse.Namespace, found: Mapping[str, object]) -> WrongSettingError:
    """Error for a configuration without pools. The cause may be a misspelt key, so the message
    suggests one.
    """
    if parsed.config is None:
        return WrongSettingError("replicas are missing: --backend http://HOST:PORT, or --config")
    try:
        _checked(parsed, {**found, "pools": []})
    except WrongSettingError as error:
        if UNKNOWN_FIELD in str(error):
            return error
    return WrongSettingError(f"{parsed.config}:1: replicas are missing: pools, or --backend")


UNSEEN = ClusterAccess({"server": "https://unseen"}, "default")
"""Placeholder for a cluster, for checks that do not contact it."""


def complaint(path: Path) -> str | None:
    """The first error in a gateway.yaml, prefixed by its location; None if there is no error.
    Replicas are not contacted, so this finds only errors visible in the file.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    try:
        parsed = parser.parse_args(["--config", str(path)])
        _checked(parsed, settings(parsed, connections=1024, access=lambda _: UNSEEN))
    except PenstockError as error:
        said = str(error)
        place = re.match(rf"{re.escape(str(path))}:\d+(?=: )", said)
        return f"{place[0]}: error{said[place.end() :]}" if place else f"{path}: error: {said}"
    return None


def _watched(found: dict[str, object]) -> list[object]:
    watched = found.get("watched", [])
    assert isinstance(watched, list)
    return watched


def _flags(parsed: argparse.Namespace) -> dict[str, object]:
    """The gateway's settings from the command line."""
    given: dict[str, object] = {
        "host": parsed.host,
        "port": parsed.port,
        "uds": parsed.uds,
        "root_path": parsed.root_path,
        "api_keys": [*(parsed.api_key or []), *filter(None, [gateway_api_key()])] or None,
        "api_key_file": parsed.api_key_file,
        "backend_api_key": parsed.backend_api_key or backend_api_key(),
        "allowed_origins": parsed.allowed_origins,
        "ui": False if parsed.no_ui else None,
        "access_log": parsed.access_log or None,
        "otlp_traces_endpoint": parsed.otlp_traces_endpoint,
        "explain": parsed.explain or None,
        "replica_header": parsed.replica_header,
        "retries": parsed.retries,
        "resume_timeout_s": parsed.resume_timeout,
        "resume_bytes": parsed.resume_bytes,
        "resume_by_text": parsed.resume_by_text or None,
        "max_requests": parsed.max_requests,
        "drain_timeout_s": parsed.shutdown_timeout,
        "worker_threads": parsed.threads,
    }
    if (parsed.ssl_certfile is None) != (parsed.ssl_keyfile is None):
        raise WrongSettingError(CERTIFICATE_AND_KEY)
    if parsed.ssl_certfile is not None:
        given["tls"] = {"certificate": parsed.ssl_certfile, "key": parsed.ssl_keyfile}
    return {name: value for name, value in given.items() if value is not None}


def _add_log(found: dict[str, object], parsed: argparse.Namespace) -> None:
    """Add the settings of the log. Flags take precedence over the file, member by member."""
    flags = {"level": parsed.log_level, "format": parsed.log_format}
    given = {name: value for name, value in flags.items() if value is not None}
    in_file = found.get("log", {})
    if isinstance(in_file, dict):
        found["log"] = {"color": has_styles(), **in_file, **given}


def _add_picker(found: dict[str, object], parsed: argparse.Namespace) -> None:
    """Add the settings of the endpoint picker. Flags take precedence over the file, member by
    member.
    """
    given = found.get("ext_proc")
    picker: dict[str, object] = dict(given) if isinstance(given, dict) else {}
    if parsed.ext_proc is not None:
        host, port = _place(parsed.ext_proc, "HOST:PORT")
        picker |= {"host": host.strip("[]"), "port": port}
    if parsed.pool is not None:
        picker["pool"] = parsed.pool
    if picker and "port" in picker:
        found["ext_proc"] = picker
    elif parsed.pool is not None and "pools" in found:
        raise WrongSettingError("--pool is for the endpoint picker: give --ext-proc, too")


def _place(text: str, form: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit() or int(port) > 65535:
        raise WrongSettingError(f"{text!r} is not {form}")
    return name, int(port)


def _pool(parsed: argparse.Namespace, access: Access) -> dict[str, object] | None:
    """The pool that the flags describe; None without such flags."""
    named: list[dict[str, object]] = []
    if parsed.backend:
        named.append({"backends": parsed.backend})
    if parsed.backends_file is not None:
        named.append({"file": parsed.backends_file})
    if parsed.backends_dns is not None:
        named.append({"dns": parsed.backends_dns})
    if parsed.inference_pool is not None:
        named.append({"kubernetes": parsed.inference_pool})
    if len(named) > 1:
        raise WrongSettingError(
            "of --backend, --backends-file, --backends-dns and --inference-pool, give one"
        )
    if not named:
        return None
    pool = {"name": parsed.pool or _usual_name(parsed.inference_pool), **named[0]}
    if parsed.profile is not None:
        pool["profile"] = read_document(Path(parsed.profile))
    if parsed.queue:
        pool["flow"] = {"queue": True}
    if parsed.hedge is not None:
        pool["hedge"] = _hedge(parsed.hedge)
    place = "--backend" if parsed.inference_pool is None else "--inference-pool"
    return _with_source(pool, place, partial(access, _path(parsed.kubeconfig)))


def _usual_name(inference_pool: str | None) -> str:
    return "default" if inference_pool is None else inference_pool.rpartition("/")[2]


def _path(given: object) -> Path | None:
    return None if given is None else Path(str(given))


def _hedge(text: str) -> dict[str, float]:
    """Parse the value of --hedge: milliseconds such as 800, or a percentile such as p95."""
    try:
        if text.startswith("p"):
            return {"percentile": float(text[1:]) / 100}
        return {"after_ms": float(text)}
    except ValueError:
        raise InvalidValueError("--hedge", text, "milliseconds, or a percentile as p95") from None


def _from_file(path: Path, kubeconfig: str | None, access: Access) -> dict[str, object]:
    tree = read_tree(path)
    found = dict(cast("dict[str, object]", tree.content))
    own = found.pop("kubeconfig", None)
    files = [Path(str(file)) for file in _listed(found, "kinds", tree)]
    found.pop("kinds", None)
    found["watched"] = [str(path), *map(str, files)]
    if own is not None and kubeconfig is None:
        kubeconfig = str(own)
        found["watched"] = [*_watched(found), kubeconfig]
    pools = _listed(found, "pools", tree)
    rules = _rules(files, [str(pool.get("name")) for pool in pools if isinstance(pool, dict)])
    for key, more in (("models", rules.models), ("objectives", rules.objectives)):
        own = _listed(found, key, tree)
        names = [one.get("name") for one in own if isinstance(one, dict)]
        if own or more:
            found[key] = [*own, *(one for one in more if one["name"] not in names)]
    if pools:
        found["pools"] = [
            _with_source(
                pool,
                f"{tree.place('pools', at)}: pool {at + 1}",
                partial(access, _path(kubeconfig)),
                rules.ports,
            )
            if isinstance(pool, dict)
            else pool
            for at, pool in enumerate(pools)
        ]
    return found


def _listed(settings: dict[str, object], key: str, tree: Tree) -> list[object]:
    found = settings.get(key, [])
    if not isinstance(found, list):
        raise WrongSettingError(f"{tree.place(key)}: {key} is a list")
    return found


def _rules(files: list[Path], pools: list[str]) -> Rules:
    """Rules and objectives from resource files. Raises WrongSettingError for the first invalid
    one.
    """
    resources, findings = read(files)
    rules = rules_of(resources, pools)
    wrong = [one for one in [*findings, *rules.findings] if one.wrong]
    if wrong:
        raise WrongSettingError(f"{wrong[0]} (`penstock route lint` has all)")
    return rules


def _with_source(
    pool: dict[str, object],
    place: str,
    reach: Callable[[], ClusterAccess],
    ports: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """The settings of a pool in the form that the gateway reads: `source` replaces the member
    `backends`, `file`, `dns` or `kubernetes`. A host name without a port gets the pool's port from
    `ports`.
    """
    sources = [key for key in ("backends", "file", "dns", "kubernetes") if key in pool]
    if len(sources) != 1:
        raise WrongSettingError(f"{place}: one of backends, file, dns and kubernetes is expected")
    value = pool[sources[0]]
    rest = {key: item for key, item in pool.items() if key != sources[0]}
    if sources[0] == "backends":
        if not isinstance(value, list):
            raise WrongSettingError(f"{place}: backends is a list of URLs")
        backends = [{"url": item} if isinstance(item, str) else item for item in value]
        return {**rest, "source": {"static": backends}}
    if sources[0] == "file":
        return {**rest, "source": {"file": value}}
    if sources[0] == "kubernetes":
        return {**rest, "source": {"kubernetes": pods_of(value, place, reach)}}
    if ":" not in str(value) and ports and pool.get("name") in ports:
        value = f"{value}:{ports[str(pool['name'])]}"
    name, _, port = str(value).rpartition(":")
    if not name or not port.isdigit():
        raise WrongSettingError(f"{place}: {value!r} is not NAME:PORT")
    return {**rest, "source": {"dns": {"name": name, "port": int(port)}}}


def run_gateway(
    configuration: dict[str, object], reread: Callable[[str], str] | None = None
) -> int:
    """Run the gateway until a signal ends it; returns its exit status after the drain. When the
    cluster's resources or a file change, `reread` is called and returns the new configuration as
    JSON. Its exceptions are logged.
    """
    from penstock import _native

    # The gateway handles Ctrl-C. Python's handler would raise KeyboardInterrupt after a clean
    # shutdown.
    own = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _native.gateway(json.dumps(configuration), reread)
    except ValueError as error:
        raise WrongSettingError(str(error)) from error
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    finally:
        signal.signal(signal.SIGINT, own)
