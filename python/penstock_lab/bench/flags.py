"""Flags shared by several commands, with the names and defaults of `vllm bench serve` (0.32).

A vLLM flag that this tool does not support (multimodal data, LoRA, pooling, or plots, which `bench
report` draws) is rejected, so that a script that relies on it fails at once. Flags that are
accepted but ignored are in `foreign_flags`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence

from penstock.config import openai_api_key
from penstock.config.kinds import Bytes
from penstock.core import InvalidValueError
from penstock_lab.bench import block
from penstock_lab.bench.body import ENDPOINTS, Body
from penstock_lab.bench.target import Address, Target, Wanted, base_url, discover, wait_ready

DEFAULT_PROMPTS = 1000
GOODPUT = ("ttft", "tpot", "e2el")
SAMPLING: Mapping[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
}


def integer(least: int) -> Callable[[str], int]:
    """A `type=` function for argparse that parses an integer of at least `least`."""

    def parse(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    parse.__name__ = "integer"
    return parse


def number(
    group: argparse._ArgumentGroup,
    name: str,
    meaning: str,
    default: int | None = None,
    *,
    least: int = 1,
    metavar: str = "N",
) -> None:
    """Add an integer flag. Its help states the default."""
    if default is not None:
        meaning = f"{meaning} (default: {default})"
    group.add_argument(name, type=integer(least), default=default, metavar=metavar, help=meaning)


def positive(text: str) -> float:
    """A `type=` function for argparse that parses a number above 0, or inf."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def size(least: int, most: int) -> Callable[[str], int]:
    """A `type=` function for argparse that parses bytes such as 4KiB, within the bounds."""
    kind = Bytes(least, most)

    def parse(text: str) -> int:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {kind.expected()}") from error

    return parse


def pair(text: str) -> tuple[str, str]:
    """A `type=` function for argparse that parses KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def json_object(text: str) -> dict[str, object]:
    """A `type=` function for argparse that parses a JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object")
    return value


def percentiles(text: str) -> tuple[float, ...]:
    """A `type=` function for argparse that parses percentiles such as 50,99."""
    values = tuple(float(part) for part in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: percentiles are in 0..100")
    return values


def metrics(text: str) -> tuple[str, ...]:
    """A `type=` function for argparse that parses names of metrics."""
    names = tuple(part.strip() for part in text.split(","))
    if unknown := set(names) - set(block.METRICS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: the metrics are {', '.join(block.METRICS)}"
        )
    return names


def goodput(text: str) -> tuple[str, float]:
    """A `type=` of argparse: METRIC:MILLISECONDS, as the metric and its limit in seconds."""
    name, _, limit = text.partition(":")
    if name not in GOODPUT or not float(limit or "nan") >= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not KEY:MS with KEY among {', '.join(GOODPUT)}"
        )
    return name, float(limit) / 1000


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add flags for the server's address; `target` reads them."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--backend",
        choices=tuple(ENDPOINTS),
        default="openai",
        help="openai: completions (vllm is the same); openai-chat: chat completions",
    )
    group.add_argument("--base-url", help="such as http://host:8000; instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="of the server (default: %(default)s)")
    group.add_argument(
        "--port", type=int, default=8000, help="of the server (default: %(default)s)"
    )
    group.add_argument("--endpoint", help="path; default: /v1/completions, or that of chat")
    group.add_argument(
        "--header",
        type=pair,
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="headers of every request; win over OPENAI_API_KEY",
    )
    group.add_argument(
        "--model",
        help="name in the requests; default: the first that the server lists at /v1/models",
    )
    group.add_argument("--served-model-name", help="what requests call the model; default: --model")
    group.add_argument("--insecure", action="store_true", help="accept any certificate")
    group.add_argument(
        "--idle-timeout",
        type=positive,
        metavar="SECONDS",
        help="a request without a byte for so long has failed; default: it may take for ever",
    )
    number(
        group,
        "--ready-check-timeout-sec",
        "wait so long for the server to be ready; 0: it must be. Asks /health or /v1/models; "
        "vLLM sends the first prompt instead, which warms its prefix",
        default=0,
        least=0,
        metavar="SECONDS",
    )


def target(parsed: argparse.Namespace) -> Target:
    """The server that the flags of `add_target` name. If a flag is set for it, waits until the
    server is ready. Queries the server for its model.
    """
    endpoint = parsed.endpoint or ENDPOINTS[parsed.backend]
    if not endpoint.startswith("/") or endpoint.endswith("chat/completions") != (
        parsed.backend == "openai-chat"
    ):
        raise InvalidValueError(
            "--endpoint", endpoint, f"a path that --backend {parsed.backend} can use"
        )
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    address = Address(
        base_url(parsed.base_url or f"http://{host}:{parsed.port}"),
        headers(parsed.header),
        parsed.insecure,
    )
    if parsed.ready_check_timeout_sec:
        wait_ready(address, parsed.ready_check_timeout_sec)
    wanted = Wanted(
        parsed.backend, endpoint, parsed.model, parsed.served_model_name, parsed.idle_timeout
    )
    return discover(address, wanted)


def headers(given: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The `given` headers, plus the API key from the environment unless they have one."""
    key = openai_api_key()
    own = {name.lower() for name, _ in given}
    bearer = (("Authorization", f"Bearer {key}"),) if key and "authorization" not in own else ()
    return (*bearer, *given)


def redacted(argv: Sequence[str]) -> list[str]:
    """A command line without the values of headers, which may contain keys."""
    kept: list[str] = []
    inside = False
    for word in argv:
        if word.startswith("--header="):
            word = "--header=" + _redacted(word.removeprefix("--header="))
        elif word.startswith("-"):
            inside = word == "--header"
        elif inside:
            word = _redacted(word)
        kept.append(word)
    return kept


def _redacted(header: str) -> str:
    return header.partition("=")[0] + "=***"


def add_load(parser: argparse.ArgumentParser) -> None:
    """Add flags for the number of requests, the concurrency and the seed."""
    group = parser.add_argument_group("load")
    number(group, "--max-concurrency", "requests open at one time; default: no limit")
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of lengths, prompts and arrivals (default: %(default)s)",
    )
    number(
        group,
        "--num-warmups",
        "requests before the measurement, made as its own are but with another seed; vLLM "
        "repeats the first prompt instead, which warms its prefix",
        default=0,
        least=0,
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Add flags for the arrival process."""
    group = parser.add_argument_group("arrivals")
    group.add_argument(
        "--request-rate",
        type=positive,
        default=math.inf,
        help="per second; inf: all at once (default: inf)",
    )
    group.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        help="shape of the gamma distribution between requests: 1 Poisson, less is burstier "
        "(default: 1)",
    )
    group.add_argument(
        "--ramp-up-strategy",
        choices=("linear", "exponential"),
        help="how the rate grows from --ramp-up-start-rps to --ramp-up-end-rps, in place of "
        "--request-rate",
    )
    number(group, "--ramp-up-start-rps", "rate of the first request", least=0, metavar="RPS")
    number(group, "--ramp-up-end-rps", "rate of the last request", least=0, metavar="RPS")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add flags for prompt generation."""
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="model whose tokenizer makes prompts of exact length: an alias or a path; default: "
        "the server's model when it is found here, else the server is asked",
    )
    group.add_argument(
        "--prompt-ids",
        action="store_true",
        help="send token ids instead of text (--backend openai only)",
    )
    number(
        group, "--vocab-size", "with --prompt-ids where no tokenizer is found: draw ids below this"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add sampling flags. A parameter without its flag is not sent, so the server's default
    applies, as in vLLM's benchmark.
    """
    group = parser.add_argument_group("sampling")
    for name, kind in SAMPLING.items():
        group.add_argument(
            f"--{name.replace('_', '-')}", type=kind, help=f"{name} in every request"
        )
    number(group, "--logprobs", "ask for so many top log probabilities of each token", least=0)
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="answers have exactly the length that was asked for, else they are failures; always "
        "so with random prompts and traces",
    )
    group.add_argument(
        "--extra-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="more fields of every body",
    )
    group.add_argument(
        "--request-id-prefix", metavar="TEXT", help="send the field request_id: this and a number"
    )


def sampling(parsed: argparse.Namespace) -> dict[str, object]:
    """Body fields from the flags of `add_sampling`; --extra-body takes precedence."""
    given = {name: getattr(parsed, name) for name in SAMPLING}
    return {
        **{name: value for name, value in given.items() if value is not None},
        **parsed.extra_body,
    }


def body(parsed: argparse.Namespace, target: Target, *, ignore_eos: bool) -> Body:
    """Body fields shared by all requests of a run; --ignore-eos takes precedence."""
    return Body(
        chat=target.chat,
        model=target.model,
        ignore_eos=parsed.ignore_eos or ignore_eos,
        logprobs=parsed.logprobs,
        extra=sampling(parsed),
        request_id_prefix=parsed.request_id_prefix,
    )


def add_statistics(parser: argparse.ArgumentParser) -> None:
    """Add flags for statistics."""
    group = parser.add_argument_group("statistics")
    group.add_argument(
        "--percentile-metrics",
        type=metrics,
        default=("ttft", "tpot", "itl"),
        metavar="LIST",
        help=f"sections to print, of {','.join(block.METRICS)} (default: ttft,tpot,itl)",
    )
    group.add_argument(
        "--metric-percentiles",
        type=percentiles,
        default=(99.0,),
        metavar="LIST",
        help="percentiles to print (default: 99)",
    )
    group.add_argument(
        "--goodput",
        type=goodput,
        nargs="+",
        default=[],
        metavar="KEY:MS",
        help="count requests within all of these limits, such as ttft:500 tpot:50",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add flags for result files."""
    group = parser.add_argument_group("results")
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument(
        "--save-detailed", action="store_true", help="with every request and every event"
    )
    group.add_argument("--append-result", action="store_true", help="add a line to the file")
    group.add_argument(
        "--result-dir", metavar="DIR", help="where files go (default: the working directory)"
    )
    group.add_argument(
        "--result-filename",
        metavar="NAME",
        help="of the file; default: LABEL-RATEqps[-concurrencyN]-MODEL-DATE.json",
    )
    group.add_argument("--label", help="first part of the file's name; default: the backend")
    group.add_argument(
        "--metadata",
        type=pair,
        nargs="*",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="more keys of the file",
    )


def add_display(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress on stderr")
