"""Collects settings from their sources, by precedence: command line flags, environment variables,
configuration file. All values are text.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.devices import DEVICES
from penstock.config.flags import BY_KEY, FLAGS, Flag
from penstock.config.foreign_environment import lmcache_settings, ray_settings
from penstock.config.kinds import JsonObject, Section, Text
from penstock.config.kv_events import KvEvents
from penstock.config.tiers import Tier
from penstock.config.vllm_flags import BY_NAME
from penstock.core import InvalidValueError, PenstockError

if TYPE_CHECKING:
    from penstock.config.files import Setting

MODEL = "model"
PREFIX = "PENSTOCK_"
OTHER_VARIABLES = {f"{PREFIX}{name}" for name in ("CACHE", "CONFIG", "CLUSTER_TOKEN")}
"""Environment variables that are read in addition to those of flags."""
_KUBERNETES = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_RANKS = re.compile(r"[0-9]{1,9}")
log = logging.getLogger("penstock.config")
IN_FILES = {MODEL: Flag("MODEL", "model", Text(), None, "what to serve"), **BY_KEY}
"""Settings that a file may have, by key: all flags, and the model, which is positional on the
command line.
"""
_AS_JSON = {key for key, flag in BY_KEY.items() if isinstance(flag.kind, JsonObject | KvEvents)}


@dataclass(frozen=True, slots=True)
class Raw:
    """One setting as written. `place` names its source: a flag, a variable, or a key of a file."""

    place: str
    texts: tuple[str | Section, ...]
    """Values as text. A value that consists of parts may be a section, if it comes from a file."""


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory in which `penstock pull` keeps models: $PENSTOCK_CACHE, or `penstock` in the user's
    cache directory.
    """
    own = environ.get("PENSTOCK_CACHE")
    if own:
        return Path(own)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def openai_api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """API key for OpenAI-compatible servers, from OPENAI_API_KEY, which all their clients read."""
    return environ.get("OPENAI_API_KEY") or None


def backend_api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """API key with which a gateway calls its replicas. It is in the environment, because a command
    line would expose it.
    """
    return environ.get("PENSTOCK_BACKEND_API_KEY") or None


def gateway_api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """API key that a gateway's clients need, from the variable that `penstock serve` reads too."""
    return environ.get("PENSTOCK_API_KEY") or None


def notify_socket(environ: Mapping[str, str] = os.environ) -> str | None:
    """Path of the socket on which a service manager waits to be notified of readiness (sd_notify);
    None without one.
    """
    return environ.get("NOTIFY_SOCKET") or None


def tool_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for programs whose output is parsed: messages in English, and the
    directories of system tools, which an ordinary user's PATH may lack.
    """
    path = f"{environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    return {**environ, "LC_ALL": "C", "PATH": path}


def replica_environment(
    key: str, runtime: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Environment of a replica behind this process's gateway. It lacks the settings that apply to
    the gateway, and the service manager's socket. The API key of the replica is in it, because any
    user of the machine can read a command line.
    """
    hidden = ("PENSTOCK_API_KEY_FILE", "PENSTOCK_REPLICAS", "NOTIFY_SOCKET")
    kept = {name: value for name, value in environ.items() if name not in hidden}
    return {**kept, "PENSTOCK_API_KEY": key, "XDG_RUNTIME_DIR": runtime}


def runtime_directory(environ: Mapping[str, str] = os.environ) -> str | None:
    """The user's runtime directory ($XDG_RUNTIME_DIR), for sockets; None if there is none."""
    own = environ.get("XDG_RUNTIME_DIR")
    return own if own and Path(own).is_dir() else None


def shared_memory_directory(
    environ: Mapping[str, str] = os.environ, usual: Path = Path("/dev/shm")
) -> Path:
    """Directory for the shared memory of local ranks: /dev/shm, else the directory for sockets."""
    if usual.is_dir() and os.access(usual, os.W_OK | os.X_OK):
        return usual
    return Path(runtime_directory(environ) or tempfile.gettempdir())


def heartbeat_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory for the heartbeat files of this user's node agents."""
    return Path(runtime_directory(environ) or tempfile.gettempdir())


def gather(
    flags: Mapping[str, tuple[str, ...]],
    config_file: str | None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Raw]:
    """All settings, by key, each from its source of highest precedence. `flags` has those of the
    command line, `config_file` the value of --config.
    """
    chosen = config_file or environ.get("PENSTOCK_CONFIG")
    found = from_file(Path(chosen)) if chosen else {}
    notice_unknown(environ)
    for flag in FLAGS:
        text = environ.get(flag.env)
        if text is not None and _is_address(flag.env, text):
            notice_service(flag.env, text)
        elif text is not None and not _of_kubernetes(flag.env, text):
            texts = tuple(text.strip().split(flag.separator)) if flag.repeatable else (text,)
            found[flag.key] = Raw(flag.env, texts)
    found.update({key: Raw(BY_KEY[key].name, texts) for key, texts in flags.items()})
    if "kv_tier" not in found:
        settings = lmcache_settings(environ, _ranks(found), given=found)
        _add(found, "LMCACHE_* in the environment", settings)
    on_ray = _said(found, "distributed_executor_backend") == "ray"
    on_gpus = _said(found, "device") in DEVICES
    switches = ray_settings(environ, on_ray=on_ray, on_gpus=on_gpus, given=found)
    _add(found, "VLLM_USE_RAY_* in the environment", switches)
    return found


def notice_unknown(environ: Mapping[str, str]) -> None:
    """Warn about environment variables that have the prefix of settings but match none. Variables
    that Kubernetes sets for a service called penstock are ignored.
    """
    known = {flag.env for flag in FLAGS} | OTHER_VARIABLES
    for name, text in environ.items():
        if name.startswith(PREFIX) and name not in known and not _of_kubernetes(name, text):
            rests = [each.removeprefix(PREFIX) for each in sorted(known)]
            close = get_close_matches(name.removeprefix(PREFIX), rests, n=1, cutoff=0.7)
            hint = f"; did you mean {PREFIX}{close[0]}?" if close else ""
            log.warning("%s in the environment is no setting%s", name, hint)


def notice_service(name: str, text: str) -> None:
    """Warn about a variable with the name of a setting that holds the address of a Kubernetes
    Service.
    """
    service = name.removesuffix("_PORT").lower().replace("_", "-")
    log.warning(
        "%s=%s is the address of a Kubernetes Service named %s, no setting: it is ignored; "
        "enableServiceLinks: false in the pod keeps it out",
        name,
        text,
        service,
    )


def _of_kubernetes(name: str, text: str) -> bool:
    """Whether Kubernetes has set this variable for a service called penstock."""
    return bool(_KUBERNETES.fullmatch(name)) or _is_address(name, text)


def _is_address(name: str, text: str) -> bool:
    return name.endswith("_PORT") and text.startswith(("tcp://", "udp://", "sctp://"))


def _add(found: dict[str, Raw], place: str, settings: Mapping[str, tuple[str, ...]]) -> None:
    for key, texts in settings.items():
        found.setdefault(key, Raw(place, texts))


def _said(found: Mapping[str, Raw], key: str) -> str:
    """The text of a setting; empty if it is not set."""
    raw = found.get(key)
    return str(raw.texts[0]) if raw is not None and raw.texts else ""


def _ranks(found: Mapping[str, Raw]) -> int:
    """Tensor times pipeline parallel size. Invalid sizes count as 1 here; they are reported
    elsewhere.
    """
    sizes = [_said(found, f"{name}_parallel_size") for name in ("tensor", "pipeline")]
    return math.prod(int(size) if _RANKS.fullmatch(size) else 1 for size in sizes)


def from_file(path: Path) -> dict[str, Raw]:
    # Imported late: the YAML parser is slow to import, and most servers have no configuration file.
    from penstock.config.files import read_settings

    found = {}
    for setting in read_settings(path, _AS_JSON):
        flag = IN_FILES.get(setting.key)
        if flag is None and _is_ignored(setting):
            continue
        if flag is None:
            fault = (
                f"unknown setting {setting.name!r}; the names are {MODEL} and those of the flags"
            )
            raise PenstockError(f"{setting.place}: {fault}")
        place = f"{setting.place}: {setting.name}"
        sections = any(isinstance(item, Section) for item in setting.items)
        if (setting.listed and not flag.repeatable) or (
            sections and not isinstance(flag.kind, Tier)
        ):
            raise InvalidValueError(place, setting.source, flag.kind.expected())
        found[setting.key] = Raw(place, setting.items)
    return found


def _is_ignored(setting: Setting) -> bool:
    """Whether a setting of the file is a vLLM flag without effect here; if so, its reason is
    logged. Raises the errors of `Foreign.notice`.
    """
    name = setting.key.replace("_", "-")
    foreign = BY_NAME.get(f"--{name}") or BY_NAME.get(f"--{name.removeprefix('no-')}")
    if foreign is None or (foreign.takes_value and foreign.key != setting.key):
        return False
    if not foreign.takes_value:
        false = setting.source.strip("\"'").lower() in ("false", "no", "off", "0")
        off = false != (foreign.key != setting.key) if foreign.refused else false
        if off:
            return True
    if notice := foreign.notice(f"{setting.place}: {setting.name}", setting.source):
        log.warning("%s", notice)
    return True


class NoModelError(InvalidValueError):
    """No model was named."""

    def __init__(self, message: str) -> None:
        PenstockError.__init__(self, message)
        self.field = MODEL


def model_named(raw: Mapping[str, Raw], argument: str | None) -> str:
    """The model named on the command line (`argument`), else in the file. Raises NoModelError if
    neither names a model.
    """
    said = raw.get(MODEL) if argument is None else Raw("MODEL", (argument,))
    if said is None:
        raise NoModelError(
            "which model? Name an alias (`penstock serve smollm2`), a GGUF file, a Hugging Face "
            f"directory or org/repo, or write `{MODEL}: NAME` into the file of --config"
        )
    name = said.texts[0]
    if not isinstance(name, str) or not name:
        expected = f"a model, on the command line or as `{MODEL}` in the file of --config"
        raise InvalidValueError(said.place, name, expected)
    return name
