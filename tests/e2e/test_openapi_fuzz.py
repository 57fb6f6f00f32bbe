"""schemathesis over /openapi.json: what its generators make of the schemas, sent to a real server.

No 500, no status, header or content type that the document does not name, no answer or event that
breaks its schema. tests/e2e/openapi_hooks.py states what schemas cannot.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.test_tiny import TEMPLATE
from tests.grammar import vocabulary
from tests.limits import HANG

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
ENDLESS = ("--exclude-path", "/metrics/stream")
GENERATORS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
}
CONTEXT = 512


@pytest.fixture
def roomy(repository: Path, tmp_path: Path) -> Path:
    """A tiny checkpoint whose context has room for a conversation."""
    directory = tmp_path / "tiny"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": CONTEXT})
    )
    vocabulary.write_tokenizer(directory, {"chat_template": TEMPLATE})
    return directory


@pytest.mark.parametrize(
    "examples", [4, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_the_document_holds(serve: Serve, roomy: Path, repository: Path, examples: int) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.is_file():
        pytest.skip("schemathesis is not installed: run `make test-tools`")
    flags = ("--served-model-name", "tiny", "--admin-api-key", "admin", "--access-log")
    with serve(*flags, model=roomy) as server:
        run = (f"{server.url}/openapi.json", "--max-examples", str(examples), "--seed", "1")
        options = ("--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--warnings=off")
        done = subprocess.run(
            [program, "run", *run, *options, *ENDLESS, "--request-timeout", str(HANG)],
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "tests.e2e.openapi_hooks",
                "PYTHONPATH": str(repository),
            },
            cwd=roomy,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    answers = re.findall(r"POST (\S+) 200,", server.text())
    print(done.stdout[-400:], dict(Counter(answers)))
    assert set(answers) >= GENERATORS, "requests that never get past the checks prove little"
