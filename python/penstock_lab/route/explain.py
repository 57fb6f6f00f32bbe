"""`penstock route explain`: explains a running gateway's choice of replica."""

from __future__ import annotations

import argparse
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.config import gateway_api_key
from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.table import figure, render

PATH = "/route/explain"
TIMEOUT = 60.0
"""Timeout in seconds of the request to the gateway."""


def explain(parsed: argparse.Namespace) -> int:
    """Print the gateway's decision. The exit status is 1 if no replica can serve the request."""
    body = _body(parsed.request)
    answer = _ask(parsed.gateway, body, _headers(parsed))
    if parsed.json:
        print(json.dumps(answer, indent=1))
    else:
        print("\n".join(lines(answer)))
    return int(answer["unroutable"] is not None)


def lines(answer: dict[str, Any]) -> list[str]:
    """A gateway's answer as text: the request, the decision, and a row for each replica."""
    renamed = "" if answer["model"] == answer["asked"] else f" as {answer['model']!r}"
    state = "saturated" if answer["saturated"] else "not saturated"
    tokens = figure(answer["prompt_tokens"], 0)
    head = [
        f"model {answer['asked']!r}: pool {answer['pool']}{renamed}, {state}",
        f"priority {answer['priority']}, tenant {answer['tenant']!r}, about {tokens} prompt tokens",
    ]
    if answer["unroutable"] is not None:
        head.append(f"no replica: {answer['unroutable']}")
    if answer["decision"] is not None:
        head.append(answer["decision"])
    replicas = answer["replicas"]
    scored: list[dict[str, Any]] = next((one["scores"] for one in replicas if one["scores"]), [])
    columns = [f"{score['name']} x {score['weight']:g}" for score in scored]
    headings = ["rank", "replica", "total", *columns, "waiting", "running", "KV", "cached", "why"]
    rows = [_row(place, one, len(columns)) for place, one in enumerate(replicas, start=1)]
    return [*head, "", *render(headings, rows)]


def _row(place: int, one: dict[str, Any], columns: int) -> list[str]:
    scores = [figure(score["score"]) for score in one["scores"]] or ["-"] * columns
    why = "" if one["condition"] == "ready" else one["condition"]
    if one["removed_by"] is not None:
        why = f"out: {one['removed_by']}" + (f" ({why})" if why else "")
    return [
        str(place) if one["total"] is not None else "-",
        one["address"],
        figure(one["total"]),
        *scores,
        figure(one["waiting"], 0),
        figure(one["running"], 0),
        f"{one['kv_use']:.0%}",
        _cached(one),
        why,
    ]


def _cached(one: dict[str, Any]) -> str:
    """Text with the request's cached tokens on a replica, weighted by tier, followed by the number
    in each tier if the replica reports it.
    """
    weighted = figure(one["cached_tokens"], 0)
    held = one["held_tokens"]
    if held is None or not any(held.values()):
        return weighted
    tiers = (f"{name} {figure(tokens, 0)}" for name, tokens in held.items() if tokens)
    return f"{weighted} ({' + '.join(tiers)})"


def _body(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error


def _headers(parsed: argparse.Namespace) -> dict[str, str]:
    found = {"content-type": "application/json"}
    key = parsed.api_key or gateway_api_key()
    if key is not None:
        found["authorization"] = f"Bearer {key}"
    for text in parsed.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidValueError("--header", text, "NAME:VALUE")
        found[name.strip()] = value.strip()
    return found


def _ask(url: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidValueError("--gateway", url, "http://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT)
    try:
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        text = response.read()
        answer = json.loads(text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PenstockError(f"{url}: {error}") from error
    finally:
        connection.close()
    if response.status == http.client.NOT_FOUND and PATH.encode() in text:
        raise PenstockError(f"{url}: a gateway with --explain is expected there")
    if response.status != http.client.OK:
        raise PenstockError(f"{url}: {response.status}: {_message(answer)}")
    assert isinstance(answer, dict)
    return answer


def _message(answer: object) -> object:
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("message") if isinstance(error, dict) else answer
