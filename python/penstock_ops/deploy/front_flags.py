"""Flags of the gateway before the replicas."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.pod_flags import pair_of
from penstock_ops.deploy.settings import Front, Share, checked_name

MOST_PORT = 65_535
OF_GATEWAYS = ("gateway_image", "canary", "mirror")
"""Flags that need a gateway."""
OF_CLASSES = ("picker_tls_secret", "objective", "failure_mode", "listener", "plain_listener")
"""Flags that need a Gateway of a class."""


def add_front(parser: argparse.ArgumentParser) -> None:
    front = parser.add_argument_group("gateway")
    front.add_argument(
        "--gateway",
        default="",
        metavar="proxy|CLASS",
        help="penstock gateway before the replicas: as a proxy, or as the endpoint picker of a "
        "Gateway of CLASS with HTTPRoute and InferencePool",
    )
    front.add_argument(
        "--gateway-image", default="", metavar="IMAGE", help="of Penstock; default: --image"
    )
    front.add_argument(
        "--picker-tls-secret",
        default="",
        metavar="SECRET",
        help="with a certificate, where the Gateway speaks TLS to its picker",
    )
    front.add_argument(
        "--failure-mode",
        choices=("FailClose", "FailOpen"),
        help="while no picker answers a Gateway; default: FailClose",
    )
    front.add_argument("--listener", type=int, metavar="PORT", help="of a Gateway; default: 80")
    front.add_argument(
        "--plain-listener",
        type=int,
        metavar="PORT",
        help="a second one of a Gateway, which balances over the Service without the picker",
    )
    front.add_argument(
        "--canary",
        default="",
        metavar="NAME=PERCENT",
        help="another deployment (of a Gateway its InferencePool) that gets this share",
    )
    front.add_argument(
        "--mirror",
        default="",
        metavar="NAME=PERCENT",
        help="another deployment (of a Gateway its Service) that gets copies of this share",
    )
    front.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="NAME=PRIORITY",
        help="an InferenceObjective; repeatable",
    )


def front_of(parsed: argparse.Namespace, engine: str) -> Front | None:
    """The gateway that the flags describe; None without one. PenstockError for flags that do not go
    together.
    """
    if not parsed.gateway:
        _refuse(parsed, (*OF_GATEWAYS, *OF_CLASSES), "there is no gateway: give --gateway, too")
        return None
    image = parsed.gateway_image or (parsed.image if engine == "penstock" else "")
    if not image:
        raise PenstockError(f"--image is {engine}'s: --gateway-image names one of Penstock")
    canary, mirror = (share_of(f"--{flag}", vars(parsed)[flag]) for flag in ("canary", "mirror"))
    if parsed.gateway == "proxy":
        _refuse(parsed, OF_CLASSES, "only a Gateway has this: give --gateway CLASS")
        return Front(image, canary=canary, mirror=mirror)
    checked_name("--gateway", parsed.gateway)
    if parsed.service_type != "ClusterIP":
        raise PenstockError("--service-type: clients of a Gateway use its own Service")
    objectives = dict(pair_of("--objective", text) for text in parsed.objective)
    port = checked_port("--listener", parsed.listener) or 80
    plain = checked_port("--plain-listener", parsed.plain_listener)
    if plain == port:
        raise InvalidValueError("--plain-listener", plain, "another port than --listener")
    return Front(
        image,
        parsed.gateway,
        parsed.picker_tls_secret,
        {checked_name("--objective", name): _int(text) for name, text in objectives.items()},
        parsed.failure_mode or "FailClose",
        port,
        plain,
        canary,
        mirror,
    )


def _refuse(parsed: argparse.Namespace, flags: Sequence[str], why: str) -> None:
    """Raise PenstockError if one of these flags is given."""
    for flag in flags:
        if vars(parsed)[flag] not in (None, "", []):
            raise PenstockError(f"--{flag.replace('_', '-')}: {why}")


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValueError("--objective", text, "a whole number after =") from None


def share_of(flag: str, text: str) -> Share | None:
    """The share `NAME=PERCENT`; None without a text."""
    if not text:
        return None
    name, _, percent = text.partition("=")
    if not percent.isdecimal() or not 1 <= int(percent) <= 99:
        raise InvalidValueError(flag, text, "NAME=PERCENT, with a percentage of 1 to 99")
    return Share(checked_name(flag, name), int(percent))


def checked_port(flag: str, port: int | None) -> int | None:
    if port is not None and not 1 <= port <= MOST_PORT:
        raise InvalidValueError(flag, port, f"a port, 1 to {MOST_PORT}")
    return port
