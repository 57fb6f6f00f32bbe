"""Boards as Grafana imports them (10.4 and later)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock_ops.deploy.monitoring.gateway_board import GATEWAY_BOARD
from penstock_ops.deploy.monitoring.panels import Board, Panel, Section, Variable
from penstock_ops.deploy.monitoring.server_board import SERVER_BOARD
from penstock_ops.deploy.monitoring.tiers_board import TIERS_BOARD

BOARDS = (SERVER_BOARD, TIERS_BOARD, GATEWAY_BOARD)
SCHEMA = 39
"""Of Grafana 10.4, which later ones read."""
COLUMNS = 24
SIZES = {"stat": (4, 4), "timeseries": (8, 8)}
"""Columns and rows of a panel, by its kind."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Tree = dict[str, Any]


def board_text(board: Board) -> str:
    """The JSON of a board."""
    return json.dumps(board_tree(board), indent=2) + "\n"


def board_tree(board: Board) -> Tree:
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["penstock"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source_variable(), *map(variable, board.variables)]},
        "annotations": {"list": []},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels(board), 1)],
    }


def source_variable() -> Tree:
    name = "datasource"
    return {"name": name, "label": "Data source", "type": name, "query": "prometheus"}


def variable(one: Variable) -> Tree:
    """A variable with the values of a label; all of them at first."""
    query = f"label_values({one.metric}, {one.name})"
    return {
        "name": one.name,
        "label": one.label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": one.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def panels(board: Board) -> Iterator[Tree]:
    """The panels in their places: a row for each section, with its panels from left to right."""
    top = 0
    for section in board.sections:
        yield row(section, top)
        top += 1
        left = height = 0
        for panel in section.panels:
            wide, high = SIZES[panel.kind]
            if left + wide > COLUMNS:
                left, top, height = 0, top + height, 0
            yield panel_tree(panel, {"x": left, "y": top, "w": wide, "h": high})
            left, height = left + wide, max(height, high)
        top += height


def row(section: Section, top: int) -> Tree:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {
        "type": "row",
        "title": section.title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def panel_tree(panel: Panel, place: Tree) -> Tree:
    steps: list[Tree] = [{"color": "green", "value": None}]
    if panel.red is not None:
        steps.append({"color": "red", "value": panel.red})
    defaults: Tree = {
        "unit": panel.unit,
        "min": 0,
        "noValue": "no traffic",
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": query.expression,
                "legendFormat": query.legend,
                "datasource": SOURCE,
            }
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options(panel),
    }


def options(panel: Panel) -> Tree:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
