"""Every feature of every client, and the table of docs/clients.md.

`make test-clients` runs this: environments take gigabytes and minutes. CLIENTS=NAME,... chooses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS, Client
from tests.e2e.server import Server

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ENVIRONMENTS = REPOSITORY / "build/clients"
TABLE = REPOSITORY / "docs/clients.md"
MODEL = "smollm2"
PATIENCE = 900.0

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2 * PATIENCE)]


@dataclass(frozen=True)
class Found:
    client: Client
    versions: list[str]
    features: list[dict[str, str | bool]]


def chosen() -> list[Client]:
    wanted = os.environ.get("CLIENTS", "").split(",")
    return [client for client in CLIENTS if wanted == [""] or client.name in wanted]


@pytest.fixture(scope="module")
def server(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runtime = tmp_path_factory.mktemp("clients")
    with Server(model_file, runtime, "--served-model-name", MODEL) as started:
        yield started


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[list[Found]]:
    """What was found; it becomes rows of the table. Those of clients that were not run stay."""
    found: list[Found] = []
    yield found
    with server.client() as http:
        version = http.get("/version").json()["version"]
    TABLE.write_text(page(found, version, TABLE.read_text().splitlines()))


def prepared(client: Client) -> Path:
    """The client's environment, made where it is missing or of other packages."""
    directory = ENVIRONMENTS / client.script.split(".")[0].strip("_")
    stamp = directory / "packages"
    if stamp.is_file() and stamp.read_text().split() == list(client.packages):
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if client.node:
        command = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(directory)]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        command = [str(directory / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*command, *client.packages], check=True)
    stamp.write_text("\n".join(client.packages))
    return directory


def run(client: Client, server: Server) -> Found:
    if client.node and not shutil.which("npm"):
        pytest.skip("npm is not installed: apt-get install npm")
    directory = prepared(client)
    scripts = directory / "scripts"
    # Node looks for packages beside a script.
    shutil.copytree(HERE / "scripts", scripts, dirs_exist_ok=True)
    python = sys.executable if client.node else str(directory / "bin/python")
    program = "node" if client.script.endswith(".mjs") else python
    done = subprocess.run(
        [program, str(scripts / client.script)],
        env={
            **os.environ,
            "BASE_URL": f"{server.url}/v1",
            "MODEL": MODEL,
            "OPENAI_API_KEY": "none",
            "CLIENT_BIN": str(directory / "node_modules/.bin"),
        },
        cwd=scripts,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    print(done.stderr[-6000:])
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"feature"')]
    assert done.returncode == 0, done.stderr[-2000:]
    assert lines, "the script reported nothing"
    return Found(client, list(client.packages), lines)


@pytest.mark.parametrize("client", chosen(), ids=lambda client: client.name)
def test_a_client(client: Client, server: Server, table: list[Found]) -> None:
    found = run(client, server)
    table.append(found)
    failed = {
        str(feature["feature"]): feature["note"]
        for feature in found.features
        if not feature["ok"] and feature["feature"] not in client.known
    }
    assert failed == {}


def page(found: list[Found], version: str, before: list[str]) -> str:
    head = [
        "# Clients",
        "",
        "Written by `make test-clients`: clients as their registries have them, each in an",
        f"environment of its own, against Penstock {version} with the default model. A feature is",
        "tried once; the form of the answer is checked, not its sense. The same command opens",
        "pages of allowed and of other origins in Chromium (`tests/clients/test_browser.py`);",
        "`make test` has promtool and a Prometheus (`tests/e2e/test_dashboards.py`).",
        "",
        "| client | packages | works | does not, and why |",
        "|---|---|---|---|",
    ]
    rows = {line.split("|")[1].strip(): line for line in before if line.startswith("| ")}
    rows |= {each.client.name: row(each) for each in found}
    lines = [rows[client.name] for client in CLIENTS if client.name in rows]
    return "\n".join([*head, *lines]) + "\n"


def row(found: Found) -> str:
    works = ", ".join(str(one["feature"]) for one in found.features if one["ok"])
    fails = "; ".join(
        f"{one['feature']}: {found.client.known.get(str(one['feature']), one['note'])}"
        for one in found.features
        if not one["ok"]
    )
    packages = ", ".join(found.versions)
    cells = (found.client.name, packages, works, " ".join(fails.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
