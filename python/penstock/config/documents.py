"""YAML files that are handed on as they are: those of the gateway."""

from __future__ import annotations

from pathlib import Path

import yaml

from penstock.core import PenstockError


def read_document(path: Path) -> dict[str, object]:
    """The mapping in a YAML (or JSON) file. PenstockError names the file and the place."""
    try:
        found = yaml.safe_load(path.read_text("utf-8-sig"))
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PenstockError(f"{path}: not UTF-8 at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise PenstockError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise PenstockError(f"{path}: a mapping of settings is expected")
    return found
