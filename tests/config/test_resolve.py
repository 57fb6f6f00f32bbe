import sys
from pathlib import Path

import pytest

from penstock.config import (
    EngineConfig,
    Raw,
    cache_directory,
    gather,
    resolve,
    runtime_directory,
    shared_memory_directory,
)
from penstock.core import InvalidValueError, PenstockError


def settings(**texts: str) -> dict[str, Raw]:
    return {key: Raw("--" + key.replace("_", "-"), (text,)) for key, text in texts.items()}


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "port: 1\nmax-num-seqs: 2\nblock_size: 64\napi-key: [a, b]\nenable-prefix-caching: false\n"
    )
    environ = {"PENSTOCK_PORT": "3", "PENSTOCK_MAX_NUM_SEQS": "4"}
    config = resolve(gather({"port": ("5",)}, str(file), environ), "model", "name")
    assert config.server.port == 5
    assert config.engine.scheduler.max_num_seqs == 4
    assert config.engine.cache.block_size == 64
    assert config.engine.cache.prefix_caching is False
    assert config.server.api_keys == ("a", "b")


def test_origins_may_be_one_json_list_as_in_vllm() -> None:
    def origins(*values: str) -> tuple[str, ...]:
        given = {"allowed_origins": Raw("--allowed-origins", values)}
        return resolve(given, "m", "smollm2").server.allowed_origins

    assert origins() == ()
    assert origins("http://a", "*") == ("http://a", "*")
    assert origins('["http://a", "http://b"]') == ("http://a", "http://b")
    with pytest.raises(InvalidValueError, match="--allowed-origins"):
        origins("[http://a")


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("port: 7\n")
    assert resolve(gather({}, None, {"PENSTOCK_CONFIG": str(file)}), "m", "n").server.port == 7


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("flag", "--port is"),
        ("environment", "PENSTOCK_PORT is"),
        ("file", "penstock.yaml:1: port is"),
    ],
)
def test_an_error_names_the_place_where_the_value_stands(
    source: str, place: str, tmp_path: Path
) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("port: 99999\n" if source == "file" else "")
    flags = {"port": ("99999",)} if source == "flag" else {}
    environ = {"PENSTOCK_PORT": "99999"} if source == "environment" else {}
    with pytest.raises(InvalidValueError, match=r"expected an integer in 0\.\.65535") as caught:
        resolve(gather(flags, str(file), environ), "m", "n")
    assert place in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PenstockError, match=r"--config nowhere\.yaml: No such file"):
        gather({}, "nowhere.yaml", {})


def test_the_batch_follows_the_sequences_and_they_follow_it() -> None:
    def scheduler(**texts: str) -> tuple[int, int]:
        section = resolve(settings(**texts), "m", "n").engine.scheduler
        return section.max_num_seqs, section.max_num_batched_tokens

    assert scheduler() == (64, 256)
    assert scheduler(max_num_seqs="600") == (600, 600)
    assert scheduler(max_num_batched_tokens="16") == (16, 16)
    assert scheduler(device="cuda") == (256, 8192)
    assert scheduler(device="cuda", max_num_seqs="4") == (4, 8192)
    assert scheduler(device="torch") == (64, 256)


def test_a_batch_below_the_sequences_is_refused_with_both_flags() -> None:
    with pytest.raises(
        InvalidValueError, match=r"--max-num-batched-tokens is 8, expected at least --max-num-seqs"
    ):
        resolve(settings(max_num_seqs="9", max_num_batched_tokens="8"), "m", "n")


def test_served_names_default_to_what_the_model_was_called() -> None:
    assert resolve({}, "m", "smollm2").server.served_model_names == ("smollm2",)
    named = {"served_model_name": Raw("--served-model-name", ("a", "b"))}
    assert resolve(named, "m", "smollm2").server.served_model_names == ("a", "b")


def test_the_engine_reads_back_what_it_was_told() -> None:
    engine = resolve(settings(max_model_len="99", isa="avx2", seed="5"), "m", "n").engine
    assert EngineConfig.from_json(engine.to_json()) == engine


def test_the_cache_directory_follows_the_environment() -> None:
    assert cache_directory({"PENSTOCK_CACHE": "p", "XDG_CACHE_HOME": "x"}) == Path("p")
    assert cache_directory({"XDG_CACHE_HOME": "x"}) == Path("x/penstock")
    assert cache_directory({}) == Path.home() / ".cache/penstock"


def test_sockets_go_to_the_runtime_directory_that_exists(tmp_path: Path) -> None:
    assert runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == str(tmp_path)
    assert runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path / "gone")}) is None
    assert runtime_directory({}) is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, "bfloat16"),
        ({"quantization": "none"}, "float32"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float32", "quantization": "int8"}, "bfloat16"),
        ({"quantization": "none", "kv_cache_dtype": "bfloat16"}, "bfloat16"),
        ({"kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_keys_and_values_take_the_form_of_the_numerics_table(
    texts: dict[str, str], expected: str
) -> None:
    raw = {key: Raw(key, (text,)) for key, text in texts.items()}
    assert resolve(raw, "m", "m").engine.kv_dtype == expected


@pytest.mark.parametrize(
    ("tp", "pp", "asked", "backend"),
    [
        ("1", "1", None, "inline"),
        ("2", "1", None, "mp"),
        ("1", "3", None, "mp"),
        ("1", "1", "mp", "mp"),
    ],
)
def test_several_ranks_are_processes(tp: str, pp: str, asked: str | None, backend: str) -> None:
    raw = {"tensor_parallel_size": Raw("-tp", (tp,)), "pipeline_parallel_size": Raw("-pp", (pp,))}
    if asked:
        raw["distributed_executor_backend"] = Raw("", (asked,))
    engine = resolve(raw, "m", "m").engine
    assert (engine.parallel.ranks, engine.parallel.backend) == (int(tp) * int(pp), backend)
    assert EngineConfig.from_json(engine.to_json()) == engine


def test_backends_that_cannot_be_are_refused() -> None:
    two = {"tensor_parallel_size": Raw("-tp", ("2",))}
    with pytest.raises(InvalidValueError, match="expected mp for 2 ranks"):
        resolve({**two, "distributed_executor_backend": Raw("", ("inline",))}, "m", "m")
    with pytest.raises(PenstockError, match="--no-engine-process does not go with"):
        resolve({**two, "engine_process": Raw("", ("false",))}, "m", "m")


def test_ranks_meet_in_memory_or_where_sockets_are(tmp_path: Path) -> None:
    assert shared_memory_directory({}, tmp_path) == tmp_path
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert shared_memory_directory(runtime, tmp_path / "none") == tmp_path
    assert shared_memory_directory({}, tmp_path / "none").is_dir()


NO_SETTING = "in the environment is no setting"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "PENSTOCK_PROT",
            "1",
            f"PENSTOCK_PROT {NO_SETTING}; did you mean PENSTOCK_PORT?",
        ),
        ("PENSTOCK_COLOUR", "red", f"PENSTOCK_COLOUR {NO_SETTING}"),
        ("PENSTOCK_SERVICE_HOST", "10.0.0.1", None),
        ("PENSTOCK_PORT_8000_TCP_ADDR", "10.0.0.1", None),
        ("PENSTOCK_GATEWAY_PORT", "tcp://10.0.0.1:80", None),
        ("PENSTOCK_CACHE", "models", None),
        ("OTHER_PROT", "1", None),
    ],
)
def test_a_mistyped_variable_is_warned_of(
    name: str, text: str, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    gather({}, None, {name: text})
    assert caplog.messages == ([said] if said else [])


def test_the_port_of_a_kubernetes_service_is_no_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Service named penstock, in a pod with service links: one line names the cause."""
    with caplog.at_level("WARNING"):
        assert "port" not in gather({}, None, {"PENSTOCK_PORT": "tcp://10.0.0.1:8000"})
    (said,) = caplog.messages
    assert said.startswith(
        "PENSTOCK_PORT=tcp://10.0.0.1:8000 is the address of a Kubernetes Service named penstock"
    )
    assert "enableServiceLinks: false" in said
    assert "\n" not in said
    assert gather({}, None, {"PENSTOCK_PORT": "7"})["port"].texts == ("7",)


@pytest.mark.parametrize("given", [{}, {"device": Raw("--device", ("auto",))}])
@pytest.mark.parametrize("there", [True, False])
def test_an_automatic_device_is_a_gpu_where_one_is(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Raw], *, there: bool
) -> None:
    monkeypatch.setattr(
        sys.modules["penstock.config.resolve"], "first_device", lambda: "cuda" if there else None
    )
    assert resolve(given, "m", "m").engine.compute.backend == ("cuda" if there else "cpu")
