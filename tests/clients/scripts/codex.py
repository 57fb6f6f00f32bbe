"""codex-cli: the Responses API, with the tools that it always sends."""

import os
import subprocess
import tempfile

from check import BASE_URL, MODEL, feature

SETTINGS = {
    "model_provider": '"penstock"',
    "model_providers.penstock.name": '"penstock"',
    "model_providers.penstock.base_url": f'"{BASE_URL}"',
    "model_providers.penstock.wire_api": '"responses"',
    "model_context_window": "8192",
}


@feature("exec")
def _() -> None:
    with tempfile.TemporaryDirectory() as home:
        given = [word for key, value in SETTINGS.items() for word in ("-c", f"{key}={value}")]
        command = [
            os.environ["CLIENT_BIN"] + "/codex",
            "exec",
            "--skip-git-repo-check",
            "-m",
            MODEL,
        ]
        done = subprocess.run(
            [*command, *given, "say hi"],
            cwd=home,
            env={**os.environ, "CODEX_HOME": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-400:]
