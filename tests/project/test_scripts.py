"""The scripts behind the Makefile."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CARGO = """
running 3 tests
successes:

---- tests::needs_a_model stdout ----
SKIPPED: no model
and another line

---- tests::talks stdout ----
nothing special

successes:
    tests::needs_a_model

failures:

---- tests::breaks stdout ----
thread 'tests::breaks' panicked at src/lib.rs:7:5:
no such bucket

---- tests::breaks_too stdout ----
timed out

failures:
    tests::breaks
    tests::breaks_too

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
JUNIT = (
    '<testsuites><testsuite errors="1" failures="1" skipped="2" tests="10">'
    '<testcase classname="tests.a" name="one"><failure message="m">E  assert 2 == 3</failure>'
    '</testcase><testcase classname="tests.a" name="two"/></testsuite></testsuites>'
)
BASIC_TOOLS = ("awk", "head", "sh", "sort", "uname")


def summary(repository: Path, log: Path, *reports: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/test_summary.py."""
    command = [sys.executable, str(repository / "scripts/test_summary.py"), log, *reports]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_summary_adds_both_languages_and_fails_on_a_failure(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "cargo.log").write_text(CARGO)
    (tmp_path / "pytest.xml").write_text(JUNIT)
    done = summary(repository, tmp_path / "cargo.log", tmp_path / "pytest.xml")
    assert done.stdout.splitlines()[-1] == "13 passed, 4 failed, 4 skipped"
    assert "SKIPPED: no model" in done.stdout
    assert "FAILED tests::breaks\nthread 'tests::breaks' panicked" in done.stdout
    assert "FAILED tests::breaks_too\ntimed out\n" in done.stdout
    assert "FAILED tests.a::one\nE  assert 2 == 3\n" in done.stdout
    assert "tests::talks" not in done.stdout
    assert "tests.a::two" not in done.stdout
    assert done.returncode == 1


def test_summary_counts_tests_that_never_ran_as_a_failure(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "cargo.log").write_text("error: could not compile")
    done = summary(repository, tmp_path / "cargo.log", tmp_path / "missing.xml")
    assert done.stdout.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"
    assert done.returncode == 1
    (tmp_path / "there.xml").write_text(JUNIT)
    reports = (tmp_path / "there.xml", tmp_path / "missing.xml")
    done = summary(repository, tmp_path / "cargo.log", *reports)
    assert done.stdout.splitlines()[-1] == "6 passed, 4 failed, 2 skipped"


def test_summary_counts_a_group_that_could_not_run_as_skipped(
    repository: Path, tmp_path: Path
) -> None:
    log, report, group = (tmp_path / name for name in ("cargo.log", "pytest.xml", "group.xml"))
    log.write_text(CARGO)
    report.write_text(JUNIT)
    script = str(repository / "scripts/test_summary.py")
    command = [sys.executable, script, log, report, "--group", group]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "13 passed, 4 failed, 5 skipped"
    assert "SKIPPED group: it did not run" in done.stdout
    group.write_text(JUNIT)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "19 passed, 6 failed, 6 skipped"


def prerequisites(
    repository: Path, directory: Path, fakes: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the checker where only `fakes` (name to shell text) and a few basic tools exist."""
    for name in BASIC_TOOLS:
        tool = next(p for p in map(Path, ("/usr/bin", "/bin")) if (p / name).exists()) / name
        (directory / name).symlink_to(tool)
    for name, text in fakes.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    command = ["/bin/sh", str(repository / "scripts/check_prerequisites.sh")]
    environment = {**os.environ, "PATH": str(directory), "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


COMPLETE = {"cargo": "", "rustc": "echo rustc 1.95.0", "make": "", "cc": "", "apt-get": ""}


def test_prerequisites_pass_when_all_are_there(repository: Path, tmp_path: Path) -> None:
    done = prerequisites(repository, tmp_path, COMPLETE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("without", "named", "remedy"),
    [
        ("rustc", "Rust", "https://sh.rustup.rs"),
        ("make", "make", "sudo apt-get install make"),
        ("cc", "C compiler", "sudo apt-get install gcc"),
    ],
)
def test_prerequisites_name_what_is_missing(
    repository: Path, tmp_path: Path, without: str, named: str, remedy: str
) -> None:
    fakes = {name: text for name, text in COMPLETE.items() if name != without}
    done = prerequisites(repository, tmp_path, fakes)
    assert done.returncode == 1
    assert f"missing: {named}" in done.stderr or f"missing: a {named}" in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize(
    ("version", "accepted"),
    [("1.88.0", False), ("1.89.0", True), ("1.100.2", True), ("2.0.0", True)],
)
def test_prerequisites_compare_versions_as_numbers(
    repository: Path, tmp_path: Path, version: str, accepted: bool
) -> None:
    done = prerequisites(repository, tmp_path, {**COMPLETE, "rustc": f"echo rustc {version}"})
    assert (done.returncode == 0) is accepted


PROGRAMS = (
    *("ip", "redis-server", "prometheus", "docker-compose", "slurmctld", "sbatch"),
    *("systemd-analyze", "faketime", "zsh", "fish", "chromium", "chromedriver", "node"),
)
"""What quick tests run beside the product."""


def programs(
    repository: Path, directory: Path, fakes: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    """Run the installer where only `fakes` exist."""
    for name, text in fakes.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    command = ["/bin/sh", str(repository / "scripts/test_programs.sh"), *words]
    policy = str(directory / "policy-rc.d")
    environment = {**os.environ, "PATH": str(directory), "POLICY_RC_D": policy}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


APT = 'echo "$@" >> "${0%/*}/said"; "${0%/*}/policy-rc.d"; echo $? > "${0%/*}/policy"; true'


def test_programs_of_tests_are_installed_as_root_and_named_otherwise(
    repository: Path, tmp_path: Path
) -> None:
    there = dict.fromkeys(PROGRAMS, "")
    assert programs(repository, tmp_path, {**there, "apt-get": APT}).stdout == ""
    assert not (tmp_path / "said").exists()
    (tmp_path / "redis-server").unlink()
    (tmp_path / "fish").unlink()
    done = programs(repository, tmp_path, {"id": "echo 1000"})
    assert (done.returncode, done.stdout) == (0, "")
    assert "sudo apt-get install --no-install-recommends redis-server fish" in done.stderr
    assert not (tmp_path / "said").exists()
    done = programs(repository, tmp_path, {"id": "echo 0"})
    assert done.stdout == "installing redis-server fish\n"
    install = "install -y -qq --no-install-recommends"
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["update -qq", f"{install} redis-server", f"{install} fish"]


def test_no_daemon_of_a_program_is_started(repository: Path, tmp_path: Path) -> None:
    fakes = {**dict.fromkeys(PROGRAMS[1:], ""), "id": "echo 0", "apt-get": APT}
    programs(repository, tmp_path, fakes)
    assert (tmp_path / "policy").read_text() == "101\n"
    assert not (tmp_path / "policy-rc.d").exists()
    programs(repository, tmp_path, {"policy-rc.d": "exit 104"})
    assert (tmp_path / "policy").read_text() == "104\n"
    assert (tmp_path / "policy-rc.d").exists(), "that of the image"


@pytest.mark.parametrize(
    ("sudo", "installs"),
    [('[ "$1" = -n ] && shift && "$@"', True), ("exit 1", False)],
)
def test_programs_are_installed_by_a_sudo_without_a_password(
    repository: Path, tmp_path: Path, sudo: str, installs: bool
) -> None:
    fakes = {**dict.fromkeys(PROGRAMS[1:], ""), "id": "echo 1000", "apt-get": APT, "sudo": sudo}
    done = programs(repository, tmp_path, fakes)
    assert done.returncode == 0
    assert (tmp_path / "said").exists() == installs
    assert ("sudo apt-get install" in done.stderr) != installs


def test_a_check_of_prerequisites_installs_nothing(repository: Path) -> None:
    command = ["make", "--dry-run", "prerequisites"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert "check_prerequisites" in done.stdout
    assert "test_programs" not in done.stdout


def test_a_package_that_a_distribution_lacks_holds_up_no_test(
    repository: Path, tmp_path: Path
) -> None:
    fakes = {"id": "echo 0", "apt-get": f'{APT}; [ "$1" = update ]'}
    done = programs(repository, tmp_path, fakes)
    assert done.returncode == 0
    assert "tests that need docker-compose will skip: apt-get cannot install it" in done.stderr
    assert len((tmp_path / "said").read_text().splitlines()) == 1 + len(PROGRAMS)


def test_slow_tests_have_programs_of_their_own(repository: Path, tmp_path: Path) -> None:
    fakes = {**dict.fromkeys(PROGRAMS, ""), "id": "echo 0", "apt-get": APT}
    done = programs(repository, tmp_path, fakes, "full")
    assert {"buildah", "runc", "golang-go"} <= set(done.stdout.split())


def test_a_system_without_apt_is_told_the_names(repository: Path, tmp_path: Path) -> None:
    done = programs(repository, tmp_path, {})
    assert done.returncode == 0
    assert "slurmctld" in done.stderr
    assert "install yours" in done.stderr


Script = dict[str, Callable[[list[str]], list[str]]]


@pytest.fixture(scope="module")
def affected(repository: Path) -> Script:
    """Names of scripts/affected.py: it reads all files once."""
    return runpy.run_path(str(repository / "scripts/affected.py"))


@pytest.mark.parametrize(
    ("file", "crates", "some", "others"),
    [
        ("docs/gpu.md", [], {"tests/project"}, {"tests/kv/test_cache.py"}),
        (
            "python/penstock_ops/plan/virtual.py",
            [],
            {"tests/plan/test_virtual.py", "tests/project"},
            {"tests/plan/test_weights.py", "tests/engine/test_traffic.py"},
        ),
        ("python/penstock/kv/cache.py", [], {"tests/engine/test_traffic.py"}, set()),
        ("tests/real_ranks.py", [], {"tests/engine/test_traffic.py"}, {"tests/plan/test_show.py"}),
        ("tests/fakes/README", [], {"tests/project"}, {"tests/engine/test_traffic.py"}),
        (
            "crates/gateway/routing/src/lib.rs",
            ["fleet", "gateway", "routing", "sim"],
            {"tests/grammar/test_bounds.py"},
            {"tests/bench/report/test_wording.py"},
        ),
    ],
)
def test_a_change_affects_what_imports_it(
    affected: Script, file: str, crates: list[str], some: set[str], others: set[str]
) -> None:
    assert affected["crates"]([file]) == [f"penstock-{crate}" for crate in crates]
    chosen = set(affected["tests"]([file]))
    assert chosen >= some
    assert not chosen & others


def test_no_change_affects_everything(affected: Script) -> None:
    assert set(affected["tests"]([])) >= {"tests/plan/test_show.py", "tests/project"}
    assert {"penstock-wire", "penstock-sim"} <= set(affected["crates"]([]))
