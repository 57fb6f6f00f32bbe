"""A grammar that compiles slowly on the rank: it holds up its own request only."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.test_tiny import write_tokenizer


def test_other_requests_go_on_while_a_grammar_compiles(
    serve: Serve, repository: Path, tmp_path: Path
) -> None:
    """The rank's tokenizer is a pipe: no grammar is compiled before it is written."""
    model = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", model)
    write_tokenizer(model)
    tokenizer = model / "tokenizer.json"
    text = tokenizer.read_text()
    wanted = {
        "prompt": "a",
        "max_tokens": 12,
        "guided_regex": "[0-9]{12}",
        "seed": 3,
        "temperature": 0.9,
    }
    with (
        serve("--dtype", "float32", model=model) as server,
        server.client() as client,
        ThreadPoolExecutor() as pool,
    ):
        tokenizer.unlink()
        os.mkfifo(tokenizer)
        slow = [pool.submit(sse.post, client, "/v1/completions", wanted) for _ in range(3)]
        for at in range(4):
            choice = sse.complete(
                client, [at + 1, 2, 3], 40, ignore_eos=True, return_token_ids=True
            )
            assert len(choice["token_ids"]) == 40
        assert not any(each.done() for each in slow)
        threading.Thread(target=tokenizer.write_text, args=(text,), daemon=True).start()
        texts = [each.result()["choices"][0]["text"] for each in slow]
        assert len(texts[0]) == 12
        assert texts[0].isdigit()
        again = sse.post(client, "/v1/completions", wanted)["choices"][0]["text"]
        assert texts == [again] * 3
