"""A model of random weights through the torch backend itself, with plans made by hand.

The checkpoint is a sparse file of zeros that the backend loads as any other; the numbers are drawn
on the device after that, because zeros cost less power and time. Nothing here needs the compiled
extension: the one function of it that the backend calls has a stand-in.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from penstock.config import Raw, resolve
from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED
from penstock.model import load_model

from benchmarks.gpu.timing import Timing

if TYPE_CHECKING:
    from benchmarks.gpu.parts import Results

BLOCK = 64
GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "choice": 0,
    "logprobs": -1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "bias": [],
    "allowed": [],
    "banned": [],
    "suppressed": [],
    "suppressed_until": 0,
}


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    """Inner numbers of a feed-forward, or of an expert."""
    experts: int = 0
    chosen: int = 0
    tied: bool = False
    vocabulary: int = 151936
    d: int = 128

    def config(self, longest: int) -> dict[str, Any]:
        """As Hugging Face writes it."""
        made = {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else "Qwen3ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else "qwen3",
            "head_dim": self.d,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.width,
            "max_position_embeddings": longest,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocabulary,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        if self.experts:
            made |= {
                "moe_intermediate_size": self.width,
                "num_experts": self.experts,
                "num_experts_per_tok": self.chosen,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return made

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        h, d = self.hidden, self.d
        yield "model.embed_tokens.weight", (self.vocabulary, h)
        yield "model.norm.weight", (h,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, h)
        for layer in range(self.layers):
            base = f"model.layers.{layer}."
            yield f"{base}input_layernorm.weight", (h,)
            yield f"{base}post_attention_layernorm.weight", (h,)
            yield f"{base}self_attn.q_proj.weight", (self.heads * d, h)
            yield f"{base}self_attn.k_proj.weight", (self.kv_heads * d, h)
            yield f"{base}self_attn.v_proj.weight", (self.kv_heads * d, h)
            yield f"{base}self_attn.o_proj.weight", (h, self.heads * d)
            yield f"{base}self_attn.q_norm.weight", (d,)
            yield f"{base}self_attn.k_norm.weight", (d,)
            if self.experts:
                yield f"{base}mlp.gate.weight", (self.experts, h)
            for expert in range(self.experts) or [None]:
                own = base + ("mlp." if expert is None else f"mlp.experts.{expert}.")
                yield f"{own}gate_proj.weight", (self.width, h)
                yield f"{own}up_proj.weight", (self.width, h)
                yield f"{own}down_proj.weight", (h, self.width)

    @property
    def active(self) -> int:
        """Numbers of the matrices that a token meets, without embedding and head."""
        attention = 2 * (self.heads + self.kv_heads) * self.d * self.hidden
        return self.layers * (attention + 3 * self.hidden * self.width * (self.chosen or 1))


SHAPES = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 3072, tied=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 12288),
    "Qwen3-14B": Shape(40, 5120, 40, 8, 17408),
    "Qwen3-30B-A3B": Shape(48, 2048, 32, 4, 768, 128, 8),
}
TINY = Shape(2, 32, 4, 2, 64, vocabulary=256, d=32)
TINY_EXPERTS = Shape(2, 32, 4, 2, 64, 4, 2, vocabulary=256, d=32)


def write_checkpoint(directory: Path, shape: Shape, longest: int) -> None:
    """A directory as it is published; all numbers are zero and take no room."""
    (directory / "config.json").write_text(json.dumps(shape.config(longest)))
    header, at = {}, 0
    for name, size in shape.tensors():
        end = at + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [at, end]}
        at = end
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        file.truncate(8 + len(written) + at)


def stand_in() -> None:
    """Sampling parameters as JSON, in place of the extension's codec."""
    module = types.ModuleType("penstock._native")
    module.decode_sampling = json.loads  # type: ignore[attr-defined]
    sys.modules["penstock._native"] = module


def fill(value: object) -> None:
    """Draw the numbers of all matrices; norms have ones."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 1 and value.is_floating_point():
            value.normal_(0.0, 0.02)
        elif value.is_floating_point():
            value.fill_(1.0)
    elif isinstance(value, tuple):
        for item in value:
            fill(item)
    elif hasattr(value, "__dataclass_fields__") and type(value).__name__ != "Rotation":
        for name in value.__dataclass_fields__:
            fill(getattr(value, name))


@dataclass
class Request:
    """A request in a slot."""

    slot: int
    prompt: list[int]
    output: int
    blocks: list[int]
    computed: int = 0
    registered: bool = False

    @property
    def left(self) -> int:
        """Tokens that are still to be computed: the last one sampled is not."""
        return len(self.prompt) + self.output - 1 - self.computed


@dataclass
class Driver:
    """Plans of whole prompts and of decodes, two in flight."""

    backend: Any
    steps: int = 0
    flying: list[Any] = field(default_factory=list)

    def submit(self, parts: Sequence[tuple[Request, list[int]]]) -> None:
        self.steps += 1
        plan = StepPlan(self.steps)
        for own, tokens in parts:
            if not own.registered:
                plan.registrations.append(Registration(own.slot, json.dumps(GREEDY).encode()))
            plan.slots.append(own.slot)
            plan.starts.append(own.computed)
            plan.lengths.append(len(tokens))
            plan.sample.append(own.computed + len(tokens) >= len(own.prompt))
            plan.tokens.extend(tokens)
            plan.kept.append(len(own.blocks) if own.registered else 0)
            plan.added.extend([] if own.registered else own.blocks)
            plan.added_offsets.append(len(plan.added))
            own.computed += len(tokens)
            own.registered = True
        self.flying.append(self.backend.submit(plan))

    def results(self, left: int) -> list[int]:
        """Tokens of the oldest steps, until so many are in flight."""
        found: list[int] = []
        while len(self.flying) > left:
            found += self.flying.pop(0).result().tokens
        return found

    def prefill(self, sequences: Sequence[Request], budget: int) -> None:
        parts, used = [], 0
        for own in sequences:
            if used + len(own.prompt) > budget and parts:
                self.submit(parts)
                self.results(1)
                parts, used = [], 0
            parts.append((own, own.prompt))
            used += len(own.prompt)
        self.submit(parts)
        self.results(0)

    def decode(self, sequences: Sequence[Request]) -> list[int]:
        """To the end of all of them; the tokens in the order of the steps."""
        found: list[int] = []
        while running := [own for own in sequences if own.left > 0]:
            self.submit([(own, [LAST_SAMPLED]) for own in running])
            found += self.results(1)
        return found + self.results(0)


def requests(sizes: Sequence[tuple[int, int]], vocabulary: int) -> list[Request]:
    made, drawn, at = [], random.Random(1), 0
    for slot, (prompt, output) in enumerate(sizes):
        blocks = list(range(at, at + -(-(prompt + output) // BLOCK)))
        at += len(blocks)
        tokens = [drawn.randrange(vocabulary) for _ in range(prompt)]
        made.append(Request(slot, tokens, output, blocks))
    return made


def open_backend(directory: Path, dry: bool, budget: int) -> Any:
    from penstock.backends.torch import device as devices
    from penstock.backends.torch.backend import TorchBackend

    settings = {
        "dtype": "float32" if dry else "auto",
        "kv_cache_memory_bytes": "1GiB",
        "block_size": BLOCK,
        "max_num_batched_tokens": budget,
        "max_num_seqs": 4 if dry else 256,
    }
    raw = {name: Raw("benchmark", (str(value),)) for name, value in settings.items()}
    config = resolve(raw, str(directory), "random").engine
    device = devices.Cpu(1) if dry else devices.Cuda(0)
    return TorchBackend(config, load_model(directory), None, device)


def measure(results: Results, timing: Timing, name: str, ceilings: tuple[float, float]) -> None:
    """Start-up by phase, mini-sglang's offline workload, and a single stream."""
    stand_in()
    shape, dry = SHAPES[name], timing.dry
    if dry:
        shape = TINY_EXPERTS if shape.experts else TINY
    drawn, count = random.Random(0), 3 if dry else 256
    low, high = (4, 12) if dry else (100, 1024)
    sizes = [(drawn.randint(low, high), drawn.randint(low, high)) for _ in range(count)]
    longest, budget = 128 if dry else 4096, 128 if dry else 16384
    clock = time.perf_counter

    def phase(title: str, began: float) -> None:
        timing.wait()
        results.row("start-up", phase=title, seconds=clock() - began)

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write_checkpoint(directory, shape, longest)
        began = clock()
        torch.zeros(1, device=timing.device)
        phase("CUDA context", began)
        began = clock()
        backend = open_backend(directory, dry, budget)
        phase("weights loaded", began)
    weights = backend.facts.weights_bytes
    with torch.no_grad():
        fill(backend._weights)
    timing.wait()
    began = clock()
    blocks = sum(-(-(p + o) // BLOCK) for p, o in sizes)
    backend.allocate([max(blocks, 2)])
    phase("KV pool", began)
    driver = Driver(backend)
    began = clock()
    warm = requests([(budget // 4, 2)], shape.vocabulary)
    driver.prefill(warm, budget)
    phase("first prompt, kernels compiled", began)
    began = clock()
    driver.decode(warm)
    phase("first decode", began)
    _single(results, driver, shape, weights, dry, ceilings)
    _offline(results, driver, shape, sizes, weights, budget, ceilings)


def _single(
    results: Results,
    driver: Driver,
    shape: Shape,
    weights: int,
    dry: bool,
    ceilings: tuple[float, float],
) -> None:
    prompt, output = (8, 6) if dry else (128, 256)
    tokens: dict[bool, list[int]] = {}
    for graphs in (True, False):
        kept = getattr(driver.backend, "_graphs", None)
        if not graphs:
            driver.backend._graphs = None
        own = requests([(prompt, output)], shape.vocabulary)
        began = time.perf_counter()
        driver.prefill(own, prompt)
        first = time.perf_counter()
        tokens[graphs] = driver.decode(own)
        seconds = time.perf_counter() - first
        driver.backend._graphs = kept
        read = weights if shape.experts == 0 else 2 * shape.active
        ceiling = ceilings[0] / read if ceilings[0] else None
        results.row(
            "single stream",
            graphs=graphs and kept is not None,
            first_token_ms=(first - began) * 1e3,
            tokens_per_s=(output - 1) / seconds,
            ceiling=ceiling,
            of_ceiling=(output - 1) / seconds / ceiling if ceiling else None,
        )
    results.note("graphs draw the same tokens", tokens[True] == tokens[False])


def _offline(
    results: Results,
    driver: Driver,
    shape: Shape,
    sizes: Sequence[tuple[int, int]],
    weights: int,
    budget: int,
    ceilings: tuple[float, float],
) -> None:
    """256 requests at once, prompts and outputs of 100 to 1024 tokens. Once to capture the graphs,
    once measured.
    """
    for run in ("first", "second"):
        sequences = requests(sizes, shape.vocabulary)
        steps, began = driver.steps, time.perf_counter()
        driver.prefill(sequences, budget)
        middle = time.perf_counter()
        driver.decode(sequences)
        ended = time.perf_counter()
        ideal = _ideal(shape, sizes, weights, driver.steps - steps, ceilings)
        output = sum(n for _, n in sizes)
        results.row(
            "offline",
            run=run,
            prefill_s=middle - began,
            decode_s=ended - middle,
            output_tokens_per_s=output / (ended - began),
            ceiling=output / ideal if ideal else None,
            of_ceiling=ideal / (ended - began) if ideal else None,
        )


def _ideal(
    shape: Shape,
    sizes: Sequence[tuple[int, int]],
    weights: int,
    steps: int,
    ceilings: tuple[float, float],
) -> float:
    """Seconds of reading weights once a step and keys once a token, and of the prompts' products,
    at the measured ceilings.
    """
    bandwidth, rate = ceilings
    if not bandwidth or not rate:
        return 0.0
    each = 2 * 2 * shape.layers * shape.kv_heads * shape.d
    keys = sum(prompt * out + out * out // 2 for prompt, out in sizes) * each
    prompts = 2 * shape.active * sum(prompt for prompt, _ in sizes)
    return (steps * weights + keys) / bandwidth + prompts / rate
