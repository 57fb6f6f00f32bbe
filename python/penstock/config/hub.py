"""Settings of the Hugging Face hub, of its mirrors and of proxies, from environment variables. The
variables are the ones that the hub's own tools, and most programs, read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from penstock.core import InvalidValueError

ENDPOINT = "https://huggingface.co"
TIMEOUT = 10.0
_YES = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubSettings:
    endpoint: str
    """URL of the hub or of a mirror, without a trailing slash."""
    token: str | None
    """Access token; None without one."""
    cache: Path
    """Download directory, shared with the hub's own tools."""
    offline: bool
    """Whether downloads are disabled."""
    timeout: float
    """Timeout in seconds for connecting to a server, and for receiving data."""
    proxies: Mapping[str, str]
    """Proxy URL for each scheme, `http` or `https`."""
    no_proxy: tuple[str, ...]
    """Hosts and domains for which no proxy is used; `*` for all."""
    certificates: str | None
    """File of trusted certificates, which replace the system's; None for the system's
    certificates.
    """


def hub_settings(environ: Mapping[str, str] = os.environ) -> HubSettings:
    """The settings from the environment. Raises InvalidValueError for an invalid one."""
    endpoint = environ.get("HF_ENDPOINT") or ENDPOINT
    if not _is_address(endpoint):
        raise InvalidValueError("HF_ENDPOINT", endpoint, "an address such as https://HOST")
    proxies = {
        scheme: proxy
        for scheme in ("http", "https")
        if (proxy := _either(environ, f"{scheme}_proxy") or _either(environ, "all_proxy"))
    }
    hosts = _either(environ, "no_proxy").split(",")
    return HubSettings(
        endpoint=endpoint.rstrip("/"),
        token=_token(environ),
        cache=hub_cache(environ),
        offline=_is_on(environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE")),
        timeout=_seconds(environ, "HF_HUB_DOWNLOAD_TIMEOUT"),
        proxies=proxies,
        no_proxy=tuple(host.strip().lower() for host in hosts if host.strip()),
        certificates=environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE") or None,
    )


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory in which tools of the Hugging Face hub keep their downloads."""
    own = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(own or f"{_home(environ)}/hub").expanduser()


def _home(environ: Mapping[str, str]) -> str:
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return environ.get("HF_HOME") or f"{caches}/huggingface"


def _token(environ: Mapping[str, str]) -> str | None:
    """The token from the environment, else from the file that `hf auth login` writes."""
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if token is None and not _is_on(environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        file = Path(environ.get("HF_TOKEN_PATH") or f"{_home(environ)}/token").expanduser()
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    token = (token or "").strip()
    if not token.isascii() or not token.isprintable():
        # The error omits the value, because errors are logged.
        raise InvalidValueError("HF_TOKEN", "...", "a token of printable ASCII characters")
    return token or None


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_on(text: str | None) -> bool:
    return (text or "").upper() in _YES


def _seconds(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name)
    if not text:
        return TIMEOUT
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 100_000:
        raise InvalidValueError(name, text, "whole seconds above 0")
    return float(text)


def _either(environ: Mapping[str, str], name: str) -> str:
    """A variable that exists in upper and lower case; the lower-case one takes precedence, as in
    curl.
    """
    return environ.get(name) or environ.get(name.upper()) or ""
