"""Rules of a cluster for the names of objects and for references of container images."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from penstock.config.forms import control_character
from penstock.core import InvalidValueError

LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
OBJECT = re.compile(rf"{LABEL}(?:\.{LABEL})*")
"""A DNS subdomain name, which Kubernetes requires for most kinds ("Object Names and IDs")."""
LONGEST_NAME = 253
DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
HOST = rf"(?:{DOMAIN}(?:\.{DOMAIN})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = "sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}"
REFERENCE = re.compile(
    rf"((?:{HOST}/)?{COMPONENT}(?:/{COMPONENT})*)(?::{TAG})?(?:@(?:{DIGEST}))?", re.ASCII
)
"""The grammar of github.com/distribution/reference, by which container runtimes read images. Its
group is the name, without tag and digest.
"""
LONGEST_REPOSITORY = 255

OBJECT_FORM = "lower-case letters, digits, hyphens and dots, as names of objects have"
REFERENCE_FORM = (
    "a reference such as registry/model:1 or registry/model@sha256: and 64 hex digits, in lower "
    "case, no scheme"
)
REQUIRED = "--image"
IMAGES = (REQUIRED, "--gateway-image", "--image-volume")
OBJECTS = (
    *("--claim", "--storage-class", "--kv-storage-class"),
    *("--api-key-secret", "--image-pull-secret", "--picker-tls-secret"),
)


def is_object_name(text: str) -> bool:
    """Whether a claim, Secret, ConfigMap or storage class may have this name."""
    return len(text) <= LONGEST_NAME and OBJECT.fullmatch(text) is not None


def is_reference(text: str) -> bool:
    """Whether a container runtime accepts this reference of an image."""
    found = REFERENCE.fullmatch(text)
    return found is not None and len(found[1]) <= LONGEST_REPOSITORY


RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    **dict.fromkeys(IMAGES, (is_reference, REFERENCE_FORM)),
    **dict.fromkeys(OBJECTS, (is_object_name, OBJECT_FORM)),
}
"""By flag, the rule for its text and what the rule expects."""


def check_names(parsed: argparse.Namespace) -> None:
    """Raise InvalidValueError for an invalid name or reference, and for a control character in any
    flag: its text may become input of other programs, and no valid name has one.
    """
    for name, given in vars(parsed).items():
        flag = "--" + name.replace("_", "-")
        for text in given if isinstance(given, list) else [given]:
            if isinstance(text, str) and (text or flag == REQUIRED):
                _check(flag, text)


def _check(flag: str, text: str) -> None:
    if wrong := control_character(text):
        raise InvalidValueError(flag, text, f"no control characters; it has {wrong}")
    if flag in RULES:
        is_valid, expected = RULES[flag]
        if not is_valid(text):
            raise InvalidValueError(flag, text, expected)
