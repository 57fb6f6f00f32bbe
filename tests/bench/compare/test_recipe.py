"""Recipes, their placeholders, and the line-up that is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.compare.recipe import (
    BUILT_IN,
    Values,
    check_requirements,
    find_recipe,
    load_recipe,
)
from penstock_lab.bench.compare.servers import parse_servers

FULL = """
note = "as it comes"
command = ["{peers}/bin/server", "--port", "{port}", "-t", "{threads}", "--json", '{"a": 1}']
ready_path = "/health"
version_command = ["{penstock}", "--version"]
requires = ["{peers}/bin/server", "{here}/own.toml"]
install = "{here}/install.sh"

[environment]
CPUS = "{cpus}"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "own.toml").write_text(FULL)
    return tmp_path


def values(here: Path) -> Values:
    return Values(8123, [0, 2], "smollm2", Path("peers"), ["python", "-m", "penstock"], here)


def test_placeholders(directory: Path) -> None:
    recipe = find_recipe("own", directory)
    filled = values(recipe.here)
    assert filled.words(recipe.command) == [
        "peers/bin/server",
        "--port",
        "8123",
        "-t",
        "2",
        "--json",
        '{"a": 1}',
    ]
    assert filled.words(recipe.version_command) == ["python", "-m", "penstock", "--version"]
    assert filled.fill(recipe.environment["CPUS"]) == "0,2"
    with pytest.raises(PenstockError, match=r"\{prot\}.*\{port\}"):
        filled.fill("--port={prot}")


def test_what_is_missing_is_named_with_the_way_to_get_it(directory: Path) -> None:
    recipe = find_recipe("own", directory)
    with pytest.raises(
        PenstockError, match=rf"own needs peers/bin/server; run {directory}/install\.sh"
    ):
        check_requirements(recipe, values(recipe.here))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("command = [", "Invalid value|Unclosed|Unexpected"),
        ("note = 'x'", "no command"),
        ("command = []", "no command"),
        ("command = 'server'", "a list of strings"),
        ("command = ['a', 1]", "a list of strings"),
        ("command = ['a']\nenvironment = {A = 1}", "a table of strings"),
        ("command = ['a']\nport = 1", "unknown keys.*port"),
    ],
)
def test_wrong_recipes_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(PenstockError, match=rf"(?s)wrong\.toml.*({said})"):
        load_recipe(path)


def test_unknown_names_list_the_known_ones(directory: Path) -> None:
    with pytest.raises(PenstockError, match="own, penstock, penstock-inprocess"):
        find_recipe("vllm", directory)


def test_recipes_of_the_repository_and_of_the_package_can_be_filled(repository: Path) -> None:
    paths = [*BUILT_IN.glob("*.toml"), *(repository / "benchmarks/peers/recipes").glob("*.toml")]
    assert len(paths) >= 6
    for path in paths:
        recipe = load_recipe(path)
        filled = values(recipe.here)
        words = filled.words([*recipe.command, *recipe.version_command])
        assert "8123" in words
        assert recipe.note
        others = [filled.fill(text) for text in (*recipe.environment.values(), *recipe.requires)]
        assert not [text for text in others if "{" in text]
        if recipe.install:
            assert Path(filled.fill(recipe.install)).is_file()


def test_a_server_is_a_name_a_file_or_a_url(directory: Path) -> None:
    entries = parse_servers(
        [
            "penstock",
            "own",
            f"other={directory}/own.toml",
            "again=own",
            "there=http://host:1234/v1",
            "mine=http://127.0.0.1:99",
        ],
        ["mine=run 'it now' {port}"],
        ["penstock=--max-model-len 2048", "mine=-x"],
        directory,
    )
    assert [(entry.name, entry.url) for entry in entries] == [
        ("penstock", None),
        ("own", None),
        ("other", None),
        ("again", None),
        ("there", "http://host:1234"),
        ("mine", "http://127.0.0.1:99"),
    ]
    penstock, own, other, again, there, mine = (entry.recipe for entry in entries)
    assert all((penstock, own, other, mine))
    assert list(penstock.command)[-2:] == ["--max-model-len", "2048"]
    assert other.name == "other"
    assert list(other.command) == list(own.command) == list(again.command)
    assert again.name == "again"
    assert there is None
    assert list(mine.command) == ["run", "it now", "{port}", "-x"]


@pytest.mark.parametrize(
    ("servers", "starts", "arguments", "said"),
    [
        (["penstock", "penstock"], [], [], "no other server"),
        (["=http://x:1"], [], [], "NAME=http"),
        (["a="], [], [], "NAME=http"),
        (["a=http://"], [], [], "http"),
        (["a=http://host"], ["a=run"], [], "with a port"),
        (["a=http://host:1"], ["b=run"], [], "name of a --server"),
        (["a=http://host:1"], [], ["a=-x"], "that this command starts"),
        (["penstock"], ["penstock=run"], [], "NAME=http"),
        (["penstock"], [], ["--x"], "NAME="),
    ],
)
def test_what_does_not_fit_is_named(
    servers: list[str], starts: list[str], arguments: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=said):
        parse_servers(servers, starts, arguments, tmp_path)
