"""The flag table as argparse arguments. Values stay text, which `penstock.config` parses."""

from __future__ import annotations

import argparse

from penstock.cli.help import SwitchAction
from penstock.config.flags import FLAGS, GROUPS, Flag
from penstock.config.foreign_arguments import add_foreign
from penstock.config.kinds import Bytes, Choice, IntegerChoice, Switch

KEY = "setting_"
"""Prefix of the names of settings in the argparse namespace."""
COMMON = (
    "--config",
    "--quantization",
    "--max-model-len",
    "--kv-cache-memory-bytes",
    "--kv-tier",
    "--max-num-seqs",
    "--threads",
    "--device",
    "--tensor-parallel-size",
    "--host",
    "--port",
    "--replicas",
    "--served-model-name",
    "--api-key",
    "--access-log",
)
"""Flags that `penstock serve --help` shows; `--help-all` shows all flags."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add every flag to its group of `parser`, and `--config`."""
    parser.add_argument(
        "--config", metavar="FILE.yaml", help="settings by flag name [PENSTOCK_CONFIG]"
    )
    for group, title in GROUPS.items():
        section = parser.add_argument_group(title)
        for flag in FLAGS:
            if flag.group == group:
                _add(section, flag)
    add_foreign(parser)


def settings(parsed: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The settings given on the command line, by key."""
    found = {}
    for name, value in vars(parsed).items():
        if name.startswith(KEY):
            found[name.removeprefix(KEY)] = tuple(value) if isinstance(value, list) else (value,)
    return found


def _add(section: argparse._ArgumentGroup, flag: Flag) -> None:
    dest, text = KEY + flag.key, _help(flag)
    if isinstance(flag.kind, Switch):
        section.add_argument(
            flag.name, dest=dest, action=SwitchAction, default=argparse.SUPPRESS, help=text
        )
        return
    action = "append" if flag.repeatable else "store"
    names = [flag.name, flag.short] if flag.short else [flag.name]
    section.add_argument(
        *names,
        dest=dest,
        action=action,
        metavar=_metavar(flag),
        default=argparse.SUPPRESS,
        help=text,
    )


def _help(flag: Flag) -> str:
    shown = "" if flag.default in (None, (), "auto") else f" (default: {_shown(flag.default)})"
    return f"{flag.help}{shown} [{flag.env}]".replace("%", "%%")


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else f"{default}"


def _metavar(flag: Flag) -> str:
    if isinstance(flag.kind, Choice | IntegerChoice):
        return "{" + ",".join(map(str, flag.kind.values)) + "}"
    return "SIZE" if isinstance(flag.kind, Bytes) else flag.key.rsplit("_", 1)[-1].upper()
