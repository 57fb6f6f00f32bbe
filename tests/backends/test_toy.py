"""docs/adding-a-backend.md, followed: the page's backend serves requests."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from benchmarks import modelled_gpu
from penstock import LLM, SamplingParams
from penstock.backends import BackendModule
from penstock.core import PenstockError
from tests.e2e.test_tiny import write_tokenizer

TOY = "tests.backends.toy"


@pytest.fixture
def model(repository: Path, tmp_path: Path) -> str:
    shutil.copytree(repository / "tests/fixtures/tiny/llama", tmp_path / "llama")
    write_tokenizer(tmp_path / "llama")
    return str(tmp_path / "llama")


@pytest.mark.parametrize("executor", ["inline", "mp"])
def test_a_model_that_counts_continues_prompts(
    model: str, executor: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    llm = LLM(model, device=TOY, distributed_executor_backend=executor)
    greedy = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)
    try:
        answers = llm.generate([[5, 6], [70]], greedy)
    finally:
        llm.close()
    assert [answer.outputs[0].token_ids for answer in answers] == [[7, 8, 9, 10], [71, 72, 73, 74]]


def test_a_backend_without_tiers_refuses_them(model: str) -> None:
    with pytest.raises(PenstockError, match="this backend has no tiers"):
        LLM(model, device=TOY, kv_tier=["ram:1MiB"])


def test_the_page_shows_this_backend(repository: Path) -> None:
    page = (repository / "docs/adding-a-backend.md").read_text()
    shown = (
        page.split("```python\n")[1]
        .split("```")[0]
        .replace("from __future__ import annotations\n\n", "")
    )
    source = (repository / "tests/backends/toy.py").read_text()
    assert shown.strip() in source


@pytest.mark.parametrize("load", [modelled_gpu.load_timed, modelled_gpu.load_untimed])
def test_backends_of_benchmarks_take_what_is_given(load: Callable[..., object]) -> None:
    given = list(inspect.signature(BackendModule.load).parameters)[1:]
    assert list(inspect.signature(load).parameters) == given
