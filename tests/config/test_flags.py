import re

import pytest

from penstock.config.flags import FLAGS, GROUPS, Flag
from penstock.config.kinds import Switch
from penstock.config.resolve import parse
from penstock.config.sources import Raw
from penstock.config.vllm_flags import FOREIGN, ignored_value
from penstock.core import InvalidValueError, PenstockError

BY_NAME = {flag.name: flag for flag in FLAGS}

OUT_OF_RANGE = {
    "--dtype": "float64",
    "--quantization": "fp8",
    "--max-model-len": "1",
    "--load-format": "tensorizer",
    "--seed": "-1",
    "--tokenizer": "",
    "--revision": "",
    "--chat-template": "",
    "--allow-special-tokens": "perhaps",
    "--trust-request-chat-template": "perhaps",
    "--tool-call-parser": "",
    "--reasoning-parser": "",
    "--kv-cache-memory-bytes": "12 parsecs",
    "--block-size": "48",
    "--kv-cache-dtype": "int8",
    "--kv-tier": "tape:1GiB",
    "--kv-chunk-tokens": "8",
    "--enable-prefix-caching": "perhaps",
    "--max-num-seqs": "0",
    "--max-num-batched-tokens": "many",
    "--max-num-queued-reqs": "0",
    "--scheduling-policy": "lifo",
    "--threads": "0",
    "--isa": "sse2",
    "--device": "",
    "--attention-backend": "eager",
    "--tensor-parallel-size": "0",
    "--pipeline-parallel-size": "two",
    "--distributed-executor-backend": "threads",
    "--ray-address": "",
    "--ray-channel": "pigeon",
    "--enable-expert-parallel": "perhaps",
    "--disable-custom-all-reduce": "perhaps",
    "--ray-overlap-comm": "perhaps",
    "--placement": "scatter",
    "--nnodes": "0",
    "--node-rank": "-1",
    "--master-addr": "",
    "--distributed-timeout-seconds": "0",
    "--cluster-token-file": "",
    "--host": "",
    "--port": "65536",
    "--served-model-name": "",
    "--api-key": "",
    "--allowed-origins": "",
    "--generation-config": "",
    "--override-generation-config": "",
    "--ray-communicator": "",
    "--kv-events-config": "[]",
    "--admin-api-key": "",
    "--engine-process": "2",
    "--skip-tokenizer-init": "perhaps",
    "--shutdown-timeout": "nan",
    "--engine-stall-timeout": "0.5",
    "--max-queue-wait": "-1",
    "--max-request-bytes": "1000",
    "--log-level": "loud",
    "--log-format": "xml",
    "--ui": "perhaps",
    "--access-log": "perhaps",
    "--otlp-traces-endpoint": "",
    "--uds": "",
    "--ssl-certfile": "",
    "--ssl-keyfile": "",
    "--metrics-port": "0",
    "--replicas": "0",
    "--api-key-file": "",
}


def test_every_flag_is_defined_once_and_complete() -> None:
    assert len(BY_NAME) == len(FLAGS)
    assert len({flag.env for flag in FLAGS}) == len(FLAGS)
    for flag in FLAGS:
        assert re.fullmatch(r"--[a-z]+(-[a-z]+)*", flag.name)
        assert flag.group in GROUPS
        assert flag.help
        assert flag.kind.expected()
        assert flag.env == "PENSTOCK_" + flag.name[2:].upper().replace("-", "_")
    assert not {foreign.name for foreign in FOREIGN} & BY_NAME.keys()
    assert len({foreign.name for foreign in FOREIGN}) == len(FOREIGN)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.key)
def test_a_value_out_of_range_is_refused_with_place_and_range(flag: Flag) -> None:
    text = OUT_OF_RANGE[flag.name]
    with pytest.raises(InvalidValueError) as caught:
        parse({flag.key: Raw(flag.name, (text,))})
    assert str(caught.value) == f"{flag.name} is {text!r}, expected {flag.kind.expected()}"


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.key)
def test_a_default_is_in_its_own_range(flag: Flag) -> None:
    defaults = flag.default if isinstance(flag.default, tuple) else (flag.default,)
    for default in defaults:
        if default is not None:
            assert flag.kind.parse(str(default)) == default


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1048576", 2**20),
        ("512M", 512 * 10**6),
        ("1GiB", 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("2g", 2 * 10**9),
        ("256MiB", 2**28),
        ("3GB", 3 * 10**9),
    ],
)
def test_sizes_may_carry_units(text: str, expected: int) -> None:
    assert BY_NAME["--kv-cache-memory-bytes"].kind.parse(text) == expected


@pytest.mark.parametrize("text", ["1", "-5M", "1GiX", "", "G"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="also as 512M or 1GiB"):
        parse({"kv_cache_memory_bytes": Raw("--kv-cache-memory-bytes", (text,))})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("1.5k", 1500),
        ("1M", 2**20),
        ("auto", None),
        ("-1", None),
    ],
)
def test_lengths_have_the_short_forms_of_vllm(text: str, expected: int | None) -> None:
    assert BY_NAME["--max-model-len"].kind.parse(text) == expected


@pytest.mark.parametrize("text", ["4x", "1.0001k", "k", "1e3", "--", " 4", "100G"])
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="also as 4k"):
        parse({"max_model_len": Raw("--max-model-len", (text,))})


def test_half_precision_is_computed_as_bfloat16() -> None:
    dtype = BY_NAME["--dtype"].kind
    assert [dtype.parse(text) for text in ("half", "float16", "float", "auto")] == [
        "bfloat16",
        "bfloat16",
        "float32",
        "auto",
    ]


def test_keywords_of_vllm_are_ignored_with_the_reason_of_their_flags() -> None:
    assert ignored_value("enforce_eager", True) == (
        "enforce_eager is ignored: graphs are captured on GPUs, without a choice"
    )
    assert ignored_value("enforce_eager", False) == ""
    assert ignored_value("runner", "auto") == ""
    assert ignored_value("enforce_lazy", True) is None
    with pytest.raises(InvalidValueError, match="task is 'draft', expected auto or generate"):
        ignored_value("task", "draft")
    with pytest.raises(PenstockError, match="hf_overrides is not supported: change"):
        ignored_value("hf_overrides", {"rope_theta": 1})


def test_switches_read_words() -> None:
    assert [Switch().parse(word) for word in ("true", "1", "ON", "no", "0", "False")] == [
        True
    ] * 3 + [False] * 3
