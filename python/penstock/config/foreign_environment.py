"""Translates environment variables of LMCache and of vLLM's Ray executor into settings, or warns
about them.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

from penstock.config.sections import without_password
from penstock.core import InvalidValueError

_GIB = 2**30
CPU_SIZE, LOCAL_CPU = "LMCACHE_MAX_LOCAL_CPU_SIZE", "LMCACHE_LOCAL_CPU"
DISK, DISK_SIZE = "LMCACHE_LOCAL_DISK", "LMCACHE_MAX_LOCAL_DISK_SIZE"
GDS, REMOTE, CHUNK = "LMCACHE_GDS_PATH", "LMCACHE_REMOTE_URL", "LMCACHE_CHUNK_SIZE"
NEEDLESS = {
    LOCAL_CPU: "",
    CPU_SIZE: f"{LOCAL_CPU} is false, or it is 0",
    "LMCACHE_CUFILE_BUFFER_SIZE": "the buffers of GPUDirect Storage are those of the loads",
    "LMCACHE_EXTRA_CONFIG": "the engine looks prefixes up once for all ranks",
    "LMCACHE_USE_EXPERIMENTAL": "there is one implementation",
    DISK_SIZE: f"it is the size of {DISK} or {GDS}",
    CHUNK: "chunks are those of a tier, and there is none",
}
"""LMCache variables that Penstock ignores, each with the reason for the warning."""
DAG, OVERLAP = "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM"
OF_RAY = "VLLM_USE_RAY_"
ON_RAY = "is for ranks on Ray: see --distributed-executor-backend ray"
GIVEN = "is given"
FALSE = ("", "0", "false")
Settings = dict[str, tuple[str, ...]]

log = logging.getLogger("penstock.config")


def lmcache_settings(
    environ: Mapping[str, str], ranks: int, given: Container[str] = ()
) -> Settings:
    """Settings, by key, from LMCache's variables. Logs a warning for each variable: how it is
    translated, or why it is ignored, for example because its key is in `given`, the settings that
    the user has made otherwise. LMCache counts memory and disk for each of the `ranks`; Penstock
    counts them for the whole engine. Raises InvalidValueError for an invalid size, and for a path
    without a size.
    """
    said = {
        name: text.strip().strip("\"'")
        for name, text in environ.items()
        if name.startswith("LMCACHE_")
    }
    used, texts = _tiers(said, ranks)
    found: Settings = {"kv_tier": tuple(texts)} if texts else {}
    own_chunk = bool(texts) and "kv_chunk_tokens" in given
    if texts and not own_chunk and (chunk := said.get(CHUNK)):
        found["kv_chunk_tokens"] = (chunk,)
        used.append(CHUNK)
    if texts:
        words = " ".join(f"--kv-tier {without_password(text)}" for text in texts)
        log.warning("%s understood as %s%s", ", ".join(used), words, _for_ranks(said, ranks))
    for name in sorted(said.keys() - set(used)):
        if name == CHUNK and own_chunk:
            log.warning("%s is ignored: --kv-chunk-tokens %s", name, GIVEN)
        elif why := NEEDLESS.get(name, "it sets nothing here; see --kv-tier"):
            log.warning("%s is ignored: %s", name, why)
    return found


def _tiers(said: Mapping[str, str], ranks: int) -> tuple[list[str], list[str]]:
    """Names of the variables in use, and the tiers that they define, as values of --kv-tier."""
    used: list[str] = []
    texts: list[str] = []
    size, room = (ranks * _gigabytes(said, name) for name in (CPU_SIZE, DISK_SIZE))
    if size and said.get(LOCAL_CPU, "true").lower() not in FALSE:
        used.append(CPU_SIZE)
        texts.append(f"ram:{size}")
    for name, option in ((DISK, ""), (GDS, ",gds=true")):
        path = said.get(name, "").removeprefix("file://")
        if not path:
            continue
        if not room:
            remedy = f"{DISK_SIZE} beside it, or --kv-tier disk:{path},SIZE{option} in its place"
            raise InvalidValueError(name, path, remedy)
        used += [name, *([] if DISK_SIZE in used else [DISK_SIZE])]
        texts.append(f"disk:{path},{room}{option}")
    if remote := said.get(REMOTE):
        used.append(REMOTE)
        texts.append(remote)
    return used, texts


def _for_ranks(said: Mapping[str, str], ranks: int) -> str:
    sized = any(said.get(name) for name in (CPU_SIZE, DISK_SIZE))
    return f": sizes of LMCache are for each of {ranks} ranks" if ranks > 1 and sized else ""


def _gigabytes(said: Mapping[str, str], name: str) -> int:
    """The variable's size in bytes; 0 if it is not set. LMCache's sizes are numbers of GiB (2**30
    bytes), with fractions.
    """
    text = said.get(name)
    if not text:
        return 0
    try:
        return int(float(text) * _GIB)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(name, text, "a number of GiB") from error


def ray_settings(
    environ: Mapping[str, str], *, on_ray: bool, on_gpus: bool, given: Container[str] = ()
) -> Settings:
    """Settings, by key, from the switches of vLLM's Ray executor. Logs a warning for each switch.
    On GPUs a compiled graph carries tensors, and communication may overlap computation. If the user
    has set the channel (`given`), the switches have no effect.
    """
    found: Settings = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(OF_RAY) or text.strip().lower() in FALSE:
            continue
        flag = ""
        if not on_ray:
            log.warning("%s is ignored: it %s", name, ON_RAY)
        elif "ray_channel" in given:
            log.warning("%s is ignored: --ray-channel %s", name, GIVEN)
        elif name == OVERLAP and "ray_overlap_comm" in given:
            log.warning("%s is ignored: --ray-overlap-comm %s", name, GIVEN)
        elif name == DAG:
            found["ray_channel"] = ("compiled-graph-tensors" if on_gpus else "compiled-graph",)
            flag = f"--ray-channel {found['ray_channel'][0]}"
        elif name == OVERLAP and on_gpus and environ.get(DAG, "").strip().lower() not in FALSE:
            found["ray_overlap_comm"] = ("true",)
            flag = "--ray-overlap-comm"
        elif name == OVERLAP:
            why = "--ray-overlap-comm is for --device cuda and --ray-channel compiled-graph-tensors"
            log.warning("%s is ignored: %s", name, why)
        else:
            log.warning("%s is ignored: see --ray-channel", name)
        if flag:
            log.warning("%s understood as %s", name, flag)
    return found
