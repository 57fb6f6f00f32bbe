"""Lines of the whole screen: title, table and keys, or the help, or one row's details. No IO."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ops.top import words
from penstock_ops.top.rows import Quantiles, Row
from penstock_ops.top.table import Line, Span, error_words, fitted, line_groups, tier_words
from penstock_ops.top.view import View, shown_rows

AROUND = 3
"""Number of lines above and below the rows: title, table header, keys."""
KEYS = "q quit  s sort  r reverse  / filter  enter one  space pause  ? help"
HELP = """\
q           quit                         up down j k   select a row
s           next order                   enter         all that is known of it
r           reverse the order            space         pause, go on
/           filter: address, model,      escape        end the filter
            state, error                 ? h           this help

STATE       ready; dead: no answer; of replicas the gateway's word for it
RUN WAIT    requests that run, and that wait
IN/s OUT/s  prompt tokens and generated tokens each second
KV          share of the KV blocks in use
HIT         share of the prompt tokens that a cache had
TTFT P99    time to the first token: median and 99th percentile
ITL P99     time between tokens: median and 99th percentile

Rates, shares and times are of the time between the last two readings.
- is not known, or nothing happened between them."""


def frame(rows: Sequence[Row], view: View, size: tuple[int, int], clock: str) -> list[Line]:
    """At most `height` lines of at most `width` columns. `size` is (width, height)."""
    width, height = size
    shown = shown_rows(view, rows)
    if view.mode == "help":
        body = [(Span(line),) for line in HELP.splitlines()]
        lines = [title(rows, clock, width), (), *body]
    elif view.mode == "one" and shown:
        lines = [title(rows, clock, width), (), *one(shown[selected(view, shown)])]
    else:
        lines = [title(rows, clock, width), *listed(shown, view, width, height - AROUND)]
    room = max(height - 1, 0)
    lines = [*lines[:room], *([()] * (room - len(lines))), keys(view, shown, width)]
    return [fitted(line, width) for line in lines[:height]]


def rows_on_a_page(height: int) -> int:
    return max((height - AROUND) // 2, 1)


def selected(view: View, shown: Sequence[Row]) -> int:
    return max(min(view.selected, len(shown) - 1), 0)


def title(rows: Sequence[Row], clock: str, width: int) -> Line:
    given = [row for row in rows if row.kind != "replica"]
    wrong = sum(row.state not in ("ready", "...") for row in rows)
    parts = [f"{len(given)} addresses" if len(given) != 1 else "1 address"]
    if replicas := len(rows) - len(given):
        parts.append(f"{replicas} replicas" if replicas != 1 else "1 replica")
    text = "penstock top  " + ", ".join(parts)
    found = [Span(text, "bold"), Span(f"  {wrong} not ready" if wrong else "", "red")]
    used = sum(len(span.text) for span in found)
    return (*found, Span(clock.rjust(max(width - used, len(clock) + 2)), "dim"))


def listed(shown: Sequence[Row], view: View, width: int, room: int) -> list[Line]:
    """Table header and the rows that fit on the screen, including the selected row."""
    head, groups = line_groups(shown, width)
    if not groups:
        text = f"  no row has {view.filter!r}" if view.filter else "  nothing to show"
        return [head, (Span(text, "dim"),)]
    place = selected(view, shown)
    start, used = place, len(groups[place])
    while start > 0 and used + len(groups[start - 1]) <= room:
        start -= 1
        used += len(groups[start])
    lines: list[Line] = [head]
    for number, group in enumerate(groups[start:], start):
        lines += [marked(line, width) for line in group] if number == place else group
    return lines[: max(room, 0) + 1]


def marked(line: Line, width: int) -> Line:
    """A line of the selected row, highlighted over the whole width."""
    text = "".join(span.text for span in line)
    return (Span(words.padded(text, width), "reverse"),)


def keys(view: View, shown: Sequence[Row], width: int) -> Line:
    if view.mode == "filter":
        return (Span(f"filter: {words.printable(view.filter)}_  enter keep  escape end"),)
    order = f"order: {view.sort}" + (", reversed" if view.is_reversed else "")
    said = [order] if view.sort != "given" or view.is_reversed else []
    said += [f"filter: {words.printable(view.filter)}"] if view.filter else []
    said += ["PAUSED"] if view.is_paused else []
    left = KEYS if view.mode == "table" else "q escape enter  back"
    right = "  ".join(said)
    # The active settings are never truncated, but the keys may be: they are also in the help.
    left = words.padded(left, max(width - len(right) - 2, 0)) if right else left
    return (Span(left, "dim"), Span(f"  {right}" if right else "", "bold"))


def one(row: Row) -> list[Line]:
    """All details of a row, one per line."""
    pairs = [
        (row.kind, words.printable(row.name)),
        ("state", words.printable(row.state)),
        ("models", words.printable(", ".join(row.models)) or words.NOTHING),
        ("running, waiting", f"{words.count(row.running)}, {words.count(row.waiting)}"),
        ("tokens/s in, out", f"{words.count(row.tokens_in)}, {words.count(row.tokens_out)}"),
        ("KV in use", words.share(row.kv_use)),
        ("prompt from caches", words.share(row.hit_share)),
        ("TTFT P50, P99", quantile_words(row.ttft)),
        ("ITL P50, P99", quantile_words(row.itl)),
        *(("KV tier", tier_words(tier, tier.name)) for tier in row.tiers),
        ("last error", error_words(row) or words.NOTHING),
        ("last reading", words.NOTHING if row.age is None else f"{row.age:.1f}s ago"),
    ]
    return [(Span(f"{name:20}", "dim"), Span(text)) for name, text in pairs]


def quantile_words(found: Quantiles | None) -> str:
    return f"{words.seconds(found.p50)}, {words.seconds(found.p99)}" if found else words.NOTHING
