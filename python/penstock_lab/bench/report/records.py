"""Tables about how the measurement went: failures, accuracy of the load, servers, files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from penstock_lab.bench.report.document import Block, Cell, Column, Listing, Mark, Note, Table
from penstock_lab.bench.report.files import mapping, number, sequence
from penstock_lab.bench.report.runs import Collection, Run
from penstock_lab.bench.report.wording import (
    NOTHING,
    at,
    clean,
    count,
    date_words,
    human,
    listing,
    plain,
)

MOST_EXAMPLES = 8


def failures(collection: Collection) -> list[Block]:
    """Failures by reason for each server and workload, with examples of the servers' messages."""
    requests = sum(run.failed + int(run.result["completed"]) for run in collection.runs)
    rows = [
        row
        for name, server, runs in _groups(collection)
        if (row := _failure_row(name, server, runs))
    ]
    if not rows:
        return [Note(f"No request failed, of {count(requests, 'request')}.")]
    columns = ("Workload", "Server", "Failed", "By reason")
    table = Table(
        "Failed requests",
        tuple(Column(title, numeric=title == "Failed") for title in columns),
        tuple(rows),
        notes=("Failed requests are counted and enter no statistic.",),
    )
    examples = dict.fromkeys(
        clean(f"{run.server}: {example}")[:400]
        for run in collection.runs
        for example in run.own.get("failure_examples") or ()
    )
    lines = tuple(examples)[:MOST_EXAMPLES]
    return [table, Listing("Examples", lines)] if lines else [table]


def _groups(collection: Collection) -> Iterator[tuple[str, str, list[Run]]]:
    for workload in collection.workloads:
        for server in collection.servers:
            runs = collection.of(workload, server)
            if runs:
                yield workload, server, runs


def _failure_row(workload: str, server: str, runs: Sequence[Run]) -> tuple[Cell, ...] | None:
    kinds: Counter[str] = Counter()
    for run in runs:
        kinds.update(run.failures)
    failed = sum(run.failed for run in runs)
    if not failed:
        return None
    total = failed + sum(int(run.result["completed"]) for run in runs)
    reasons = ", ".join(f"{kind} {many:,}" for kind, many in kinds.most_common())
    share = f"{failed / total:.1%} of {total:,}"
    return (
        Cell(workload),
        Cell(server),
        Cell(f"{failed:,}", detail=share, mark=Mark.WARNING),
        Cell(reasons),
    )


def load_made(collection: Collection) -> Table:
    """How exactly the intended load was generated: lateness of requests, prompt tokens by the
    server's count, CPU use of other processes. Empty columns are omitted.
    """
    columns = (
        Column("Workload", numeric=False),
        Column("Server", numeric=False),
        Column("Runs"),
        Column("Requests"),
        Column("Duration", "s"),
        Column("Sent late, P99", "ms"),
        Column("Sent again"),
        Column("Client CPU", "%"),
        Column("Server CPU", "s"),
        Column("CPU of others", "%"),
        Column("Prompt mismatch"),
        Column("Cached tokens"),
    )
    rows = [_load_row(*group) for group in _groups(collection)]
    used = [
        index for index in range(len(columns)) if any(row[index].text != NOTHING for row in rows)
    ]
    notes = (
        "Sent late is sending minus due time; with a limit of concurrency it includes the wait.",
        "Sent again are requests whose kept connection the server had closed; no failures.",
        "Shares of the CPU are the largest of the runs.",
        "Prompt mismatch counts outputs whose server saw another number of prompt tokens.",
    )
    kept = tuple(tuple(row[index] for index in used) for row in rows)
    return Table(
        "How the load was made", tuple(columns[index] for index in used), kept, notes=notes
    )


def _load_row(workload: str, server: str, runs: Sequence[Run]) -> tuple[Cell, ...]:
    late = (number(mapping(run.own.get("send_lateness_ms")).get("p99")) for run in runs)
    client = (_client_share(run) for run in runs)
    foreign = (run.value("foreign_share") for run in runs)
    mismatches = _usage(runs, "prompt_mismatch")
    return (
        Cell(workload),
        Cell(server),
        Cell(str(len(runs))),
        Cell(f"{sum(run.failed + int(run.result['completed']) for run in runs):,}"),
        Cell(human(_sum(run.value("duration") for run in runs))),
        Cell(human(_largest(late))),
        Cell(_counted(_sum(number(run.own.get("resent")) for run in runs))),
        Cell(human(_largest(client))),
        Cell(human(_sum(run.value("server_cpu_s") for run in runs))),
        Cell(human(_largest(None if share is None else 100 * share for share in foreign))),
        Cell(_counted(mismatches), mark=Mark.WARNING if mismatches else None),
        Cell(_counted(_usage(runs, "cached_tokens"))),
    )


def _client_share(run: Run) -> float | None:
    """CPU time of the load generator's thread, as a percentage of one core."""
    cpu, duration = number(run.own.get("client_cpu_s")), run.value("duration")
    return 100 * cpu / duration if cpu is not None and duration else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _usage(runs: Sequence[Run], key: str) -> float | None:
    return _sum(number(mapping(run.own.get("usage")).get(key)) for run in runs)


def _counted(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def servers(collection: Collection) -> list[Block]:
    """Version, start-up time, command and environment of a comparison's servers."""
    known = mapping(collection.comparison.get("servers"))
    described = {clean(str(name)): mapping(facts) for name, facts in known.items()}
    names = [*collection.servers, *(name for name in described if name not in collection.servers)]
    rows = [_server_row(name, described[name]) for name in names if name in described]
    if not rows:
        return []
    columns = ("Server", "Version", "Ready after", "Command", "Environment", "Note")
    units = {"Ready after": "s"}
    heads = tuple(Column(title, units.get(title, ""), title in units) for title in columns)
    return [Table("Servers", heads, tuple(rows))]


def _server_row(name: str, facts: dict[str, object]) -> tuple[Cell, ...]:
    ready = number(facts.get("ready_s"))
    return (
        Cell(name),
        Cell(_words(facts.get("version"))),
        Cell(human(ready)),
        Cell(_words(facts.get("command")), code=True),
        Cell(_words(facts.get("environment")), code=True),
        Cell(_words(facts.get("note"))),
    )


def _words(value: object) -> str:
    """A JSON value as text on one line: lists as words, objects as KEY=VALUE."""
    if value is None or value == "":
        return ""
    if isinstance(value, dict):
        return clean(" ".join(f"{key}={inner}" for key, inner in value.items()))
    if isinstance(value, list):
        return clean(" ".join(map(str, value)))
    return clean(str(value))


def commands(collection: Collection) -> Listing | None:
    """Distinct commands that produced the files."""
    command = collection.comparison.get("command")
    whole = [_words(command)] if command else []
    lines = [" ".join(map(str, run.own["argv"])) for run in collection.runs if run.own.get("argv")]
    unique = tuple(dict.fromkeys(line for line in [*whole, *lines] if line))
    shown = unique[:MOST_EXAMPLES]
    more = (f"and {len(unique) - len(shown)} more",) if len(unique) > len(shown) else ()
    return Listing("Commands", shown + more) if unique else None


def files(collection: Collection) -> Table:
    """A table with a row for each result file and its run."""
    columns = (
        "File",
        "Date",
        "Model",
        "Workload",
        "Server",
        "Point",
        "Repeat",
        "Completed",
        "Failed",
    )
    numeric = {"Repeat", "Completed", "Failed"}
    rows = tuple(_file_row(run) for run in collection.runs)
    return Table(
        f"Result files ({len(rows)})",
        tuple(Column(one, "", one in numeric) for one in columns),
        rows,
        folded=True,
    )


def _file_row(run: Run) -> tuple[Cell, ...]:
    mark = Mark.WARNING if run.partial else None
    return (
        Cell(run.file, detail="partial" if run.partial else "", mark=mark),
        Cell(date_words(_words(run.result.get("date")))),
        Cell(_words(run.result.get("model_id"))),
        Cell(run.workload.name),
        Cell(run.server),
        Cell(at(run.workload.axis, run.workload.point)),
        Cell(plain(run.repeat)),
        Cell(f"{run.result['completed']:,}"),
        Cell(f"{run.failed:,}"),
    )


def warnings(collection: Collection) -> tuple[str, ...]:
    """Warnings for the top of the report: problems while comparing, partial runs, skipped files."""
    partial = [run.file for run in collection.runs if run.partial]
    found = [clean(str(trouble)) for trouble in sequence(collection.comparison.get("troubles"))]
    if partial:
        which = f"{count(len(partial), 'partial run')} of {len(collection.runs)}"
        found.append(f"{which}, ended before the load was over: {listing(partial, 6)}.")
    found += [f"{one.name} {one.reason} and was left out." for one in collection.skipped]
    return tuple(found)
