"""What the Rust extension offers to Python (`crates/native`)."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Generic, Literal, TypeVar, overload

from penstock.core import StepPlan, StepResult
from penstock.core.transfer import Transfer, TransferResult
from penstock.engine.frontend import EngineFrame, FrontFrame

__version__: str
HEAD_ROWS: int
"""Rows for which the output head is computed at once."""
KV_PAYLOAD_AT: int
"""Offset of the payload in a file of a disk tier."""

class PrivateDirectory:
    """A new directory in `parent` for this user and process alone. Directories there whose
    processes were killed are removed first. It goes with the object, if nothing is in it.
    """

    def __init__(self, parent: str | PathLike[str]) -> None:
        """OSError where there can be none."""

    @property
    def path(self) -> Path: ...

class StepFuture:
    def result(self, timeout: float | None = None) -> StepResult: ...

class ReadCount:
    total: int
    read: int
    def __init__(self) -> None: ...

class Decoder:
    numerics: str
    isa: str
    threads: int
    fingerprint: bytes
    weights_bytes: int
    experts_read: int
    stages: list[tuple[str, float, str]]
    def __init__(
        self,
        spec_json: str,
        weights_json: str,
        paths: list[str],
        options_json: str,
        rank: tuple[str, str] | None = None,
        count: ReadCount | None = None,
    ) -> None: ...
    def kv_spec(self) -> tuple[int, list[tuple[list[int], int, int | None, bool]]]: ...
    def allocate(self, blocks: Sequence[int]) -> None: ...
    def submit(self, plan: StepPlan) -> StepFuture: ...
    def put(self, carried: bytes) -> None: ...
    def fetch(self, timeout: float) -> bytes: ...

class KvMover:
    """Copies KV between the blocks of a rank's pools and its tiers. May outlive the decoder.

    The options are an object of `cache` (the cache identity, 64 hex digits), `ram_slots` (entries
    of the RAM tier, 0 without one), `tiers` (the others, in the order of `Transfer.tier` from 1),
    and optionally `chunk_tokens`. A tier is
    `{"kind": "disk", "path", "limit_bytes", "daily_write_bytes"}`,
    `{"kind": "redis", "url", "ttl_s"}` or `{"kind": "object", "url", "options"}`.
    """

    def __init__(self, decoder: Decoder, options_json: str) -> None:
        """Opens the tiers. ValueError names the one that cannot be opened, and the remedy."""

    @staticmethod
    def over(pools: Sequence[tuple[object, int]], options_json: str, /) -> KvMover:
        """A mover over memory of the host: for each KV group a buffer of bytes that may be written,
        and its number of blocks. The mover keeps the buffers until no transfer has a block of them.
        Until a transfer is answered, nothing else may write to its blocks, nor read those of a
        load.

        The options have two more members that are the decoder's otherwise: `heads` and `layers` of
        this rank, and `identity` in place of `cache` (docs/kv-format.md).
        """

    def submit(self, transfer: Transfer) -> None:
        """Never blocks. Blocks of the transfer are leased until it is answered."""

    def take(self, timeout: float = 0.0) -> list[TransferResult]:
        """Answers since the last call; waits at most `timeout` seconds for the first."""

    def load_by(
        self,
        tier: int,
        part: tuple[bytes, int, int, tuple[int, int]],
        size: int,
        take: Callable[[int], int],
        /,
    ) -> None:
        """Load a part of a disk tier (its digest, blocks, head and layers) without the queue:
        `take(descriptor)` reads `size` bytes from KV_PAYLOAD_AT of a file, and returns their
        CRC-64/NVME. Errors are `PartsError`s of `penstock.kv.gds`, with that of `take` as their
        cause.
        """

    def report(self) -> str:
        """Statistics of the tiers since the start, as JSON."""

    def close(self, seconds: float) -> None:
        """Finishes stores in flight, within `seconds`; the others are answered as not done."""

def kv_inventory(path: str, /) -> str:
    """Content of a disk tier as JSON (crates/kv/kvstore, `disk::admin`). ValueError: the reason."""

def kv_verify(path: str, put_aside: bool, watch: Callable[[int, int], None], /) -> str:
    """Reads every file; damaged ones as JSON (`Verified`). `watch` gets bytes done and in all."""

def kv_collect(
    path: str,
    limit_bytes: int | None,
    older_than_s: int | None,
    store: str | None,
    watch: Callable[[int, int], None],
    /,
) -> str:
    """Evicts; removed chunks as JSON (`Collected`). `watch` gets chunks done and in all."""

def create_group(path: str, ranks: int, capacity: int) -> None: ...
def create_ring(path: str, readers: int, slots: int, capacity: int) -> None: ...

class AbortHandle:
    def __init__(self, path: str) -> None: ...
    def end(self, reason: str) -> None: ...

class RingWriter:
    def __init__(
        self, path: str, readers: int, slots: int, capacity: int, patience: float
    ) -> None: ...
    def send(self, message: bytes) -> None: ...

class RingReader:
    def __init__(self, path: str, reader: int, readers: int, slots: int, capacity: int) -> None: ...
    def receive(self, timeout: float) -> bytes | None: ...
    def ready(self) -> bool: ...

class StreamListener:
    address: str
    def __init__(self, address: str, key: bytes) -> None: ...
    def accept(self, timeout: float) -> Stream: ...
    def accept_within(self, wait: float, patience: float) -> Stream | None: ...
    def turned_away(self) -> str | None: ...

class Stream:
    @staticmethod
    def connect(address: str, key: bytes, patience: float) -> Stream: ...
    def send(self, message: bytes) -> None: ...
    def receive(self, timeout: float, limit: int) -> bytes | None: ...
    def beat(self, interval: float) -> None:
        """Send empty messages from a thread that does not need the interpreter."""
    def end(self) -> None: ...

class Star:
    def __init__(
        self, address: str, key: bytes, rank: int, ranks: int, capacity: int, patience: float
    ) -> None: ...
    def gather(self, part: bytes) -> list[bytes] | None:
        """The parts of ranks 1, 2, ... on rank 0."""
    def share(self, message: bytes) -> bytes | None:
        """The message of rank 0, elsewhere."""

class Tokenizer:
    vocab_size: int
    def __init__(self, path: str, chat_template: str | None = None) -> None: ...
    def encode(self, text: str, add_special: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...
    def output_text(self, ids: Sequence[int], skip_special: bool) -> str:
        """As `decode`, without a character at the end that is cut."""

    def render_chat(
        self,
        messages_json: str,
        add_generation_prompt: bool,
        tools_json: str = "null",
        kwargs_json: str = "{}",
        continue_final_message: bool = False,
    ) -> str:
        """The prompt text, by the chat template. ValueError: what is wrong with the messages, or
        what the template raised.
        """

    def with_chat_template(self, source: str) -> Tokenizer:
        """The same tokenizer with another chat template. ValueError: a template's fault."""
    def grammar(self, kind: str, text: str) -> Grammar:
        """What an output must match; `json`, `regex`, `choice`, `grammar` or `structural_tag`.
        ValueError says what is wrong with it.
        """

class Grammar:
    encoded: bytes
    """For `core.Request`."""
    def follow(self, ids: Sequence[int]) -> tuple[int, bool, list[float]]:
        """How many of the tokens may follow one another, whether those are a whole output, and the
        seconds that each mask took.
        """

class GrammarMasks:
    """Token masks of the grammars of sequences, computed on threads of their own.

    Beside so many threads that compute; `path` is the checkpoint, which has the tokenizer.
    """

    def __init__(self, path: str, threads: int) -> None: ...
    def start(self, grammar: bytes, ends: list[int], output: list[int]) -> SequenceMasks:
        """A sequence with an encoded grammar whose output is known already, and the tokens that may
        end it. ValueError where the bytes are no grammar.
        """

    def take_cost(self) -> tuple[int, float, float]:
        """Masks since the last call: their number, seconds to compute them, and of waiting."""

class SequenceMasks:
    def accept(self, tokens: list[int]) -> None:
        """Takes in tokens of the output; the masks are those of the row after."""

    def expect(self, drafts: list[int]) -> None:
        """Notes the drafts of the next step."""

    def mask(self, drafts: int, timeout: float) -> bytes | int | None:
        """The mask after so many drafts, a bit for each token from the lowest of the first byte on;
        None after a draft that the grammar forbids. LATE_MASK after `timeout` seconds, NO_TOKEN
        where the grammar cannot be followed.
        """

class KvEventPublisher:
    """Publishes KV events (docs/gateway.md) of one pool and its tiers, on a thread of its own.

    ValueError: no endpoint. RuntimeError: it cannot listen there.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str,
        buffer_steps: int,
        hwm: int,
    ) -> None: ...
    def ports(self) -> tuple[int, int | None]:
        """Ports of events and replay, where the system chose them."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        """The block `digest` of `tokens` behind `parent` is in the pool."""

    def removed(self, digest: bytes, /) -> None:
        """The block `digest` has left the pool."""

    def tier_stored(self, tier: int, kind: int, key: bytes, digests: Sequence[bytes], /) -> None:
        """The tier holds the chunk `key` of the blocks `digests`."""

    def tier_removed(self, tier: int, key: bytes, /) -> None:
        """The tier holds the chunk `key` no more, if it did."""

    def flush(self) -> None:
        """Publish the events since the last call. Never waits."""

class TierIndex:
    """Slots of the RAM tier by digests of 32 bytes, in the order of their prefix.

    `quota` is the share of the slots of one salt group, `pin_share` that of pinned blocks. Rules:
    `auto`, `lru`. Wrong arguments and calls out of turn are ValueError.
    """

    def __init__(
        self, slots: int, quota: float = 1.0, pin_share: float = 0.5, rule: str = "auto"
    ) -> None: ...
    def lookup(self, digests: Sequence[bytes], start: int = 0) -> list[int]:
        """Slots of the longest stored run from `start` on. Once for each request, with all its
        digests; the first `start` are those that the caller has elsewhere.
        """

    def peek(self, digests: Sequence[bytes]) -> int:
        """How many leading blocks are stored; not a use."""

    def admit(
        self, digests: Sequence[bytes], parent: bytes | None = None, awaited: bool = False
    ) -> list[int]:
        """A slot for each block; -1: refused, -2: stored already.

        `parent` is the block before the first, which stays as long as they do. `awaited` blocks
        pass the admission filter.
        """

    def commit(self, digests: Sequence[bytes]) -> None: ...
    def abandon(self, digests: Sequence[bytes]) -> None: ...
    def take_left(self) -> list[bytes]:
        """Blocks that were stored and are not any more, since the last `admit` began or the last
        call.
        """

    def hold(self, slots: Sequence[int]) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...
    def pin(self, digests: Sequence[bytes]) -> int:
        """Pins all blocks of a prefix, now or once they are stored; how many are."""

    def unpin(self, digests: Sequence[bytes]) -> None: ...
    def remove(self, digests: Sequence[bytes]) -> int: ...
    def clear(self, group: bytes | None = None) -> int: ...
    def stats(self) -> dict[str, int]:
        """`used`, `pinned`, `evictions`, `refused`, and whether it is `gated`."""

    def check(self) -> None:
        """AssertionError when the index contradicts itself. For tests."""

class LoadRun:
    def __init__(self, target: str) -> None: ...
    def add(self, requests: list[tuple[float, int, bytes]]) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def stop(self) -> None: ...
    def wait(self, seconds: float) -> bool: ...
    def progress(self) -> dict[str, int]: ...
    def take(self) -> dict[str, object]: ...

WIRE_VERSION: int
F = TypeVar("F")

class FrameReader(Generic[F]):
    """Cuts received bytes into frames: those of the front door, or of the engine."""

    @overload
    def __new__(cls, *, of_engine: Literal[False] = False) -> FrameReader[FrontFrame]: ...
    @overload
    def __new__(cls, *, of_engine: Literal[True]) -> FrameReader[EngineFrame]: ...
    def feed(self, data: bytes | memoryview, /, arrived: float = 0.0) -> list[F]:
        """The frames that `data` completes; a request has `arrived`. CodecError for bytes that are
        not a frame: the connection is then unusable.
        """

def run_template(job: str, /) -> str:
    """Result of a `crates/base/tokenizer` job, as JSON. ValueError if `job` is invalid."""

def try_grammar(job: str, /) -> str:
    """Result of compiling a `crates/base/structured-output` job. ValueError if `job` is invalid."""

def encode_frame(frame: EngineFrame | FrontFrame, /) -> bytes:
    """Bytes of a frame, its length in front. CodecError for values that the wire does not allow."""

def encode_plan(plan: StepPlan, /) -> bytes:
    """CodecError for columns that do not fit each other."""

def decode_plan(data: bytes, /) -> StepPlan:
    """CodecError unless `data` is one plan, whole and with nothing after it."""

def encode_result(result: StepResult, /) -> bytes: ...
def decode_result(data: bytes, /) -> StepResult:
    """CodecError unless `data` is one result, whole and with nothing after it."""

def plan_bytes(sequences: int, tokens: int, groups: int, added: int, length: int, /) -> int:
    """Bytes of the largest plan."""

def trimmed_vector(vector: bytes, dimensions: int | None, normalize: bool, /) -> bytes:
    """The first `dimensions` numbers of a vector (f32, little-endian), scaled to length 1 with
    `normalize`.
    """

def cosine(a: bytes, b: bytes, /) -> float:
    """The cosine of the angle between two vectors."""

def shortened_ids(
    ids: Sequence[int], bare: Sequence[int], most: int, keep_last: bool, /
) -> list[int]:
    """At most `most` of `ids`, which are those of a text, `bare`, and special tokens around it."""

def result_bytes(sequences: int, tokens: int, alternatives: int, vector: int, /) -> int:
    """Bytes of the largest result."""

def encode_transfer(transfer: Transfer, after: int, /) -> bytes:
    """Bytes of a transfer that ranks start after so many plans."""

def decode_transfer(data: bytes, /) -> tuple[Transfer, int]:
    """The transfer and the plans before it; CodecError unless it is one and nothing else."""

def encode_transfer_results(results: Iterable[TransferResult], capacity: int, /) -> list[bytes]:
    """Messages of results, each of at most `capacity` bytes or of one result."""

def decode_transfer_results(data: bytes, /) -> list[TransferResult]:
    """The results of one message."""

def transfer_bytes(blocks: int, /) -> int:
    """Bytes of the largest transfer over a pool of so many blocks."""

def encode_sampling(**fields: object) -> bytes:
    """Sampling parameters as opaque bytes, those of `SamplingParams` in `crates/base/wire`; greedy
    where nothing is given. CodecError names a value out of range.
    """

def decode_sampling(data: bytes, /) -> dict[str, object]:
    """All fields."""

def needs_history(data: bytes, /) -> bool:
    """Whether the sampler needs the tokens of a sequence with these encoded parameters."""

class PromptBudget:
    """Learns the cost of steps; bounds the prompt tokens beside decodes (`crates/base/pacing`)."""

    def observe(self, decodes: int, prompts: int, seconds: float) -> None:
        """A step of `decodes` and `prompts` tokens took `seconds`; 0 where nothing is measured."""

    def tokens(self, decodes: int, most: int) -> int:
        """Prompt tokens of a step with `decodes`, at most `most`; 0 where the step measures the
        decodes alone.
        """

def hash_chain(identity: bytes, parent: bytes | None, tokens: array[int], /) -> list[bytes]: ...
def hash_root(identity: bytes, adapter: bytes, salt: bytes, /) -> bytes: ...
def read_gguf_metadata(path: str) -> dict[str, object]: ...
def gateway(config_json: str, reread: Callable[[str], str] | None = None, /) -> int: ...
def gateway_complaint(config_json: str, /) -> str | None: ...

class KubernetesClient:
    """A client of one Kubernetes API server (`crates/gateway/kube`)."""

    def __init__(self, cluster: str) -> None:
        """`cluster`: JSON of `penstock.config.ClusterAccess.cluster`."""

    def request(
        self, method: str, target: str, content_type: str, body: bytes, /
    ) -> tuple[int, bytes]:
        """HTTP status and body. `target`: path and query. ConnectionError without a response in
        60 s, ValueError where the login fails.
        """

def front_door(config_json: str) -> int: ...
def fleet_replay(setup: str, progress: Callable[[int, int], object] | None) -> str: ...
def sim_replay(scenario: str) -> str: ...
def sim_serve(config_json: str) -> int: ...
def sim_wire(socket: str, config_json: str) -> int: ...
