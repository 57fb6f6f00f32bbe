"""Print docs/flags.md: the flags of `penstock serve`, and vLLM flags that it ignores or refuses.

usage: flags_page.py > docs/flags.md

It uses the installed `penstock`. tests/project/test_documents.py compares the page with its output.
"""

import re
from collections.abc import Iterable

from penstock.config.flags import FLAGS, GROUPS, Flag
from penstock.config.kinds import Switch, Text, negative
from penstock.config.vllm_flags import FOREIGN, Foreign

HEAD = """\
# Flags of penstock serve

Made from the table of flags by `python scripts/flags_page.py > docs/flags.md`: edit the table
(`python/penstock/config/flags.py`), not this page.

Each flag is also an environment variable (`--max-num-seqs` is `PENSTOCK_MAX_NUM_SEQS`) and a key of
the file of `--config` (`max-num-seqs`). [configuration.md](configuration.md) has the order in which
they win. Flags marked with \\* are keywords of `penstock.LLM`, too ([offline.md](offline.md)). An
empty default is explained in the text, or the setting is off. The flags of the gateway are in
[gateway-reference.md](gateway-reference.md#flags).
"""
FOREIGN_HEAD = """\
## Flags of vLLM

These have nothing to set here. An ignored flag is a warning with the reason. A flag without which
answers would differ is refused. Where values are named, they say what happens anyway and are
accepted; other values are refused.
"""


def cell(text: str) -> str:
    """Plain text as a table cell, with links to the pages that it mentions."""
    text = text.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def default(flag: Flag) -> str:
    value = flag.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def spelling(flag: Flag) -> str:
    names = [flag.name, flag.short] if flag.short else [flag.name]
    if isinstance(flag.kind, Switch):
        names.append(negative(flag.name))
    return ", ".join(f"`{name}`" for name in names) + (r" \*" if flag.offline else "")


def value(flag: Flag) -> str:
    if isinstance(flag.kind, Switch):
        return ""
    expected = "text" if isinstance(flag.kind, Text) else cell(flag.kind.expected())
    return expected + ("; may be repeated" if flag.repeatable else "")


def outcome(flag: Foreign) -> str:
    if flag.refused:
        return "refused"
    return f"only {', '.join(f'`{one}`' for one in flag.only)}" if flag.only else "ignored"


def page() -> str:
    parts = [HEAD]
    for group, title in GROUPS.items():
        parts.append(f"## {title}\n")
        rows = (
            (spelling(flag), value(flag), default(flag), cell(flag.help))
            for flag in FLAGS
            if flag.group == group
        )
        parts.append(table(("flag", "value", "default", "meaning"), rows))
    foreign = ((f"`{flag.name}`", outcome(flag), cell(flag.why)) for flag in FOREIGN)
    return "\n".join([*parts, FOREIGN_HEAD, table(("flag", "here", "why"), foreign)])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
