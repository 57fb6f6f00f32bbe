"""The references of the kernels against plain loops and functions of torch."""

import itertools
import math
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.gpu import cases  # noqa: E402
from penstock.backends.torch import kernels  # noqa: E402
from penstock.backends.torch.kernels.attention import attend_reference  # noqa: E402
from penstock.backends.torch.kernels.experts import experts_grouped, groups  # noqa: E402
from penstock.backends.torch.kernels.matrix import pack_words  # noqa: E402
from penstock.backends.torch.kernels.rotation import rotated  # noqa: E402
from penstock.backends.torch.kernels.sample import philox  # noqa: E402

functional = torch.nn.functional


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_rms_norm_is_that_of_torch() -> None:
    x, residual, weight = torch.randn(5, 24), torch.randn(5, 24), torch.randn(24)
    normed, total = kernels.rms_norm(x, weight, 1e-5, residual=residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, functional.rms_norm(x + residual, [24], weight, 1e-5))


def test_rotation_turns_complex_numbers() -> None:
    x, positions = torch.randn(3, 2, 10), torch.tensor([0, 7, 2])
    angles = torch.rand(8, 4) * 6
    turned = rotated(x, positions, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:8]) * torch.exp(1j * angles[positions])[:, None]
    torch.testing.assert_close(turned[..., :4], pairs.real)
    torch.testing.assert_close(turned[..., 4:8], pairs.imag)
    assert torch.equal(turned[..., 8:], x[..., 8:])


@pytest.mark.parametrize("after", [False, True])
def test_heads_are_normed_rotated_and_stored(after: bool) -> None:
    hq, hk, d, dv = 4, 2, 8, 6
    qkv, bias = torch.randn(3, (hq + hk) * d + hk * dv), torch.randn((hq + hk) * d + hk * dv)
    norms, angles, factors = torch.randn(2, d), torch.rand(9, d // 2), torch.rand(3)
    cos, sin, positions = angles.cos(), angles.sin(), torch.tensor([1, 8, 5])
    pool_k, pool_v = torch.full((4, hk, 4, d), math.nan), torch.full((4, hk, 4, dv), math.nan)
    heads = kernels.Heads(hq, hk, d, norms[0], norms[1], 1e-6, after, bias)
    slots = torch.tensor([6, -1, 13], dtype=torch.int32)
    queries = kernels.rotate_and_store(
        qkv, heads, positions, cos, sin, slots, pool_k, pool_v, factors
    )

    def head(row: int, first: int, norm: torch.Tensor) -> torch.Tensor:
        x = (qkv[row] + bias)[first : first + d].view(1, 1, d)
        at = positions[row : row + 1]
        if after:
            x = rotated(x, at, cos, sin)
            return functional.rms_norm(x, [d], norm, 1e-6).flatten()
        return rotated(functional.rms_norm(x, [d], norm, 1e-6), at, cos, sin).flatten()

    for row in range(3):
        for h in range(hq):
            torch.testing.assert_close(
                queries[row, h], head(row, h * d, norms[0]) * factors[row], rtol=1e-4, atol=1e-5
            )
    for row, (block, offset) in ((0, (1, 2)), (2, (3, 1))):
        for h in range(hk):
            key = head(row, (hq + h) * d, norms[1])
            torch.testing.assert_close(pool_k[block, h, offset], key, rtol=1e-4, atol=1e-5)
            first = (hq + hk) * d + h * dv
            torch.testing.assert_close(
                pool_v[block, h, offset], (qkv[row] + bias)[first : first + dv]
            )
    assert int(pool_k.isnan().all(-1).sum()) == 4 * hk * 4 - 2 * hk


def test_latents_are_normed_rotated_and_stored() -> None:
    latents, weight, angles = torch.randn(3, 12), torch.randn(8), torch.rand(5, 2)
    positions, slots = torch.tensor([4, 0, 2]), torch.tensor([5, 2, -1])
    pool = torch.full((3, 4, 12), math.nan)
    kernels.store_latent(latents, weight, 1e-6, positions, angles.cos(), angles.sin(), slots, pool)
    want = functional.rms_norm(latents[0, :8], [8], weight, 1e-6)
    torch.testing.assert_close(pool[1, 1, :8], want)
    want = rotated(latents[:1, None, 8:], positions[:1], angles.cos(), angles.sin()).flatten()
    torch.testing.assert_close(pool[1, 1, 8:], want)
    assert int(pool.isnan().all(-1).sum()) == 3 * 4 - 2


def plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: int, scoring: kernels.Scoring
) -> torch.Tensor:
    """One row, head by head and token by token, in f64."""
    out = torch.zeros(q.shape[0], v.shape[-1], dtype=torch.float64)
    for h in range(q.shape[0]):
        kv = h // (q.shape[0] // k.shape[1])
        tokens = list(range(at + 1))
        if scoring.window:
            tokens = tokens[-scoring.window :]
        if scoring.chunk:
            tokens = [t for t in tokens if t // scoring.chunk == at // scoring.chunk]
        scores = [float(q[h].double() @ k[t, kv].double()) * scoring.scale for t in tokens]
        if scoring.softcap:
            scores = [scoring.softcap * math.tanh(s / scoring.softcap) for s in scores]
        total = sum(math.exp(s) for s in scores)
        if scoring.sinks is not None:
            total += math.exp(float(scoring.sinks[h]))
        for s, t in zip(scores, tokens, strict=True):
            out[h] += math.exp(s) / total * v[t, kv].double()
    return out.float()


@pytest.mark.parametrize(
    "rule",
    [{}, {"window": 3}, {"window": 1}, {"chunk": 4}, {"softcap": 0.7}, {"sinks": True}],
    ids=str,
)
def test_attention_over_a_shuffled_pool(rule: dict[str, float]) -> None:
    hq, hk, d, dv, tokens, lengths = 6, 2, 8, 4, 4, [1, 4, 11]
    sinks = torch.randn(hq) if rule.pop("sinks", False) else None
    scoring = kernels.Scoring(0.3, sinks=sinks, **rule)
    k, v = torch.full((9, hk, tokens, d), math.nan), torch.full((9, hk, tokens, dv), math.nan)
    tables, free = torch.full((3, 4), 99), iter(torch.randperm(9).tolist())
    keys, values = (
        [torch.randn(n, hk, d) for n in lengths],
        [torch.randn(n, hk, dv) for n in lengths],
    )
    for s, n in enumerate(lengths):
        for t in range(n):
            if t % tokens == 0:
                tables[s, t // tokens] = next(free)
            k[tables[s, t // tokens], :, t % tokens] = keys[s][t]
            v[tables[s, t // tokens], :, t % tokens] = values[s][t]
    rows = [(s, at) for s, n in enumerate(lengths) for at in range(n)]
    q = torch.randn(len(rows), hq, d)
    want = torch.stack(
        [plain_attention(q[i], keys[s], values[s], at, scoring) for i, (s, at) in enumerate(rows)]
    )
    starts, offsets = torch.tensor([0, 0, 0]), torch.tensor([0, 1, 5, 16])
    spans = kernels.Spans(offsets)
    got = kernels.attend_prefill(q, k, v, tables, starts, spans, scoring, max_rows=11)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    last = torch.tensor([0, 4, 15])
    got = kernels.attend_decode(q[last], k, v, tables, torch.tensor(lengths), scoring)
    torch.testing.assert_close(got, want[last], rtol=1e-4, atol=1e-5)
    # Half of the last sequence in a chunk of its own.
    spans = kernels.Spans(torch.tensor([0, 6]))
    got = kernels.attend_prefill(
        q[10:], k, v, tables[2:], torch.tensor([5]), spans, scoring, max_rows=6
    )
    torch.testing.assert_close(got, want[10:], rtol=1e-4, atol=1e-5)


def test_a_row_of_no_length_attends_to_nothing() -> None:
    q, pool = torch.randn(1, 2, 4), torch.randn(1, 1, 4, 4)
    tables = torch.zeros(1, 1, dtype=torch.int32)
    got = kernels.attend_decode(q, pool, pool, tables, torch.tensor([0]), kernels.Scoring(1.0))
    assert torch.equal(got, torch.zeros(1, 2, 4))


def test_attention_is_that_of_torch() -> None:
    q, k, v = torch.randn(7, 4, 8), torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 8)
    got = attend_reference(
        q,
        k,
        v,
        torch.tensor([[1, 0]]),
        torch.arange(7),
        torch.zeros(7, dtype=torch.int32),
        kernels.Scoring(8**-0.5),
    )
    keys, values = (x[[1, 0]].transpose(0, 1).flatten(1, 2)[:, :7] for x in (k, v))
    want = functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(got, want.transpose(0, 1))


def test_latent_attention_is_that_of_one_head() -> None:
    q, pool = torch.randn(5, 3, 12), torch.randn(4, 2, 12)
    tables = torch.tensor([[2, 0], [1, 3]])
    positions, sequences = torch.tensor([0, 2, 3, 0, 1]), torch.tensor([0, 0, 0, 1, 1])
    got = kernels.attend_latent(q, pool, tables, positions, sequences, value_width=8, scale=0.2)
    for i in range(5):
        keys = pool[tables[sequences[i]]].flatten(0, 1)[:, None]
        at = int(positions[i])
        want = plain_attention(q[i], keys, keys[..., :8], at, kernels.Scoring(0.2))
        torch.testing.assert_close(got[i], want, rtol=1e-4, atol=1e-5)


def test_activations() -> None:
    x = torch.randn(4, 10) * 4
    gate, up = x[:, :5], x[:, 5:]
    silu = kernels.activate(x, kernels.Activation("silu"))
    torch.testing.assert_close(silu, gate / (1 + torch.exp(-gate)) * up)
    gelu = kernels.activate(x, kernels.Activation("gelu"))
    torch.testing.assert_close(gelu, gate * torch.special.ndtr(gate) * up)
    tanh = kernels.activate(x, kernels.Activation("gelu_tanh"))
    inner = 0.7978845608 * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(tanh, 0.5 * gate * (1 + inner.tanh()) * up)
    clamped = kernels.activate(x, kernels.Activation("clamped", 2.0, 1.7, 1.0))
    for row in range(4):
        for i in range(5):
            g, u = min(float(gate[row, i]), 2.0), max(-2.0, min(2.0, float(up[row, i])))
            want = (u + 1) * g / (1 + math.exp(-1.7 * g))
            assert math.isclose(float(clamped[row, i]), want, rel_tol=1e-5, abs_tol=1e-6)


def plain_route(
    logits: list[float], rule: kernels.Rule, k: int, correction: list[float]
) -> dict[int, float]:
    """Experts and weights of one row."""

    def score(numbers: list[float]) -> list[float]:
        if rule.score == "softmax":
            total = sum(math.exp(n) for n in numbers)
            return [math.exp(n) / total for n in numbers]
        return [1 / (1 + math.exp(-n)) for n in numbers] if rule.score == "sigmoid" else numbers

    scores = logits if rule.after_choice else score(logits)
    choice = [s + c for s, c in zip(scores, correction, strict=True)]
    if rule.groups:
        size = len(choice) // rule.groups
        parts = [sorted(choice[g * size :][:size])[::-1] for g in range(rule.groups)]
        order = sorted(range(rule.groups), key=lambda g: -sum(parts[g][: rule.best]))
        for g in order[rule.keep :]:
            choice[g * size : (g + 1) * size] = [-math.inf] * size
    chosen = sorted(range(len(choice)), key=lambda e: -choice[e])[:k]
    weights = [scores[e] for e in chosen]
    weights = score(weights) if rule.after_choice else weights
    divisor = 1.0 if rule.epsilon is None else sum(weights) + rule.epsilon
    return {e: w / divisor * rule.scale for e, w in zip(chosen, weights, strict=True)}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        kernels.Rule("softmax"),
        kernels.Rule("softmax", epsilon=0.0),
        kernels.Rule("softmax", after_choice=True),
        kernels.Rule("sigmoid", after_choice=True),
        kernels.Rule("sigmoid", groups=4, keep=2, best=2, epsilon=1e-20, scale=2.5),
        kernels.Rule("softmax", groups=4, keep=3, scale=16.0),
    ],
    ids=str,
)
def test_routing(rule: kernels.Rule, corrected: bool) -> None:
    logits, correction = torch.randn(9, 16), torch.randn(16) * 0.2 * corrected
    indices, weights = kernels.route(logits, rule, 3, correction if corrected else None)
    assert indices.dtype == torch.int32
    for row in range(9):
        want = plain_route(logits[row].tolist(), rule, 3, correction.tolist())
        assert indices[row].tolist() == list(want)
        assert weights[row].tolist() == pytest.approx(list(want.values()), rel=1e-5)


def test_equal_choices_go_to_the_lower_expert() -> None:
    indices, _ = kernels.route(torch.zeros(2, 40), kernels.Rule("softmax"), 3)
    assert indices.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_rows_in_the_order_of_experts() -> None:
    indices = torch.tensor([[2, 0], [2, 3], [0, 2]], dtype=torch.int32)
    order, ends, inverse = kernels.sort_by_expert(indices, 5)
    assert order[inverse.long()].tolist() == list(range(6))
    assert order.tolist() == [1, 4, 0, 2, 5, 3]
    assert ends.tolist() == [2, 2, 5, 6, 6]


def quantised(form: str, experts: int, rows: int, columns: int) -> kernels.Matrix:
    if form == "plain":
        return kernels.Matrix(torch.randn(experts, rows, columns))
    if form == "fp8_block":
        codes = torch.randn(experts, rows, columns).to(torch.float8_e4m3fn)
        scales = torch.rand(experts, -(-rows // 128), -(-columns // 128))
        return kernels.Matrix(codes.view(torch.uint8), scales, form=form)
    codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
    scales = torch.randint(122, 130, (experts, rows, columns // 32), dtype=torch.uint8)
    return kernels.Matrix(codes, scales, form=form)


def test_fp8_blocks_have_their_scales() -> None:
    matrix = quantised("fp8_block", 1, 130, 140)
    dense, codes = matrix.dense(), matrix.codes.view(torch.float8_e4m3fn).float()
    assert matrix.scales is not None
    for i, j in ((0, 0), (127, 128), (128, 127), (129, 139)):
        assert dense[0, i, j] == codes[0, i, j] * matrix.scales[0, i // 128, j // 128]


def test_mxfp4_codes_have_their_exponents() -> None:
    pairs = torch.randint(0, 256, (1, 3, 32), dtype=torch.uint8)
    scales = torch.randint(122, 130, (1, 3, 2), dtype=torch.uint8)
    dense = kernels.Matrix(pack_words(pairs), scales, form="mxfp4").dense()
    numbers = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for i in range(3):
        for j in range(64):
            code = int(pairs[0, i, j // 2]) >> 4 * (j % 2) & 15
            sign = -1 if code & 8 else 1
            scale = 2.0 ** (int(scales[0, i, j // 32]) - 127)
            assert float(dense[0, i, j]) == sign * numbers[code & 7] * scale


def test_a_word_of_mxfp4_has_two_neighbours_and_those_eight_inputs_on() -> None:
    """Each code is the number of its input, as far as four bits tell."""
    inputs = torch.arange(32)
    pairs = (inputs[::2] % 16 | inputs[1::2] % 16 << 4).to(torch.uint8)
    words = pack_words(pairs).view(torch.int32).tolist()
    for t, word in enumerate(words):
        for half in range(2):
            for q in range(4):
                assert (word >> 16 * half + 4 * q & 15) == (8 * q + 2 * t + half) % 16


def test_places_of_experts_elsewhere_come_last() -> None:
    indices = torch.tensor([[3, 0], [1, 3], [0, 2]], dtype=torch.int32)
    order, ends, _ = kernels.sort_by_expert(indices, 3)
    assert order.tolist() == [1, 4, 2, 5, 0, 3]
    assert ends.tolist() == [2, 3, 4]


@pytest.mark.parametrize("form", ["plain", "fp8_block", "mxfp4"])
@pytest.mark.parametrize("on_input", [False, True])
def test_experts_are_summed_by_weight(form: str, on_input: bool) -> None:
    gate_up, down = quantised(form, 4, 64, 32), quantised(form, 4, 32, 32)
    biases = torch.randn(4, 64), torch.randn(4, 32)
    gate_up = kernels.Matrix(gate_up.codes, gate_up.scales, biases[0], gate_up.form)
    down = kernels.Matrix(down.codes, down.scales, biases[1], down.form)
    x, weights = torch.randn(5, 32) * 0.1, torch.rand(5, 2)
    indices = torch.tensor([[0, 3], [3, 0], [2, 0], [0, 2], [3, 2]], dtype=torch.int32)
    activation = kernels.Activation("silu")
    got = kernels.experts(x, indices, weights, gate_up, down, activation, weight_on_input=on_input)
    for row in range(5):
        want = torch.zeros(32)
        for e, w in zip(indices[row].tolist(), weights[row], strict=True):
            inner = gate_up.dense()[e] @ (x[row] * w if on_input else x[row]) + biases[0][e]
            inner = functional.silu(inner[:32]) * inner[32:]
            out = down.dense()[e] @ inner + biases[1][e]
            want += out if on_input else out * w
        torch.testing.assert_close(got[row], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_torchs_grouped_product_computes_the_same(
    dtype: torch.dtype, on_input: bool, bias: bool, elsewhere: bool
) -> None:
    """Some experts have no rows."""
    make, more = cases.Maker(dtype), {"bias": bias, "on_input": on_input, "elsewhere": elsewhere}
    for rows, experts in ((1, 5), (19, 4), (33, 40)):
        case = cases.mixtures(make, "plain", rows, 3, experts, 64, 48, grouped=True, **more)
        assert case.launch is experts_grouped
        assert cases.error(case, dtype) < cases.TOLERANCE[dtype]


def test_experts_elsewhere_cost_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not computed holds numbers of before, of which none may be seen."""
    product, ends = functional.grouped_mm, []

    def counted(x: torch.Tensor, matrices: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        ends.append((int(offs[-1]), len(x)))
        out = product(x, matrices, offs=offs)
        out[int(offs[-1]) :] = math.nan
        return out

    monkeypatch.setattr(functional, "grouped_mm", counted)
    make = cases.Maker(torch.float32)
    case = cases.mixtures(make, "plain", 40, 2, 4, 32, 16, bias=True, elsewhere=True, grouped=True)
    here = int((case.args[1] < 4).sum())
    assert cases.error(case, torch.float32) < 2e-5
    assert 0 < here < 80
    assert ends == [(here, 80)] * 2


def test_the_grouped_product_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    make = cases.Maker(torch.bfloat16)

    def taken(hidden: int, width: int, capability: tuple[int, int] = (9, 0)) -> bool:
        x, gate_up, down = make.numbers(2, hidden), (2 * width, hidden), (hidden, width)
        matrices = [cases.matrix(make, "plain", 3, *shape, bias=False) for shape in (gate_up, down)]
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        return groups(x, *matrices)

    assert taken(64, 48)
    assert taken(64, 48, (10, 3))
    assert not taken(64, 48, (8, 9))
    # Workstations of Blackwell.
    assert not taken(64, 48, (12, 0))
    # Rows of 60 and 36 numbers do not begin at multiples of 16 bytes.
    assert not taken(60, 48)
    assert not taken(64, 36)


def test_philox_has_the_published_vectors() -> None:
    """Known answers of the Random123 distribution (philox4x32, 10 rounds)."""
    ones = 0xFFFF_FFFF
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    want = (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox((ones,) * 4, (ones, ones)) == want


def draws(logits: torch.Tensor, count: int, **rules: float) -> torch.Tensor:
    """Shares of the tokens drawn for one row at different positions."""
    rows = logits.expand(count, -1)

    def column(name: str, default: float, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((count,), rules.get(name, default), dtype=kind)

    parameters = (
        column("temperature", 1.0),
        column("top_k", 0, torch.int32),
        column("top_p", 1.0),
        column("min_p", 0.0),
        torch.full((count,), -3, dtype=torch.int64),
        torch.zeros(count, dtype=torch.int32),
    )
    positions = torch.arange(count, dtype=torch.int32)
    tokens = kernels.sample(rows, parameters, positions, positions)
    return torch.bincount(tokens, minlength=len(logits)) / count


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.3},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.05, "temperature": 1.3},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(rules: dict[str, float]) -> None:
    logits = torch.tensor([0.3, -1.0, 1.1, 0.2, -math.inf, 2.0, 0.9, -0.5])
    weights = torch.softmax(logits.double() / rules.get("temperature", 1.0), 0)
    order = weights.argsort(descending=True).tolist()[: int(rules.get("top_k", 0)) or None]
    order = [i for i in order if weights[i] >= rules.get("min_p", 0.0) * weights.max()]
    kept, total = torch.zeros(8, dtype=torch.float64), float(weights[order].sum())
    for i in order:
        if float(kept.sum()) < rules.get("top_p", 1.0) * total:
            kept[i] = weights[i]
    got = draws(logits, 3000, **rules)
    torch.testing.assert_close(got.double(), kept / kept.sum(), rtol=0.0, atol=0.03)


def test_a_temperature_of_zero_takes_the_first_of_the_most_likely() -> None:
    logits = torch.tensor([0.0, 2.0, math.nan, 2.0])
    assert draws(logits, 3, temperature=0.0).tolist() == [0, 1, 0, 0]
    assert draws(logits, 3, top_k=1).tolist() == [0, 1, 0, 0]
    assert draws(logits, 3, temperature=1e-45).tolist() == [0, 1, 0, 0]
    assert float(draws(torch.full((4,), math.nan), 3).sum()) == 1


@pytest.mark.parametrize("sizes", [(8,), (0,), (64, 8, 0, 24), (4096, 16)])
def test_checksums_are_joined_in_order(sizes: tuple[int, ...]) -> None:
    """CRC-64/NVME bit by bit."""
    memories = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    crc = (1 << 64) - 1
    for byte in b"".join(bytes(memory.tolist()) for memory in memories):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    assert kernels.crc64(memories) == crc ^ (1 << 64) - 1


@pytest.mark.parametrize("seed", range(20))
def test_each_row_of_a_chunk_is_in_one_tile(seed: int) -> None:
    drawn = random.Random(seed)
    singles, size = drawn.randrange(4), drawn.choice([1, 4, 16, 64])
    counts = [1] * singles + [drawn.randrange(2, 90) for _ in range(drawn.randrange(4))] + [0, 0]
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    spans = kernels.Spans(offsets, torch.tensor([singles], dtype=torch.int32))
    # Rows of padding, which are of no sequence.
    table = spans.tiles(size, sum(counts) + drawn.randrange(20))
    assert table.dtype == torch.int32
    found = [(of, tile) for of, tile in table.T.tolist() if of >= 0]
    wanted = [
        (of, tile)
        for of in range(singles, len(counts))
        for tile in reversed(range(-(-counts[of] // size)))
    ]
    assert found == wanted
    assert spans.tiles(size, sum(counts)) is table, "found again"
