"""Configuration files: every scalar as written, every fault with its place and its remedy."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import gather, model_named, resolve
from penstock.config.sources import from_file
from penstock.core import InvalidValueError, PenstockError

FILE = "penstock.yaml"
_ALIASES = [f"{name}: &{name} [{','.join([f'*{of}'] * 8)}]" for of, name in pairwise("abcdef")]
BOMB = f"{{a: &a [1,1,1,1,1,1,1,1], {', '.join(_ALIASES)}}}"
"""Some 300,000 values."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


def write(directory: Path, text: str) -> Path:
    file = directory / FILE
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "text",
    [
        "off",
        "0123",
        "1e3",
        "~",
        "null",
        "12:30:00",
        "2026-11-20",
        "0x1F",
        "1_000",
        "=",
        "<<",
        "Yes",
    ],
)
def test_a_scalar_is_the_text_that_was_written(text: str, tmp_path: Path) -> None:
    file = write(
        tmp_path, f"host: {text}\napi-key: [{text}]\nserved_model_name:\n  - {text}\n  - '{text}'\n"
    )
    server = resolve(gather({}, str(file), {}), "m", "n").server
    assert (server.host, server.api_keys) == (text, (text,))
    assert server.served_model_names == (text, text)


def test_switches_and_numbers_mean_what_flags_mean(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "enable-prefix-caching: off\nengine_process: No\nport: 08000\nshutdown-timeout: 1.5\n",
    )
    config = resolve(gather({}, str(file), {}), "m", "n")
    assert config.engine.cache.prefix_caching is False
    assert config.server.engine_process is False
    assert (config.server.port, config.server.shutdown_timeout) == (8000, 1.5)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "\ufeff# with a mark\n"])
def test_a_file_may_say_nothing(text: str, tmp_path: Path) -> None:
    assert from_file(write(tmp_path, text)) == {}


def test_an_anchor_is_as_good_as_what_it_stands_for(tmp_path: Path) -> None:
    file = write(tmp_path, "max-num-seqs: &n 32\nmax-num-batched-tokens: *n\n")
    assert (
        resolve(gather({}, str(file), {}), "m", "n").engine.scheduler.max_num_batched_tokens == 32
    )


def test_the_model_may_stand_in_the_file(tmp_path: Path) -> None:
    raw = gather({}, str(write(tmp_path, "port: 1\nmodel: smollm2\n")), {})
    assert model_named(raw, None) == "smollm2"
    assert model_named(raw, "other") == "other", "the command line comes first"
    empty = gather({}, str(write(tmp_path, "model:\n")), {})
    with pytest.raises(InvalidValueError, match=rf"{FILE}:1: model is '', expected a model"):
        model_named(empty, None)
    nothing = gather({}, str(write(tmp_path, "port: 1\n")), {})
    with pytest.raises(InvalidValueError, match=r"which model\? Name an alias \(`penstock serve"):
        model_named(nothing, None)


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (
            "port: 1\nprot: 1",
            2,
            "unknown setting 'prot'; the names are model and those of the flags",
        ),
        ("port: 1\n\nport: 2", 3, "port stands on line 1 already; leave one of them out"),
        ("max-num-seqs: 1\nmax_num_seqs: 1", 2, "max_num_seqs stands on line 1 already"),
        (
            "port = 7\nblock-size = 16",
            1,
            "settings are written as `name: value`, each on a line of its own",
        ),
        ("- port: 7", 1, "settings are written as `name: value`"),
        ("port: 1\nhost: [", 2, "not YAML: while parsing a flow node: expected the node content"),
        (
            "host: [a,\n  b\nport: 1",
            3,
            "not YAML: while parsing a flow sequence from line 1: expected ',' or ']'",
        ),
        (
            "port: 1\n\thost: a",
            2,
            "not YAML: while scanning .*found character '.t' that cannot start any token",
        ),
        ("host: a: b", 1, "not YAML: mapping values are not allowed here"),
        ("port: *a", 1, "not YAML: found undefined alias 'a'"),
        ("port: 1\n---\nport: 1", 3, "a second document, where one is expected"),
        ("port: 1\nhost: \a", 2, "not YAML: special characters are not allowed"),
        ("port: 1\nhost: !env HOST", 2, "the tag !env is not understood; write the value alone"),
        ("port: !!int 1", 1, "the tag !!int is not understood"),
        ("port: 1\nport: {a: 1}", 2, "port stands on line 1 already"),
        ("? [a]\n: 1", 1, "a list, where one value is expected"),
        ("? {a: 1}\n: 1", 1, "a mapping, where one value is expected"),
        ("api-key:\n  - a\n  - [b]", 3, "a list, where one value is expected"),
        ("kv-tier:\n  - ram: [1]", 2, "a list, where one value is expected"),
        ("kv-tier: &a [*a]", 1, "an alias stands for what it is in"),
        ("[" * 5000, 1, "nested more than 100 deep"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_remedy(
    text: str, line: int, fault: str, tmp_path: Path
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(PenstockError, match=rf"^{file}:{line}: {fault}"):
        from_file(file)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\nport: {a: 1}", r":2: port is '{a: 1}', expected an integer in 0\.\.65535"),
        ("port: [1, 2]", r":1: port is '\[1, 2\]', expected an integer"),
        ("api-key: {a: 1}", ":1: api-key is '{a: 1}', expected a text that is not empty"),
        ("model: [a, b]", r":1: model is '\[a, b\]', expected a text"),
        ("port: 1\nblock_size:", ":2: block_size is '', expected one of 16, 32, 64, 128"),
        ("port:\n  99999", r":1: port is '99999', expected an integer in 0\.\.65535"),
    ],
)
def test_a_wrong_value_is_shown_as_written(text: str, fault: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InvalidValueError, match=f"^{file}{fault}"):
        resolve(from_file(file), "m", "n")


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes("host: h\u00f4te".encode("latin-1"))
    with pytest.raises(PenstockError, match=f"--config {file}: not UTF-8 at byte 7"):
        from_file(file)


PIECES = [
    "port",
    "kv-tier",
    "ram",
    "disk",
    "1GiB",
    ": ",
    ":",
    "\n",
    "\n  ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
]
PIECES += [
    "'",
    '"',
    "&a ",
    "*a",
    "!t ",
    "|\n",
    "#",
    "? ",
    "---\n",
    "%",
    "\t",
    "\0",
    "\u0085",
    "\ud7ff",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
def test_whatever_a_file_holds_it_is_understood_or_refused(directory: Path, text: str) -> None:
    file = directory / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        resolve(gather({}, str(file), {}), "m", "n")
    except PenstockError as error:
        assert str(error).startswith((str(file), "--"))  # noqa: PT017 - valid is as good


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{temperature: 0.5}", {"temperature": 0.5}),
        ("\n  temperature: 1e-1\n  top_k: 5\n", {"temperature": 0.1, "top_k": 5}),
        ("'{\"temperature\": 0.5}'", {"temperature": 0.5}),
        (
            "{a: true, b: ~, c: yes, d: '5', e: [1, x], f: {g: -2}, h: NaN, i: 007}",
            {
                "a": True,
                "b": None,
                "c": "yes",
                "d": "5",
                "e": [1, "x"],
                "f": {"g": -2},
                "h": "NaN",
                "i": "007",
            },
        ),
    ],
)
def test_json_may_be_a_mapping(text: str, value: object, tmp_path: Path) -> None:
    file = write(tmp_path, f"override-generation-config: {text}\n")
    config = resolve(gather({}, str(file), {}), "m", "n")
    assert json.loads(config.engine.model.override_generation_config or "") == value


def test_all_json_settings_may_be_mappings(tmp_path: Path) -> None:
    text = "kv_events_config: {enable_kv_cache_events: true, endpoint: 'tcp://*:5600', hwm: 7}\n"
    events = resolve(gather({}, str(write(tmp_path, text)), {}), "m", "n").engine.cache.events
    assert events is not None
    assert (events.endpoint, events.hwm) == ("tcp://*:5600", 7)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1]", "penstock.yaml:1: override-generation-config is '[1]', expected a JSON object"),
        ("'[1]'", "expected a JSON object"),
        ("0.5", "expected a JSON object"),
        ("&x {a: *x}", "an alias stands for what it is in"),
        ("{a: !env B}", "the tag !env is not understood"),
        ("{a: 1, a: 2}", "a stands on line 1 already"),
        (BOMB, "250,000 values"),
    ],
)
def test_what_is_no_json_object_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"override-generation-config: {text}\n")
    with pytest.raises(PenstockError) as caught:
        resolve(gather({}, str(file), {}), "m", "n")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"a":' * 60_000 + "1" + "}" * 60_000, '{"top_p": NaN}', '{"a": [-Infinity]}']
)
def test_what_json_lacks_is_no_json_object(text: str) -> None:
    with pytest.raises(PenstockError, match="expected a JSON object"):
        resolve(gather({"override_generation_config": (text,)}, None, {}), "m", "n")


def test_what_the_command_line_ignores_is_ignored_in_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(
        tmp_path,
        "gpu-memory-utilization: 0.9\ntrust_remote_code: true\nenforce-eager: false\n"
        "no-enable-chunked-prefill: true\nconfig-format: auto\nport: 1\n"
        "enable-lora: 'false'\nno_enable-lora: true\n",
    )
    assert set(gather({}, str(file), {})) == {"port"}
    assert [record.message for record in caplog.records] == [
        f"{file}:1: gpu-memory-utilization is ignored: see --kv-cache-memory-bytes",
        f"{file}:2: trust_remote_code is ignored: no code is ever loaded from a model",
        f"{file}:4: no-enable-chunked-prefill is ignored: prompts are always computed in chunks",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rope-scaling: x", "penstock.yaml:1: rope-scaling is not supported: change config.json"),
        ("enable-lora: true", "penstock.yaml:1: enable-lora is not supported"),
        ("no-enable-lora: false", "penstock.yaml:1: no-enable-lora is not supported"),
        ("lora-modules: [a, b]", "penstock.yaml:1: lora-modules is not supported"),
        ("config-format: params", "config-format is 'params', expected auto"),
        ("no-such-thing: 1", "unknown setting 'no-such-thing'"),
        ("no-load-format: 1", "unknown setting 'no-load-format'"),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_a_file(
    text: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError) as caught:
        gather({}, str(write(tmp_path, text)), {})
    assert fault in str(caught.value)
