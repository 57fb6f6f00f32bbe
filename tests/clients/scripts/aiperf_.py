"""aiperf: a load of its own over the chat and the completions endpoint."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import BASE_URL, MODEL, feature
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

REQUESTS = 8


def write_tokenizer(directory: Path) -> None:
    """A tokenizer for its prompts, with no hub: each byte a token."""
    pieces = {piece: at for at, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


for kind in ("chat", "completions"):

    @feature(f"profile: {kind}, streaming")
    def _(kind: str = kind) -> None:
        with tempfile.TemporaryDirectory() as name:
            tokenizer = Path(name, "tokenizer")
            write_tokenizer(tokenizer)
            words = (
                f"profile --model {MODEL} --url {BASE_URL.removesuffix('/v1')}",
                f"--endpoint-type {kind} --streaming --isl 40 --osl 8",
                f"--request-count {REQUESTS} --concurrency 2 --use-server-token-count",
                "--extra-inputs ignore_eos:true --use-legacy-max-tokens",
                "--no-server-metrics --no-gpu-telemetry --export-level summary --ui none",
                f"--tokenizer {tokenizer} --output-artifact-dir {name}/out",
            )
            program = str(Path(sys.executable).with_name("aiperf"))
            done = subprocess.run(
                [program, *" ".join(words).split()],
                # Offline, it takes the path of a tokenizer for a name in the hub's cache.
                env={name: value for name, value in os.environ.items() if "OFFLINE" not in name},
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            log = Path(name, "out/logs/aiperf.log")
            if done.returncode and log.is_file():
                print(log.read_text()[-3000:], file=sys.stderr)
            assert done.returncode == 0, done.stdout[-400:]
            export = json.loads(Path(name, "out/profile_export_aiperf.json").read_text())
            assert export["request_count"]["avg"] == REQUESTS
            assert export["output_sequence_length"]["avg"] == 8
