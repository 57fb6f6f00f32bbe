"""Names are data in what is written: hostile ones, found again by the programs that read it."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli.main import main
from penstock.config.forms import control_character
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.quoting import compose, kubernetes, shell, unit
from tests.deploy.conftest import of_this_machine

NAMES = [
    "it's",
    'say "hi"',
    "$(touch x)",
    "${HOME}",
    "$HOME",
    "$$(A)",
    "$(PENSTOCK_API_KEY)",
    "$",
    "`touch x`",
    "a; touch x #",
    "a:b",
    "a && touch x",
    "100%n %% %",
    "back\\slash \\n \\",
    "[Service]",
    "!x {a..b} *~? [a]",
    "a: {b} - |",
    "{{ .Values.image }}",
    "'; touch x; '",
    '"; touch x; "',
    ";",
    "a  b",
    "é 日本 \u202e",
    "--flag=x",
    "#SBATCH --x",
    "<&>|",
]
HOSTILE = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/,"),
    min_size=1,
    max_size=12,
) | st.text("$(){}'\"\\%`;#! aA", min_size=1, max_size=12)
FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LINE = "Command Line: "
STAND_IN = "X"
"""Takes the place of a name, to say what is not the name's."""


def made(folder: Path, target: str, name: str, *words: str) -> str:
    """What `deploy` writes for a model of this name in a directory of this name."""
    plan = of_this_machine()
    plan["model"]["name"] = name
    path, out = folder / "plan.yaml", folder / "made"
    path.write_text(yaml.safe_dump(plan, allow_unicode=True), encoding="utf-8")
    place = ["--image", "i", "--host-path", f"/srv/{name}"]
    if target in ("systemd", "slurm"):
        place = ["--model-path", f"/srv/{name}"]
    asked = ["deploy", target, str(path), "-o", str(out), "--name", "m", *place, *words]
    assert main(asked) == 0
    return "" if out.is_dir() else out.read_text(encoding="utf-8")


def expected(words: list[str], name: str) -> list[str]:
    return [word.replace(STAND_IN, name) for word in words]


# The kubelet's rule, after the documentation of `command` in a container.


def by_kubelet(text: str, env: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


@given(HOSTILE)
def test_the_kubelet_expands_nothing_of_a_name(name: str) -> None:
    every = dict.fromkeys(re.findall(r"\$\(([^)]*)\)", name), "secret")
    assert by_kubelet(kubernetes(name), every) == name
    assert by_kubelet(kubernetes(f"--a={name}"), every) == f"--a={name}"


@given(HOSTILE)
def test_a_shell_takes_a_name_for_a_word(name: str) -> None:
    assert shlex.split(shell(name)) == [name]


@given(st.text(st.characters(codec="utf-8")))
def test_yaml_holds_every_character(text: str) -> None:
    assert yaml.safe_load(dump({"a": text, "b": [text]})) == {"a": text, "b": [text]}


@pytest.mark.parametrize("name", NAMES)
def test_objects_have_the_name(tmp_path: Path, name: str) -> None:
    made(tmp_path, "k8s", name, f"--model-path={name}")
    file = yaml.safe_load((tmp_path / "made/deployment.yaml").read_text(encoding="utf-8"))
    spec = file["spec"]["template"]["spec"]
    (model,) = (each for each in spec["volumes"] if each["name"] == "model")
    assert model["hostPath"]["path"] == f"/srv/{name}"
    (container,) = spec["containers"]
    secret = {"PENSTOCK_API_KEY": "leaked", "A": "leaked", "HOME": "/tmp"}
    found = [by_kubelet(word, secret) for word in container["command"]]
    assert f"/models/{name}".rstrip("/") in found
    assert f"--served-model-name={name}" in found


@pytest.mark.parametrize("name", NAMES)
def test_variables_of_a_group_have_the_name(tmp_path: Path, name: str) -> None:
    plan = of_this_machine()
    plan["engine"], plan["choice"]["tensor_parallel_size"] = "vllm", 2
    plan["target"]["resource"] = "nvidia.com/gpu"
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    words = ["--image", "i", "--claim", "c", f"--interface={name}", f"--rdma-devices={name}"]
    out = tmp_path / "made"
    assert main(["deploy", "k8s", str(tmp_path / "plan.yaml"), "-o", str(out), *words]) == 0
    file = yaml.safe_load((out / "leader-worker-set.yaml").read_text(encoding="utf-8"))
    pod = file["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    env = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}
    every = dict.fromkeys(re.findall(r"\$\(([^)]*)\)", name), "leaked")
    assert by_kubelet(env["NCCL_IB_HCA"], every) == f"={name}"
    assert by_kubelet(env["GLOO_SOCKET_IFNAME"], every) == name


@pytest.mark.parametrize("name", NAMES)
def test_the_script_of_a_ray_head_has_the_name(tmp_path: Path, name: str) -> None:
    made(tmp_path, "ray", name, f"--model-path={name}")
    file = yaml.safe_load((tmp_path / "made/ray-cluster-0.yaml").read_text(encoding="utf-8"))
    (container,) = file["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    every = dict.fromkeys(re.findall(r"\$\(([^)]*)\)", name), "leaked")
    served = by_kubelet(script, every).rpartition("; done; exec ")[2]
    words = _printed(tmp_path, f"exec {served}", "python3")
    assert f"--served-model-name={name}" in words


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Slurm's lines of a batch script, with another name."""
    folder = tmp_path_factory.mktemp("plain")
    return _headers(made(folder, "slurm", STAND_IN, "--kv-tier", f"disk:{folder}/kv,64GiB"))


@given(HOSTILE)
@FEW
def test_a_batch_script_has_the_name(tmp_path: Path, headers: list[str], name: str) -> None:
    _run_batch(tmp_path, headers, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_script_has_each_name(tmp_path: Path, headers: list[str], name: str) -> None:
    _run_batch(tmp_path, headers, name)


def _run_batch(folder: Path, headers: list[str], name: str) -> None:
    """With stubs of Slurm's commands; `python3` prints its words."""
    tier = ("--kv-tier", f"disk:{folder}/kv {name},64GiB")
    script = made(folder, "slurm", name, *tier)
    assert _headers(script) == headers
    words = _printed(folder, script, "python3")
    wanted = ["-m", "penstock", "serve", f"/srv/{name}", f"--served-model-name={name}"]
    assert words[:5] == wanted
    assert words[-1] == f"--kv-tier={tier[1]}"
    assert (folder / f"kv {name}").is_dir()


def _headers(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def _printed(folder: Path, script: str, program: str) -> list[str]:
    """Words that the program is given by a script, in which nothing else runs."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for tool, text in {
        "srun": 'exec "${@:2}"',
        "scontrol": "echo first",
        "touch": f"echo ran >> {shlex.quote(str(folder / 'ran'))}",
        program: 'printf "%s\\0" "$@"',
    }.items():
        (tools / tool).write_text(f"#!/bin/bash\n{text}\n")
        (tools / tool).chmod(0o755)
    file = folder / "script.sh"
    file.write_text(script, encoding="utf-8")
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "first",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "HOME": "/expanded",
    }
    done = subprocess.run(["bash", file], env=env, cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not (folder / "ran").exists()
    return done.stdout.decode().split("\0")[:-1]


# systemd's own manager, which prints the units that it has read.


def units(folder: Path, texts: dict[str, str]) -> dict[str, list[str]]:
    """Words of ExecStart by unit, as systemd has them before it expands variables."""
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    paths = [folder / f"{name}.service" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    words = [verify, "verify", "--man=no", *map(str, paths)]
    quiet = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    env = {**os.environ, "SYSTEMD_LOG_LEVEL": "debug", "LANG": "C.UTF-8"}
    told = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in told.stdout.splitlines()]
    found = {}
    for name in texts:
        begin = lines.index(f"-> Unit {name}.service:")
        command = next(line for line in lines[begin:] if line.startswith(LINE))
        found[name] = _unquoted(command.removeprefix(LINE))
    return found


def _unquoted(line: str) -> list[str]:
    """systemd prints words in double quotes, with backslashes before what shells would expand."""
    return shlex.split(line.replace("\\$", "$").replace("\\`", "`").replace("\\!", "!"))


def _by_variables(word: str) -> str:
    """systemd's last step, for words without a variable that is set."""
    return word.replace("$$", "$")


def unit_of(folder: Path, name: str) -> str:
    program = str(Path(sys.executable).parent / "penstock")
    return made(folder, "systemd", name, "--program", program)


def test_units_have_the_names(tmp_path: Path) -> None:
    texts = {f"m{at}": unit_of(tmp_path, name) for at, name in enumerate([STAND_IN, *NAMES])}
    plain, *others = units(tmp_path, texts).values()
    for name, words in zip(NAMES, others, strict=True):
        assert len(words) == len(plain), name
        assert _by_variables(words[2]) == f"/srv/{name}"
        assert _by_variables(words[3]) == f"--served-model-name={name}"
        assert words[4:] == plain[4:]
    assert all(text.count("ExecStart") == 1 for text in texts.values())


@given(st.lists(HOSTILE, min_size=1, max_size=20))
@settings(FEW, max_examples=3)
def test_systemd_takes_any_word(tmp_path: Path, names: list[str]) -> None:
    text = "[Service]\nExecStart=/bin/true " + " ".join(map(unit, names)) + "\n"
    (words,) = units(tmp_path, {"any": text}).values()
    assert list(map(_by_variables, words[1:])) == names


@pytest.mark.parametrize(
    "program",
    ["+/bin/x", "-/bin/x", "!x", "@x", "vllm", "bin/x", "\\bin", "a\nExecStartPre=/bin/x", ""],
)
def test_a_program_is_a_path(
    tmp_path: Path, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(of_this_machine()))
    words = ["--model-path", "/m", f"--program={program}"]
    assert main(["deploy", "systemd", str(path), *words]) in (1, 2)
    assert "program" in capsys.readouterr().err


def test_compose_has_the_names(tmp_path: Path) -> None:
    """As Compose itself reads it; it writes `$` as `$$` again."""
    if (tool := shutil.which("docker-compose")) is None:
        pytest.skip("no Compose to check with: apt-get install docker-compose")
    texts = []
    for at, name in enumerate(NAMES):
        place = (f"--model-path={name}", "--kv-tier", f"disk:/kv {name},64GiB", "--name", f"m{at}")
        head, text = made(tmp_path, "compose", name, *place).split("services:\n")
        assert head.count("\n") == 1
        texts.append(text)
    path = tmp_path / "all.yaml"
    path.write_text("services:\n" + "".join(texts), encoding="utf-8")
    done = subprocess.run(
        [tool, "-f", str(path), "config"],
        env={**os.environ, "HOME": "/expanded", "LANG": "C.UTF-8"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"variable is not set" not in done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    for at, name in enumerate(NAMES):
        service = services[f"m{at}-0"]
        words = [word.replace("$$", "$") for word in service["entrypoint"]]
        assert f"--served-model-name={name}" in words
        assert f"--kv-tier=disk:/kv {name},64GiB" in words
        sources = [_source(each).replace("$$", "$") for each in service["volumes"]]
        assert sources == [f"/srv/{name}", f"/kv {name}"]


def _source(volume: Any) -> str:
    """Older versions of Compose print the short form."""
    return str(volume["source"] if isinstance(volume, dict) else volume.rsplit(":", 2)[0])


@given(
    st.recursive(
        HOSTILE, lambda inner: st.lists(inner) | st.dictionaries(HOSTILE, inner), max_leaves=12
    )
)
def test_compose_expands_nothing(value: Any) -> None:
    def read(found: Any) -> Any:
        if isinstance(found, str):
            assert "$" not in found.replace("$$", "")
            return found.replace("$$", "$")
        if isinstance(found, dict):
            return {key: read(item) for key, item in found.items()}
        return [read(item) for item in found]

    assert read(compose(copy.deepcopy(value))) == value


CONTROLS = ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029"]


@pytest.mark.parametrize("character", CONTROLS)
@pytest.mark.parametrize("target", ["k8s", "ray", "helm", "compose", "systemd", "slurm"])
def test_control_characters_enter_nowhere(
    tmp_path: Path, target: str, character: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = f"m{character}x"
    plan = of_this_machine()
    place = ["--image", "i", "--host-path", "/srv/m"]
    if target in ("systemd", "slurm"):
        place = ["--model-path", "/srv/m"]
    path, out = tmp_path / "plan.yaml", tmp_path / "made"
    path.write_text(yaml.safe_dump(plan))
    words = ["deploy", target, str(path), "-o", str(out)]
    for at in range(1, len(place), 2):
        changed = [*place[:at], place[at] + hostile, *place[at + 1 :]]
        assert main([*words, *changed]) == 2
        said = capsys.readouterr().err
        assert place[at - 1] in said
        assert f"U+{ord(character):04X}" in said
    plan["model"]["name"] = hostile
    path.write_text(yaml.safe_dump(plan))
    assert main([*words, *place]) == 1
    assert f"{path}: model.name is" in capsys.readouterr().err
    assert not out.exists()


@given(st.text())
def test_controls_are_those_of_unicode(text: str) -> None:
    """Beside the standard library's own rule for a part of them."""
    has = any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in text)
    assert bool(control_character(text)) == has
