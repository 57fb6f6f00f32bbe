"""opencode: chat completions with tools from its first message on."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from check import BASE_URL, MODEL, feature


@feature("run with a short prompt and one tool")
def _() -> None:
    with tempfile.TemporaryDirectory() as home:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "penstock",
            "options": {"baseURL": BASE_URL, "apiKey": "none"},
            "models": {MODEL: {"limit": {"context": 8192, "output": 512}}},
        }
        # Its own prompt and all of its tools would leave no room in 8,192 tokens.
        agent = {
            "temperature": 0,
            "prompt": "Answer in a few words.",
            "tools": {"*": False, "read": True},
        }
        settings = {
            "provider": {"penstock": provider},
            "model": f"penstock/{MODEL}",
            "agent": {"build": agent},
        }
        (Path(home) / "opencode.json").write_text(json.dumps(settings))
        done = subprocess.run(
            [
                os.environ["CLIENT_BIN"] + "/opencode",
                "run",
                "--format",
                "json",
                "-m",
                f"penstock/{MODEL}",
                "say hi",
            ],
            cwd=home,
            # It takes the directory of its settings from PWD.
            env={
                **os.environ,
                **dict.fromkeys(("PWD", "HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=True,
        )
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert {"text", "tool_use"} & set(kinds), kinds
    assert kinds[-1] == "step_finish", kinds
