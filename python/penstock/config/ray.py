"""Ray's own settings, which it reads from the environment on import."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, MutableMapping
from pathlib import Path

LOCAL = "local"
"""Ray's name for a private cluster."""
PASSED = ("RUST_BACKTRACE",)
"""Variables of this process that ranks inherit. Settings reach them as `EngineConfig`, keys never.
"""


def prepare_ray_environment(
    asked: str | None, environ: MutableMapping[str, str] = os.environ, home: Path | None = None
) -> str:
    """Address of the cluster, with Ray's own defaults made explicit.

    Usage statistics are off. A private cluster has a token, by default a random one that is not
    stored; to join another, its token is used if there is one, unless RAY_AUTH_MODE decides
    otherwise.
    """
    address = asked or environ.get("RAY_ADDRESS") or LOCAL
    environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL:
        environ["RAY_AUTH_MODE"] = "token"
        # Ray reads the token once per process: the next private cluster has the same.
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
