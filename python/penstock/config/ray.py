"""Ray's own settings, which Ray reads from the environment on import."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, MutableMapping
from pathlib import Path

LOCAL = "local"
"""Ray's name for a cluster that is started for this engine alone."""
PASSED = ("RUST_BACKTRACE",)
"""Environment variables of the engine that are passed on to ranks. Ranks get their settings in
`EngineConfig`. Keys are never passed on.
"""


def prepare_ray_environment(
    asked: str | None, environ: MutableMapping[str, str] = os.environ, home: Path | None = None
) -> str:
    """Returns the address of the cluster to use. Sets Ray's settings in `environ`, where Ray reads
    them.

    Usage statistics are off. A private cluster uses a token, by default a random one that is not
    stored. An existing cluster is joined with its token if there is one, unless RAY_AUTH_MODE says
    otherwise.
    """
    address = asked or environ.get("RAY_ADDRESS") or LOCAL
    environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL:
        environ["RAY_AUTH_MODE"] = "token"
        # Ray reads the token once in each process, so private clusters that are started later have
        # the same token.
        environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    elif not environ.get("RAY_AUTH_MODE"):
        environ["RAY_AUTH_MODE"] = (
            "token" if _has_token(environ, home or Path.home()) else "disabled"
        )
    return address


def ray_actor_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: environ[name] for name in PASSED if name in environ}


def _has_token(environ: Mapping[str, str], home: Path) -> bool:
    given = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(given) or (home / ".ray" / "auth_token").is_file()
