"""opencode: chat completions with tools from its first message on."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from check import BASE_URL, MODEL, feature


@feature("run")
def _() -> None:
    with tempfile.TemporaryDirectory() as home:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "penstock",
            "options": {"baseURL": BASE_URL, "apiKey": "none"},
            "models": {MODEL: {"limit": {"context": 8192, "output": 512}}},
        }
        settings = {"provider": {"penstock": provider}, "model": f"penstock/{MODEL}"}
        (Path(home) / "opencode.json").write_text(json.dumps(settings))
        try:
            done = subprocess.run(
                [
                    os.environ["CLIENT_BIN"] + "/opencode",
                    "run",
                    "-m",
                    f"penstock/{MODEL}",
                    "say hi",
                ],
                cwd=home,
                env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
                check=False,
            )
            said = done.stdout
        except subprocess.TimeoutExpired as late:
            # A model of this size does not find an end; that it was answered is enough.
            said = late.stdout or b""
        assert said.strip(), "no answer was shown"
