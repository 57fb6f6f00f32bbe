"""`penstock deploy dashboards`: flags and output."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.monitoring.alerts import Bounds
from penstock_ops.deploy.monitoring.files import objects, plain_files
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.settings import checked_name

NAME = "penstock"
KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def add_dashboards(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write boards for Grafana (server, tiers, gateway), alert rules for Prometheus and an "
        "example of what it scrapes: as files, or with --objects for Kubernetes, where "
        "`penstock deploy apply DIR` installs them."
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument(
        "--objects",
        action="store_true",
        help="ConfigMaps for Grafana's sidecar, and a PrometheusRule",
    )
    parser.add_argument(
        "--plan", type=Path, metavar="PLAN", help="plan.yaml whose thresholds the rules have"
    )
    parser.add_argument(
        "--name", default=NAME, help="of the objects, before their kind; default: %(default)s"
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="of the objects, such as release=NAME, by which an operator finds them; repeatable",
    )
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Write the files; print their names."""
    name = checked_name("--name", parsed.name)
    labels = dict(label(text) for text in parsed.label)
    if labels and not parsed.objects:
        raise PenstockError("--label is for objects: give --objects, too")
    bounds = Bounds.of_plan(read_plan(parsed.plan)) if parsed.plan else Bounds()
    files = plain_files(bounds)
    if parsed.objects:
        files = {file: dump(made) for file, made in objects(name, bounds, labels).items()}
    try:
        parsed.output.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            path = parsed.output / file
            path.write_text(text, encoding="utf-8")
            print(path)
    except OSError as error:
        raise PenstockError(f"{error.filename}: {error.strerror}") from error
    return 0


def label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not KEY.fullmatch(key) or not VALUE.fullmatch(value):
        raise InvalidValueError("--label", text, "LABEL=VALUE, as Kubernetes has labels")
    return key, value
