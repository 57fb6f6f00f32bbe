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
        done = subprocess.run(
            [os.environ["CLIENT_BIN"] + "/opencode", "run", "say hi"],
            cwd=home,
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-400:]
