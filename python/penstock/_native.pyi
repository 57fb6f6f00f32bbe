"""Types of the Rust extension (`crates/native`), as Python sees them."""

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
"""Maximum number of rows for which the native decoder computes the output head at once."""
KV_PAYLOAD_AT: int
"""Offset in bytes of the payload (after the header) in a file of a disk tier."""

class PrivateDirectory:
    """A new directory in `parent` that only this user may open, for this process. Such directories
    of processes that were killed are removed first. It is removed with the object, if it is empty.
    """

    def __init__(self, parent: str | PathLike[str]) -> None:
        """Raises OSError if it cannot be created."""

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
    """Copies KV between the blocks of a rank's pools and its tiers. May be used longer than the
    decoder.

    The options are a JSON object with `cache` (the cache identity, 64 hex digits), `ram_slots`
    (number of entries of the RAM tier, 0 without one), `tiers` (the other tiers, in the order of
    `Transfer.tier` from 1), and optionally `chunk_tokens`. A tier is `{"kind": "disk", "path",
    "limit_bytes", "daily_write_bytes"}`, `{"kind": "redis", "url", "ttl_s"}` or `{"kind": "object",
    "url", "options"}`.
    """

    def __init__(self, decoder: Decoder, options_json: str) -> None:
        """Opens the tiers. Raises ValueError, which names the tier that cannot be opened, and the
        remedy.
        """

    @staticmethod
    def over(pools: Sequence[tuple[object, int]], options_json: str, /) -> KvMover:
        """A mover over host memory that Python owns. `pools` has, for each KV group, a writable
        buffer of bytes and its number of blocks. The mover references a buffer as long as a
        transfer uses its blocks. Until a transfer is answered, nothing else may write to its
        blocks, or read them if it is a load.

        The options have members that otherwise come from the decoder: `heads` and `layers` of this
        rank, and `identity`, the store identity, in place of `cache` (docs/kv-format.md).
        """

    def submit(self, transfer: Transfer) -> None:
        """Start a transfer. Never blocks. The transfer has a lease on its blocks until it is
        answered.
        """

    def take(self, timeout: float = 0.0) -> list[TransferResult]:
        """Results of transfers since the last call; waits at most `timeout` seconds for
        the first.
        """

    def load_by(
        self,
        tier: int,
        part: tuple[bytes, int, int, tuple[int, int]],
        size: int,
        take: Callable[[int], int],
        /,
    ) -> None:
        """Load a KV part of a disk tier without waiting in the queue. `part`: digest, number of
        blocks, KV head and layers. `take(descriptor)` reads `size` bytes from offset KV_PAYLOAD_AT
        of the part's file, and returns their CRC-64/NVME. Raises `PartsError` of `penstock.kv.gds`;
        an error of `take` is its cause.
        """

    def report(self) -> str:
        """State of the tiers, and their counters since the start, as JSON."""

    def close(self, seconds: float) -> None:
        """Finish stores in flight, for at most `seconds`. Transfers that are left are answered as
        not done.
        """

def kv_inventory(path: str, /) -> str:
    """Contents of the directory of a disk tier, as JSON (crates/kv/kvstore, `disk::admin`). Raises
    ValueError with the reason if it cannot be read.
    """

def kv_verify(path: str, put_aside: bool, watch: Callable[[int, int], None], /) -> str:
    """Read every file of a disk tier; returns the damaged ones as JSON (`Verified`). `put_aside`:
    move them to quarantine. `watch` is called with the bytes read so far and in total.
    """

def kv_collect(
    path: str,
    limit_bytes: int | None,
    older_than_s: int | None,
    store: str | None,
    watch: Callable[[int, int], None],
    /,
) -> str:
    """Remove chunks of a disk tier; returns them as JSON (`Collected`). `watch` is called with the
    number of chunks handled so far and in total.
    """

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
        """Send an empty message every `interval` seconds, from a thread that does not
        need the GIL.
        """
    def end(self) -> None: ...

class Star:
    def __init__(
        self, address: str, key: bytes, rank: int, ranks: int, capacity: int, patience: float
    ) -> None: ...
    def gather(self, part: bytes) -> list[bytes] | None:
        """Send `part` to rank 0. Rank 0 gets the parts of ranks 1, 2, ...; the others get None."""
    def share(self, message: bytes) -> bytes | None:
        """Send rank 0's `message` to all other ranks, which get it; rank 0 gets None."""

class Tokenizer:
    vocab_size: int
    def __init__(self, path: str, chat_template: str | None = None) -> None: ...
    def encode(self, text: str, add_special: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...
    def output_text(self, ids: Sequence[int], skip_special: bool) -> str:
        """Like `decode`, but without an incomplete character at the end."""

    def render_chat(
        self,
        messages_json: str,
        add_generation_prompt: bool,
        tools_json: str = "null",
        kwargs_json: str = "{}",
        continue_final_message: bool = False,
    ) -> str:
        """The text of a prompt, rendered by the chat template. Raises ValueError for wrong
        messages, or with the error that the template raised.
        """

    def with_chat_template(self, source: str) -> Tokenizer:
        """The same tokenizer with another chat template. Raises ValueError with the template's
        error.
        """
    def grammar(self, kind: str, text: str) -> Grammar:
        """Compile a grammar that an output must match. `kind` is `json`, `regex`, `choice`,
        `grammar` or `structural_tag`. Raises ValueError with the reason if `text` is invalid.
        """

class Grammar:
    encoded: bytes
    """The grammar as `core.Request` carries it."""
    def follow(self, ids: Sequence[int]) -> tuple[int, bool, list[float]]:
        """Match tokens as an output. Returns the number of leading tokens that match, whether these
        are a complete output, and the seconds that each token mask took.
        """

class GrammarMasks:
    """Computes the token masks of sequences with a grammar, on background threads.

    `path` is the checkpoint, which has the tokenizer. `threads` is the number of threads that
    compute steps.
    """

    def __init__(self, path: str, threads: int) -> None: ...
    def start(self, grammar: bytes, ends: list[int], output: list[int]) -> SequenceMasks:
        """Start the masks of a sequence. `grammar` is encoded, `ends` are the tokens that may end
        the output, `output` is the output so far. Raises ValueError if the bytes are no grammar.
        """

    def take_cost(self) -> tuple[int, float, float]:
        """Masks since the last call: their number, the seconds spent on computing them, and those
        spent on waiting for them.
        """

class SequenceMasks:
    def accept(self, tokens: list[int]) -> None:
        """Advance the grammar by tokens of the output. Masks are then those for the position after
        them.
        """

    def expect(self, drafts: list[int]) -> None:
        """Note the draft tokens of the next step, so that their masks are computed."""

    def mask(self, drafts: int, timeout: float) -> bytes | int | None:
        """The token mask after the first `drafts` draft tokens: one bit per token, beginning with
        the lowest bit of the first byte, set if the token is allowed. None after a draft that the
        grammar forbids; LATE_MASK if the mask is not ready within `timeout` seconds; NO_TOKEN if
        the grammar failed.
        """

class KvEventPublisher:
    """Publishes KV events (docs/gateway.md) of one KV pool and its tiers, on a thread of its own.

    Raises ValueError for an invalid endpoint, RuntimeError if it cannot listen there.
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
        """TCP ports on which events and replay are served, for endpoints whose port the system
        chose.
        """

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        """The pool has block `digest` with these `tokens`, which follows block `parent`."""

    def removed(self, digest: bytes, /) -> None:
        """The block `digest` has left the pool."""

    def tier_stored(self, tier: int, kind: int, key: bytes, digests: Sequence[bytes], /) -> None:
        """The tier holds chunk `key`, which consists of the blocks `digests`."""

    def tier_removed(self, tier: int, key: bytes, /) -> None:
        """The tier no longer holds chunk `key`. Ignored if it did not."""

    def flush(self) -> None:
        """Publish the events since the last call. Never waits."""

class TierIndex:
    """Index of the RAM tier: which slot holds which block. Blocks are named by digests of 32 bytes,
    given in the order of their prefix.

    `quota` is the share of the slots that one salt group may fill, `pin_share` the share that
    pinned blocks may fill. `rule` (for eviction) is `auto` or `lru`. Raises ValueError for wrong
    arguments and for calls in a wrong order.
    """

    def __init__(
        self, slots: int, quota: float = 1.0, pin_share: float = 0.5, rule: str = "auto"
    ) -> None: ...
    def lookup(self, digests: Sequence[bytes], start: int = 0) -> list[int]:
        """Slots of the longest stored run of blocks from index `start` on. To be called once for
        each request, with all its digests; the caller has the first `start` blocks elsewhere.
        """

    def peek(self, digests: Sequence[bytes]) -> int:
        """Number of leading blocks that are stored. Does not count as a use of them."""

    def admit(
        self, digests: Sequence[bytes], parent: bytes | None = None, awaited: bool = False
    ) -> list[int]:
        """Assign a slot to each block; -1: refused, -2: stored already.

        `parent` is the block before the first, which is not evicted before them. `awaited` blocks
        skip the admission filter.
        """

    def commit(self, digests: Sequence[bytes]) -> None: ...
    def abandon(self, digests: Sequence[bytes]) -> None: ...
    def take_left(self) -> list[bytes]:
        """Digests of blocks that were evicted since the last `admit` began, or since the
        last call.
        """

    def hold(self, slots: Sequence[int]) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...
    def pin(self, digests: Sequence[bytes]) -> int:
        """Pin all blocks of a prefix, now or once they are stored; returns the number that are
        stored.
        """

    def unpin(self, digests: Sequence[bytes]) -> None: ...
    def remove(self, digests: Sequence[bytes]) -> int: ...
    def clear(self, group: bytes | None = None) -> int: ...
    def stats(self) -> dict[str, int]:
        """Counters `used`, `pinned`, `evictions`, `refused`, and whether admission is `gated`."""

    def check(self) -> None:
        """Raises AssertionError if the index is inconsistent. For tests."""

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
    """Cuts received bytes into frames, those of the API server or those of the engine."""

    @overload
    def __new__(cls, *, of_engine: Literal[False] = False) -> FrameReader[FrontFrame]: ...
    @overload
    def __new__(cls, *, of_engine: Literal[True]) -> FrameReader[EngineFrame]: ...
    def feed(self, data: bytes | memoryview, /, arrived: float = 0.0) -> list[F]:
        """The frames that `data` completes. `arrived` becomes the arrival time of requests. Raises
        CodecError for bytes that are no frame; the connection is then unusable.
        """

def run_template(job: str, /) -> str:
    """Result of a `crates/base/tokenizer` job, as JSON. Raises ValueError if `job` is invalid."""

def try_grammar(job: str, /) -> str:
    """Result of compiling a `crates/base/structured-output` job. Raises ValueError if `job` is
    invalid.
    """

def encode_frame(frame: EngineFrame | FrontFrame, /) -> bytes:
    """Encode a frame, with its length in front. Raises CodecError for values that the wire format
    does not allow.
    """

def encode_plan(plan: StepPlan, /) -> bytes:
    """Encode a plan. Raises CodecError for columns that do not fit each other."""

def decode_plan(data: bytes, /) -> StepPlan:
    """Decode a plan. Raises CodecError unless `data` is exactly one plan."""

def encode_result(result: StepResult, /) -> bytes: ...
def decode_result(data: bytes, /) -> StepResult:
    """Decode a result. Raises CodecError unless `data` is exactly one result."""

def plan_bytes(sequences: int, tokens: int, groups: int, added: int, length: int, /) -> int:
    """Size in bytes of the largest encoded plan (see `penstock.core.codec`)."""

def trimmed_vector(vector: bytes, dimensions: int | None, normalize: bool, /) -> bytes:
    """The first `dimensions` numbers of a vector (f32, little-endian), scaled to unit length if
    `normalize`.
    """

def cosine(a: bytes, b: bytes, /) -> float:
    """The cosine of the angle between two vectors (f32, little-endian)."""

def shortened_ids(
    ids: Sequence[int], bare: Sequence[int], most: int, keep_last: bool, /
) -> list[int]:
    """At most `most` of the token ids `ids`, which are those of a text (`bare`) with special tokens
    around it. The special tokens are kept. `keep_last`: keep the end of the text, not its
    beginning.
    """

def result_bytes(sequences: int, tokens: int, alternatives: int, vector: int, /) -> int:
    """Size in bytes of the largest encoded result (see `penstock.core.codec`)."""

def encode_transfer(transfer: Transfer, after: int, /) -> bytes:
    """Encode a transfer that ranks may start once they have computed `after` plans."""

def decode_transfer(data: bytes, /) -> tuple[Transfer, int]:
    """Decode a transfer; returns it and its `after`. Raises CodecError unless `data` is exactly one
    transfer.
    """

def encode_transfer_results(results: Iterable[TransferResult], capacity: int, /) -> list[bytes]:
    """Encode results of transfers as messages of at most `capacity` bytes, or of a single
    result.
    """

def decode_transfer_results(data: bytes, /) -> list[TransferResult]:
    """Decode the results of one message."""

def transfer_bytes(blocks: int, /) -> int:
    """Size in bytes of the largest encoded transfer of at most `blocks` blocks."""

def encode_sampling(**fields: object) -> bytes:
    """Encode sampling parameters, which are the fields of `SamplingParams` in `crates/base/wire`.
    Without any, sampling is greedy. Raises CodecError, which names a value out of range.
    """

def decode_sampling(data: bytes, /) -> dict[str, object]:
    """Decode sampling parameters; returns all fields by name."""

def needs_history(data: bytes, /) -> bool:
    """Whether the sampler needs a sequence's tokens so far, given its encoded sampling
    parameters.
    """

class PromptBudget:
    """Learns how long steps take, and limits the prompt tokens of steps that also decode
    (`crates/base/pacing`).
    """

    def observe(self, decodes: int, prompts: int, seconds: float) -> None:
        """Record that a step of `decodes` decode tokens and `prompts` prompt tokens took `seconds`;
        0 if the time was not measured.
        """

    def tokens(self, decodes: int, most: int) -> int:
        """Number of prompt tokens, at most `most`, for a step with `decodes` decode tokens; 0 if
        the step is to measure the decodes alone.
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
