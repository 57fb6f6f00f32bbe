"""Composes the report document: which sections it has, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.core import InvalidValueError
from penstock_lab.bench.compare.summary import Summary, summarise
from penstock_lab.bench.report import curves, distributions, headlines, records, tables, timelines
from penstock_lab.bench.report.charts import Chart
from penstock_lab.bench.report.document import Block, Charts, Document, Note, Section
from penstock_lab.bench.report.files import mapping
from penstock_lab.bench.report.runs import Collection
from penstock_lab.bench.report.wording import AXES, at, clean, count, date_words, listing

NO_DETAIL = "{} for want of single requests in {}: run again with `--save-detailed`."
MOST_GANTTS = 40


def compose(
    collection: Collection, title: str | None = None, baseline: str | None = None
) -> Document:
    """The whole report.

    Raises:
        InvalidValueError: `baseline` is not the name of a server.
    """
    reference = _baseline(collection, baseline)
    summary = summarise([run.result for run in collection.runs], reference, collection.servers)
    workloads = collection.workloads
    sections = [_workload(collection, summary, workload) for workload in workloads]
    sections += list(_measurement(collection))
    document = Document(
        title=clean(title or str(collection.comparison.get("title") or "") or "Benchmark report"),
        facts=_facts(collection),
        warnings=records.warnings(collection),
        headlines=tuple(
            headlines.headline(collection, name, summary.baseline) for name in workloads
        ),
        sections=tuple(sections),
    )
    return _with_unique_keys(document)


def _baseline(collection: Collection, asked: str | None) -> str | None:
    if asked is not None:
        if asked not in collection.servers:
            raise InvalidValueError(
                "--baseline", asked, f"a server: {listing(collection.servers, 20)}"
            )
        return asked
    named = collection.comparison.get("baseline")
    return named if isinstance(named, str) and named in collection.servers else None


def _facts(collection: Collection) -> tuple[str, ...]:
    dates = sorted(str(date) for run in collection.runs if (date := run.result.get("date")))
    started = collection.comparison.get("started") or (dates[0] if dates else "")
    versions = dict.fromkeys(
        str(version) for run in collection.runs if (version := run.own.get("version"))
    )
    models = dict.fromkeys(
        clean(str(model)) for run in collection.runs if (model := run.result.get("model_id"))
    )
    facts = [
        clean(date_words(started)),
        ", ".join(
            count(len(many), one)
            for many, one in (
                (collection.runs, "run"),
                (collection.servers, "server"),
                (collection.workloads, "workload"),
            )
        ),
        listing(list(models), 3),
        f"Penstock {listing(list(versions), 3)}" if versions else "",
        clean(", ".join(map(str, mapping(collection.comparison.get("machine")).values()))),
    ]
    return tuple(fact for fact in facts if fact)


def _workload(collection: Collection, summary: Summary, workload: str) -> Section:
    curve = curves.throughput_against_ttft(collection, workload)
    found: list[Block | None] = [
        Charts("Throughput against TTFT", (curve,)) if curve else None,
        tables.ratios(collection, summary, workload),
        tables.rounds(collection, workload),
        _charts(
            f"Latency against {_load_name(collection, workload)}",
            curves.latencies_against_load(collection, workload),
        ),
        tables.percentiles(collection, workload),
        *_single_requests(collection, workload),
    ]
    blocks = [block for block in found if block is not None]
    return Section(workload, tuple(blocks or [Note("These files hold no statistic.")]))


def _load_name(collection: Collection, workload: str) -> str:
    axis = collection.axis(workload)
    return AXES[axis].name if axis else "load"


def _charts(title: str, charts: Sequence[Chart], folded: bool = False) -> Charts | None:
    return Charts(title, tuple(charts), folded) if charts else None


def _single_requests(collection: Collection, workload: str) -> Iterator[Block | None]:
    """Distributions, TTFT over time and Gantt charts, if the files have data of single requests."""
    runs = collection.of(workload)
    without = sorted({run.file for run in runs if run.requests is None})
    if without:
        which = "these files" if len(without) == len(runs) else count(len(without), "file")
        yield Note(
            NO_DETAIL.format(
                "Charts of single requests are left out", f"{which} ({listing(without, 4)})"
            )
        )
    if len(without) == len(runs):
        return
    points: Sequence[float | None] = curves.shown_points(collection, workload) or [None]
    hidden = len(collection.points(workload)) - len(points)
    axis = collection.axis(workload)
    if hidden > 0:
        shown = listing([at(axis, point) for point in points])
        yield Note(f"Single requests are shown for {shown}; the other loads are left out.")
    yield _charts("Distributions", _distributions(collection, workload, points))
    scatters = [timelines.ttft_over_time(collection, workload, point) for point in points]
    yield _charts("TTFT over time", [chart for chart in scatters if chart is not None])
    yield _charts("Requests one by one", _gantts(collection, workload, points), folded=True)


def _distributions(
    collection: Collection, workload: str, points: Sequence[float | None]
) -> list[Chart]:
    loads = [point for point in points if point is not None]
    if len(collection.servers) == 1 and len(loads) > 1:
        return [*distributions.by_load(collection, workload, loads)]
    return [
        chart for point in points for chart in distributions.by_server(collection, workload, point)
    ]


def _gantts(collection: Collection, workload: str, points: Sequence[float | None]) -> list[Chart]:
    """A Gantt chart for each of the first few servers, only at the last of `points`, to keep the
    page small.
    """
    charts = []
    for server in collection.servers[: max(MOST_GANTTS // len(collection.workloads), 1)]:
        run = timelines.example(collection.of(workload, server, points[-1]))
        chart = timelines.gantt(collection, run) if run else None
        charts += [chart] if chart else []
    return [*charts]


def _measurement(collection: Collection) -> Iterator[Section]:
    yield Section("Failures", tuple(records.failures(collection)))
    command = records.commands(collection)
    blocks: list[Block] = [
        records.load_made(collection),
        *records.servers(collection),
        *([command] if command else []),
        records.files(collection),
    ]
    yield Section("How it was measured", tuple(blocks))


def _with_unique_keys(document: Document) -> Document:
    """The document with distinct chart keys, because keys become file names. A repeated key gets a
    number.
    """
    seen: dict[str, int] = {}

    def unique(chart: Chart) -> Chart:
        seen[chart.key] = seen.get(chart.key, 0) + 1
        return (
            chart if seen[chart.key] == 1 else replace(chart, key=f"{chart.key}-{seen[chart.key]}")
        )

    def block(one: Block) -> Block:
        return (
            replace(one, charts=tuple(map(unique, one.charts))) if isinstance(one, Charts) else one
        )

    sections = (
        replace(section, blocks=tuple(map(block, section.blocks))) for section in document.sections
    )
    return replace(document, sections=tuple(sections))
