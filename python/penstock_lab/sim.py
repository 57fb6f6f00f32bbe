"""`penstock sim`: a simulated engine that answers with modelled timing (docs/simulation.md)."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from penstock import __version__
from penstock.config import gather, resolve, runtime_directory
from penstock.core import InvalidValueError, PenstockError, did_you_mean
from penstock.hub import locate, locate_tokenizer

GROUP = "Measure"
SUMMARY = "serve without a model: an engine with modelled timing"
DESCRIPTION = (
    "Serve without a model: requests are scheduled as Penstock schedules them, steps take as "
    "long as a profile says, and answers are made-up words. Prints one line for each replica "
    "when all of them listen."
)
PRESETS = ("default", "fast", "h100", "instant")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.set_defaults(command=run)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="of the first replica; 0: any free one (default)"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="engines, each on its own port"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads of the HTTP side"
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="name of the model; default: the tokenizer's model, or sim",
    )
    parser.add_argument(
        "--profile",
        default="default",
        metavar="NAME|FILE",
        help=f"limits and timing: {', '.join(PRESETS)}, or a JSON file (default: default)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="count tokens as this model does (default: one for each word)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of answers, jitter and faults"
    )
    parser.add_argument(
        "--answer-tokens",
        metavar="MEAN[:CV]",
        help="lengths of answers without ignore_eos, log-normal (default: max_tokens)",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[:PROBABILITY[:PARAM]]",
        help="refuse, status, slow-headers, error-event, cut, stall, malformed, early-stop, "
        "no-finish, no-usage; repeatable",
    )
    parser.add_argument(
        "--die-after", type=float, metavar="S", help="end the process with status 1 after S s"
    )
    behind = parser.add_mutually_exclusive_group()
    behind.add_argument(
        "--wire", metavar="SOCKET", help="be the engine of the API server at SOCKET"
    )
    behind.add_argument(
        "--front-door",
        metavar="MODEL",
        help="start the API server of MODEL with such an engine behind it",
    )


def run(parsed: argparse.Namespace) -> int:
    """Serve until a signal. The exit status is 1 after --die-after."""
    from penstock import _native

    if parsed.front_door is not None:
        return _front_door(parsed)
    if parsed.wire is not None:
        # Ctrl-C reaches the whole process group, but the API server decides when its engine ends.
        configuration = json.dumps({"engine": engine(parsed)})
        return _run(lambda: _native.sim_wire(parsed.wire, configuration), signal.SIG_IGN)
    configuration = json.dumps(server(parsed))
    return _run(lambda: _native.sim_serve(configuration), signal.SIG_DFL)


class WrongSettingError(InvalidValueError):
    """Invalid settings of the modelled engine."""

    def __init__(self, message: str) -> None:
        PenstockError.__init__(self, message)


def server(parsed: argparse.Namespace) -> dict[str, object]:
    """Configuration of the simulator's HTTP server, for `crates/lab/sim`."""
    for name, most in [("replicas", 1024), ("threads", 64), ("port", 65535)]:
        value = getattr(parsed, name)
        least = 0 if name == "port" else 1
        if not least <= value <= most:
            raise InvalidValueError(f"--{name}", value, f"{least} to {most}")
    name = parsed.served_model_name
    if name is None:
        name = locate_tokenizer(parsed.tokenizer).served_name if parsed.tokenizer else "sim"
    return {
        "host": parsed.host,
        "port": parsed.port,
        "replicas": parsed.replicas,
        "threads": parsed.threads,
        "served_model_name": name,
        "version": __version__,
        "engine": engine(parsed),
    }


def engine(parsed: argparse.Namespace) -> dict[str, object]:
    """The part of the configuration that describes the simulated engine."""
    return {
        "profile": profile(parsed.profile),
        "tokenizer": str(locate_tokenizer(parsed.tokenizer).path) if parsed.tokenizer else None,
        "seed": parsed.seed % 2**64,
        "faults": parsed.fault,
        "answer_tokens": parsed.answer_tokens,
        "die_after_s": parsed.die_after,
    }


def profile(named: str) -> str | dict[str, object]:
    """The engine profile `named`: a preset's name, or the content of a JSON file."""
    if named.lower() in PRESETS and not Path(named).exists():
        return named.lower()
    try:
        found = json.loads(Path(named).read_text())
    except OSError as error:
        raise PenstockError(
            f"--profile {named}: {error.strerror}, and no preset either ({', '.join(PRESETS)})"
            f"{did_you_mean(named, PRESETS)}"
        ) from error
    except ValueError as error:
        raise PenstockError(f"--profile {named}: {error}") from error
    if not isinstance(found, dict):
        raise PenstockError(f"--profile {named}: a JSON object is expected")
    return found


def engine_argv(parsed: argparse.Namespace, model: Path) -> list[str]:
    """Command with which an API server starts this engine. Its paths are absolute, because the
    working directory may differ.
    """
    named = parsed.profile if parsed.profile in PRESETS else str(Path(parsed.profile).resolve())
    argv = [sys.executable, "-P", "-m", "penstock", "sim", "--wire", "{socket}", "--profile", named]
    argv += ["--tokenizer", str(model), "--seed", str(parsed.seed)]
    for fault in parsed.fault:
        argv += ["--fault", fault]
    if parsed.answer_tokens is not None:
        argv += ["--answer-tokens", parsed.answer_tokens]
    if parsed.die_after is not None:
        argv += ["--die-after", str(parsed.die_after)]
    return argv


def _front_door(parsed: argparse.Namespace) -> int:
    from penstock.cli.descriptors import raise_descriptors
    from penstock.cli.serve import front_door, model_info
    from penstock.cli.serve import run as serve

    profile(parsed.profile)  # Validate before a server starts.
    located = locate(parsed.front_door)
    model = located.path
    flags = {"host": (parsed.host,), "port": (str(parsed.port),)}
    if parsed.served_model_name is not None:
        flags["served_model_name"] = (parsed.served_model_name,)
    config = resolve(gather(flags, None), str(model), located.served_name)
    process: dict[str, object] = {
        "argv": engine_argv(parsed, model),
        "socket_dir": None,
        "runtime_dir": runtime_directory(),
    }
    info = model_info(config.engine, located)
    return serve(front_door(config, info, str(model), process, raise_descriptors()))


def _run(native: Callable[[], int], on_interrupt: signal.Handlers) -> int:
    own = signal.signal(signal.SIGINT, on_interrupt)
    try:
        return native()
    except ValueError as error:
        raise WrongSettingError(str(error)) from error
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    finally:
        signal.signal(signal.SIGINT, own)
