"""What a hub answers about a repository: refusals, redirects, pages, and what is no answer."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config import HubSettings
from penstock.hub import names, repository
from penstock.hub.cache import CachedRepository
from penstock.hub.errors import HubError, UnreachableError
from penstock.hub.names import HubName
from penstock.hub.progress import Progress
from penstock.hub.repository import Fetched
from tests.fakes.hub import FakeHub
from tests.hub.conftest import CONTENT

NAME = HubName("org/m-GGUF", "Q4_0")
FILES = {"m-Q4_0.gguf": CONTENT, "README.md": b"#"}
CONFIG = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}


def pull(
    settings: HubSettings,
    name: HubName = NAME,
    revision: str | None = None,
    local: Path | None = None,
) -> Fetched:
    progress = Progress("m", io.StringIO())
    return repository.fetch(name, revision, settings, names.select, progress, local)


def refused(settings: HubSettings, name: HubName = NAME, revision: str | None = None) -> str:
    with pytest.raises(HubError) as error:
        pull(settings, name, revision)
    assert str(error.value).isprintable()
    assert str(error.value).startswith(name.repository)
    return str(error.value)


def test_the_token_is_for_the_hub_alone(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    hub.token = "hf_secret"
    pull(replace(settings, token="hf_secret"))
    sent = {(one.server, one.headers.get("Authorization")) for one in hub.asked}
    assert sent == {("hub", "Bearer hf_secret"), ("cdn", None)}
    assert all(one.headers["User-Agent"].startswith("penstock/") for one in hub.asked)


def test_another_port_is_another_host(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    port = hub.cdn.rpartition(":")[2]
    where = f"http://127.0.0.1:{port}/store/x"
    hub.fault("hub:.*/resolve/", headers={"Location": where})
    refused(replace(settings, token="hf_secret"))
    assert [one.headers.get("Authorization") for one in hub.asked if one.server == "cdn"] == [None]


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (
            401,
            {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"},
            "access is gated (401): accept the conditions on the model's page, then set HF_TOKEN",
        ),
        (401, {}, "no such repository, or a private one (401): check the name; if it is private"),
        (403, {"X-Error-Message": "no\x1b[2J"}, "refused (403) (no\\x1b[2J): HF_TOKEN must be"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no such repository, or a private one (404)"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no such branch, tag or commit"),
        (404, {}, "not found at http://127.0.0.1:"),
        (418, {}, "the server answered 418 at http://127.0.0.1:"),
    ],
)
def test_refusals(
    hub: FakeHub, settings: HubSettings, status: int, headers: dict[str, str], said: str
) -> None:
    hub.add(NAME.repository, FILES)
    hub.fault("hub:/api/.*/revision", status=status, headers=headers)
    assert f"org/m-GGUF: {said}" in refused(settings)


def test_a_gated_file_with_a_token(hub: FakeHub, settings: HubSettings) -> None:
    """Names and sizes of gated repositories are public, their files are not."""
    hub.add(NAME.repository, FILES)
    hub.fault("hub:.*/resolve/", status=403, headers={"X-Error-Code": "GatedRepo"})
    said = refused(replace(settings, token="t"))
    assert "org/m-GGUF: m-Q4_0.gguf: access is gated (403)" in said
    assert said.endswith("use a token of that account")


def test_a_token_that_may_not_read(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    hub.token = "right"
    assert "the token in HF_TOKEN may not read it" in refused(replace(settings, token="wrong"))
    assert "set HF_TOKEN" in refused(settings)


def test_no_such_repository_revision_or_file(hub: FakeHub, settings: HubSettings) -> None:
    assert "no such repository" in refused(settings, HubName("org/none"))
    commit = hub.add(NAME.repository, FILES)
    assert "no such branch, tag or commit; check --revision" in refused(settings, NAME, "dev")
    del hub.repositories[NAME.repository][commit]["m-Q4_0.gguf"]
    cached = CachedRepository(settings.cache, NAME.repository)
    hub.add(NAME.repository, FILES)
    pull(settings)
    listing = cached.listing(commit)
    assert listing is not None
    hub.repositories[NAME.repository][commit].pop("m-Q4_0.gguf")
    cached.blob(listing["m-Q4_0.gguf"]).unlink()
    assert "m-Q4_0.gguf: the repository has no such file" in refused(settings)


@pytest.mark.parametrize("revision", ["../x", "a b", "-x\n", "x" * 300, "a/../b", "/x"])
def test_a_revision_that_is_none(hub: FakeHub, settings: HubSettings, revision: str) -> None:
    with pytest.raises(HubError, match=r"--revision .*: expected a branch, a tag or a commit"):
        pull(settings, NAME, revision)
    assert not hub.asked


def test_branches_and_commits(hub: FakeHub, settings: HubSettings) -> None:
    first = hub.add(NAME.repository, FILES)
    second = hub.add(NAME.repository, {**FILES, "m-Q4_0.gguf": b"other" * 1000}, "refs/pr/1")
    assert pull(settings, NAME, "refs/pr/1").directory.name == second
    assert pull(settings).directory.name == first
    hub.asked.clear()
    assert pull(settings, NAME, second).directory.name == second
    assert not hub.asked, "a commit does not change"
    cached = CachedRepository(settings.cache, NAME.repository)
    assert cached.commit("refs/pr/1") == second
    assert cached.commit(None) == first


def test_a_branch_that_has_moved(hub: FakeHub, settings: HubSettings) -> None:
    old = pull_after(hub, settings, FILES)
    new = pull_after(hub, settings, {**FILES, "README.md": b"new"})
    assert old != new
    assert (new / "m-Q4_0.gguf").resolve() == (old / "m-Q4_0.gguf").resolve(), "the blob is shared"
    assert sum("/store/" in path for path in hub.files_asked()) == 21, "and came once"


def pull_after(hub: FakeHub, settings: HubSettings, files: dict[str, bytes]) -> Path:
    hub.add(NAME.repository, files)
    return pull(settings).directory


def test_a_listing_of_many_pages(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, {**{f"{i:04}.txt": b"" for i in range(950)}, **FILES})
    hub.page = 100
    assert pull(settings).path.read_bytes() == CONTENT
    assert sum("/tree/" in one.path for one in hub.asked) == 10


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("http://127.0.0.1:9/next", "goes on at http://127.0.0.1:9/next, which is another host"),
        ("?recursive=true", "goes on at"),
    ],
)
def test_pages_that_lead_elsewhere(
    hub: FakeHub, settings: HubSettings, link: str, said: str
) -> None:
    hub.add(NAME.repository, FILES)
    headers = {"Link": f'<{link}>; rel="next"'}
    hub.fault("hub:/api/.*/tree/", status=200, body=b"[]", headers=headers, times=99)
    assert said in refused(settings)


def test_a_listing_without_an_end(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MOST_FILES", 500)
    hub.add(NAME.repository, {f"{i:04}.txt": b"" for i in range(900)})
    hub.page = 100
    assert "lists more than 500 files" in refused(settings)
    assert sum("/tree/" in one.path for one in hub.asked) == 6


def test_a_page_without_an_end(
    hub: FakeHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "LARGEST_PAGE", 1000)
    hub.add(NAME.repository, {f"{i:04}.txt": b"" for i in range(900)})
    assert "answers with no JSON (more than 1000 bytes)" in refused(settings)


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"", b"[" * 100_000, b"\xff"])
def test_a_login_page_in_between(hub: FakeHub, settings: HubSettings, body: bytes) -> None:
    hub.fault("hub:/api/", status=200, body=body, times=99)
    said = refused(settings)
    assert "answers with no JSON" in said
    assert "is HF_ENDPOINT a hub, and is a login page of a network in between?" in said


@pytest.mark.parametrize("body", [b"[]", b'{"sha": "../x"}', b'{"sha": 7}', b"{}", b"null"])
def test_a_commit_that_is_none(hub: FakeHub, settings: HubSettings, body: bytes) -> None:
    hub.fault("hub:/api/", status=200, body=body)
    assert "gives the commit of main as" in refused(settings)


def test_a_hostile_listing_downloads_nothing(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    hub.listing = lambda entries: [*entries, {**entries[0], "path": "../../x\x1b[2J"}]
    assert "a file named '../../x\\\\x1b[2J', which is no path" in refused(settings)
    assert not hub.files_asked()
    assert not settings.cache.exists()


def test_answers_that_are_cut(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    hub.fault("hub:/api/", status=200, body=b'{"sha": "' + b"0" * 200, cut=20, times=2)
    assert pull(settings).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("file:///etc/passwd", "a redirect to file:///etc/passwd, which is not followed"),
        ("ftp://127.0.0.1/x", "which is not followed"),
        ("http://127.0.0.1:99999/", "a redirect to no address"),
        ("/org/m-GGUF/resolve/main/m-Q4_0.gguf", "more than 10 redirects"),
    ],
)
def test_redirects_that_are_not_followed(
    hub: FakeHub, settings: HubSettings, location: str, said: str
) -> None:
    hub.add(NAME.repository, FILES)
    hub.fault("hub:.*/resolve/", status=302, headers={"Location": location}, times=99)
    with pytest.raises(HubError) as error:
        pull(settings)
    assert said in str(error.value)


def test_a_hub_that_has_moved(hub: FakeHub, settings: HubSettings) -> None:
    """A renamed repository: the old name redirects to the new one, also for listings."""
    hub.add("new/m-GGUF", FILES)
    commit = hub.branches["new/m-GGUF", "main"]
    moved = "/api/models/new/m-GGUF/revision/main"
    hub.fault("hub:/api/models/org/.*/revision", status=307, headers={"Location": moved})
    tree = f"/api/models/new/m-GGUF/tree/{commit}?recursive=true"
    hub.fault("hub:/api/models/org/.*/tree", status=307, headers={"Location": tree})
    file = f"/new/m-GGUF/resolve/{commit}/m-Q4_0.gguf"
    hub.fault("hub:/org/.*/resolve", status=307, headers={"Location": file}, times=99)
    assert pull(settings).path.read_bytes() == CONTENT


def test_a_hub_that_is_not_there(settings: HubSettings) -> None:
    with pytest.raises(UnreachableError) as error:
        pull(replace(settings, endpoint="http://127.0.0.1:9"))
    said = str(error.value)
    assert said.startswith("org/m-GGUF: http://127.0.0.1:9/api/models/org/m-GGUF/revision/main: ")
    assert (
        "Connection refused (5 attempts); check the network and the proxy, for a model of" in said
    )


def test_a_directory_in_place_of_the_cache(
    hub: FakeHub, settings: HubSettings, tmp_path: Path
) -> None:
    hub.add("org/m", {**CONFIG, "original/model.safetensors": b"copy", "x/y.json": b"{}"})
    local = tmp_path / "models" / "m"
    assert pull(settings, HubName("org/m"), local=local).path == local
    files = {path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()}
    own = {name for name in files if not name.startswith(".cache/")}
    assert own == {*CONFIG, "x/y.json"}
    assert not [path for path in local.rglob("*") if path.is_symlink()]
    assert not settings.cache.exists()
    hub.asked.clear()
    pull(settings, HubName("org/m"), local=local)
    assert not hub.files_asked()
    (local / "config.json").write_bytes(b"[]")
    (local / ".cache/huggingface/download/config.json.metadata").unlink()
    (local / ".cache/huggingface/download/tokenizer.json.metadata").unlink()
    pull(settings, HubName("org/m"), local=local)
    assert (local / "config.json").read_bytes() == b"{}", "same size, other content"
    assert [path.rpartition("/")[2] for path in hub.files_asked()] == ["config.json"]
