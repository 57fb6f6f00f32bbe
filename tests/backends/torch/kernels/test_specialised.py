"""Numbers and addresses that differ from step to step compile no kernel again under load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from triton._C.libtriton import native_specialize_impl  # noqa: E402
from triton.backends.compiler import BaseBackend  # noqa: E402

from benchmarks.gpu import cases, routing_cases, skinny_cases, step_cases  # noqa: E402
from benchmarks.gpu.cases import Case, Maker  # noqa: E402
from penstock.backends.torch.kernels import Scoring, Spans  # noqa: E402


class Launches:
    """In place of a kernel: what Triton would look one up by."""

    def __init__(self, case: Case, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module = sys.modules[case.launch.__module__]
        self._params = getattr(module, kernel).params
        self.keys: list[object] = []
        monkeypatch.setattr(module, kernel, self)

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *args: Any, **constants: Any) -> None:
        given = zip(self._params, args, strict=False)
        found = [
            native_specialize_impl(BaseBackend, arg, False, not param.do_not_specialize, True)
            for param, arg in given
        ]
        self.keys.append((found, sorted(constants.items())))


def moved(x: Any) -> Any:
    """The same numbers where no multiple of 16 bytes is, as in the rest of a longer tensor."""
    if isinstance(x, Spans):
        return Spans(moved(x.offsets))
    out = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    assert out.data_ptr() % 16
    return out.copy_(x)


def call(case: Case, places: Sequence[int] = ()) -> None:
    args = [moved(arg) if at in places else arg for at, arg in enumerate(case.args)]
    case.launch(*args, **case.options, **case.launch_options)


MAKE = Maker(torch.float32)
SCORING = Scoring(0.2)
DRAWS = ("_scan", "_narrow", "_list", "_draw_rows")
INDICES: dict[str, tuple[Case, tuple[int, ...]]] = {
    "_attend_decode": (cases.decodes(MAKE, [5], 2, 1, 16, SCORING, splits=1), (3, 4)),
    "_attend_prefill": (cases.prefills(MAKE, [(0, 4)], 2, 1, 16, SCORING), (3, 4, 5)),
    "_attend_latent": (cases.latent_rows(MAKE, [(0, 4)], 2, 16, 8), (2, 3, 4)),
    "_rotate": (cases.heads(MAKE, 5, 2, 1, 16, rotary=16), (2, 5)),
    "_store_latent": (cases.latents(MAKE, 5, 16, 8), (3, 6)),
    # Positions are behind the slots of the rows in one copy: those of one row by 4 bytes.
    **{name: (step_cases.draws(MAKE, 3, 40), (2, 3)) for name in DRAWS},
    "_find_rows": (step_cases.rows(MAKE, [3, 2], 2, 16), (0, 1, 2, 3, 4)),
}


@pytest.mark.parametrize("kernel", INDICES)
def test_an_index_may_begin_anywhere(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, places = INDICES[kernel]
    for other in DRAWS if kernel in DRAWS else ():
        if other != kernel:
            Launches(case, other, monkeypatch)
    launches = Launches(case, kernel, monkeypatch)
    if kernel == "_attend_latent":
        monkeypatch.setattr(sys.modules[case.launch.__module__], "merge_splits", lambda *_: None)
    call(case)
    call(case, places)
    first, second = launches.keys
    assert first == second


def test_any_number_of_rows_is_sorted_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((1, 1), (1, 3), (16, 8), (130, 8))
    made = [routing_cases.sorts(MAKE, rows, k, 40) for rows, k in sizes]
    launches = Launches(made[0], "_sort", monkeypatch)
    for case in made:
        call(case)
    assert all(key == launches.keys[0] for key in launches.keys)


def test_up_to_eight_rows_are_multiplied_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [skinny_cases.products(MAKE, rows, 64, 64) for rows in (1, 3, 8)]
    launches = Launches(made[0], "_product", monkeypatch)
    for case in made:
        call(case)
    assert all(key == launches.keys[0] for key in launches.keys)


def test_any_number_of_rows_is_drawn_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [step_cases.draws(MAKE, rows, 400) for rows in (1, 3, 16)]
    kernels = [Launches(made[0], kernel, monkeypatch) for kernel in DRAWS]
    for case in made:
        call(case)
    for launches in kernels:
        assert all(key == launches.keys[0] for key in launches.keys)


def test_any_number_of_rows_is_summed_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts = [routing_cases.sorts(MAKE, rows, 3, 8) for rows in (1, 3, 16)]
    sums = [routing_cases.combines(MAKE, rows, 3, 16) for rows in (1, 3, 16)]
    Launches(sorts[0], "_sort", monkeypatch)
    launches = Launches(sums[0], "_combine", monkeypatch)
    for sort, case in zip(sorts, sums, strict=True):
        _, _, case.options["inverse"] = sort.launch(*sort.args)
        call(case)
    assert all(key == launches.keys[0] for key in launches.keys)


def test_checksums_of_all_memories_are_joined_by_one_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = cases.checksums(MAKE, 9000, 9000, 9000)
    Launches(case, "_segments", monkeypatch)
    launches = Launches(case, "_joined", monkeypatch)
    call(case)
    assert len(launches.keys) == 3
    assert all(key == launches.keys[0] for key in launches.keys)
