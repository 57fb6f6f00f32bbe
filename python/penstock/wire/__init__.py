"""The engine's end of docs/wire.md: frames as plain data, their bytes, the connection that carries
them.
"""

from penstock.wire.codec import (
    MAX_FRAME_BYTES,
    FrameReader,
    decode_engine_frame,
    decode_front_frame,
    encode,
)
from penstock.wire.connection import Connection
from penstock.wire.errors import ConnectionClosed, FrameError
from penstock.wire.frames import (
    WIRE_VERSION,
    Cancel,
    EngineFrame,
    Fatal,
    FrontFrame,
    Hello,
    Ready,
    Shutdown,
    Stage,
    Step,
)
from penstock.wire.report import report_fields

__all__ = [
    "MAX_FRAME_BYTES",
    "WIRE_VERSION",
    "Cancel",
    "Connection",
    "ConnectionClosed",
    "EngineFrame",
    "Fatal",
    "FrameError",
    "FrameReader",
    "FrontFrame",
    "Hello",
    "Ready",
    "Shutdown",
    "Stage",
    "Step",
    "decode_engine_frame",
    "decode_front_frame",
    "encode",
    "report_fields",
]
