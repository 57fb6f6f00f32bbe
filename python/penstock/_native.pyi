"""What the Rust extension offers to Python (`crates/native`)."""

from array import array

from penstock.core import StepPlan, StepResult

__version__: str

class Ticket:
    def result(self, timeout: float | None = None) -> StepResult: ...

class Decoder:
    numerics: str
    isa: str
    threads: int
    fingerprint: bytes
    weights_bytes: int
    def __init__(self, spec_json: str, names_json: str, paths: list[str], options_json: str) -> None: ...
    def submit(self, plan: StepPlan) -> Ticket: ...

def hash_chain(identity: bytes, parent: bytes | None, tokens: array[int], /) -> list[bytes]: ...
def hash_root(identity: bytes, adapter: bytes, salt: bytes, /) -> bytes: ...
def read_gguf_metadata(path: str) -> dict[str, object]: ...
def front_door(config_json: str) -> int: ...
