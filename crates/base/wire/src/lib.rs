//! The codecs of all messages between processes: frames between the API server and one engine
//! (version 8 of `docs/wire.md`), step plans, their results, and KV transfers.
//!
//! Plain structs with `encode` and `decode`, and [`FrameReader`], which splits a byte stream into
//! frames. Numbers are little-endian. Memory is allocated only after a count is checked against the
//! remaining bytes. No IO.

mod add;
mod error;
mod fields;
mod grammar;
mod kv;
mod limits;
mod plan;
mod pooling;
mod reader;
mod sampling;
mod start;
mod step;
mod tiers;
mod transfer;
mod writer;

pub use add::{Add, TokenRequest};
pub use error::{FrameError, Problem};
pub use grammar::{Grammar, GrammarKind, MAX_GRAMMAR_BYTES, MAX_PLAN_GRAMMAR_BYTES};
pub use kv::{KvAction, KvCommand, KvOrder, KvOutcome, KvPrefix, KvReply};
pub use limits::{MAX_FRAME_BYTES, MAX_LOGPROBS, WIRE_VERSION};
pub use plan::{
    LAST_SAMPLED, LATE_MASK, LogprobTable, MaskCost, NO_TOKEN, NOT_FINITE, Registration, StepPlan,
    StepResult, VectorTable, plan_bytes, result_bytes,
};
pub use pooling::{Pooler, PoolerOutput, Pooling};
pub use reader::{Frame, FrameReader};
pub use sampling::{MAX_SAMPLING_BYTES, SamplingParams};
pub use start::{Fatal, Hello, Ready, Stage};
pub use step::{Finish, LogprobRow, Output, Step, StepStats};
pub use tiers::{TierKinds, TierTokens};
pub use transfer::{Fault, Transfer, TransferKind, TransferResult, transfer_bytes};

use fields::Fields;
use writer::FrameWriter;

const HELLO: u8 = 0x01;
const STAGE: u8 = 0x02;
const READY: u8 = 0x03;
const FATAL: u8 = 0x04;
const ADD: u8 = 0x10;
const CANCEL: u8 = 0x11;
const SHUTDOWN: u8 = 0x12;
const KV: u8 = 0x13;
const STEP: u8 = 0x20;
const TIERS: u8 = 0x21;
const KV_REPLY: u8 = 0x22;

/// A frame from the engine to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineFrame {
    Hello(Hello),
    Stage(Stage),
    Ready(Ready),
    Fatal(Fatal),
    Step(Step),
    /// State of the tiers: a JSON object, opaque to the wire.
    Tiers(String),
    KvReply(KvReply),
}

impl EngineFrame {
    /// Appends the frame with its length prefix. On an error `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Hello(hello) => FrameWriter::frame(out, HELLO, "HELLO", |w| hello.write(w)),
            Self::Stage(stage) => FrameWriter::frame(out, STAGE, "STAGE", |w| stage.write(w)),
            Self::Ready(ready) => FrameWriter::frame(out, READY, "READY", |w| ready.write(w)),
            Self::Fatal(fatal) => FrameWriter::frame(out, FATAL, "FATAL", |w| fatal.write(w)),
            Self::Step(step) => FrameWriter::frame(out, STEP, "STEP", |w| step.write(w)),
            Self::Tiers(json) => FrameWriter::frame(out, TIERS, "TIERS", |w| {
                w.bytes(json.as_bytes());
                Ok(())
            }),
            Self::KvReply(reply) => FrameWriter::frame(out, KV_REPLY, "KV_REPLY", |w| {
                reply.write(w);
                Ok(())
            }),
        }
    }

    /// The name of the frame in `docs/wire.md`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Stage(_) => "STAGE",
            Self::Ready(_) => "READY",
            Self::Fatal(_) => "FATAL",
            Self::Step(_) => "STEP",
            Self::Tiers(_) => "TIERS",
            Self::KvReply(_) => "KV_REPLY",
        }
    }
}

impl Frame for EngineFrame {
    fn decode(kind: u8, body: &[u8]) -> Result<Self, FrameError> {
        match kind {
            HELLO => Fields::frame(body, "HELLO", Hello::read).map(Self::Hello),
            STAGE => Fields::frame(body, "STAGE", Stage::read).map(Self::Stage),
            READY => Fields::frame(body, "READY", Ready::read).map(Self::Ready),
            FATAL => Fields::frame(body, "FATAL", Fatal::read).map(Self::Fatal),
            STEP => Fields::frame(body, "STEP", Step::read).map(Self::Step),
            TIERS => Fields::frame(body, "TIERS", |f| f.string("report")).map(Self::Tiers),
            KV_REPLY => Fields::frame(body, "KV_REPLY", KvReply::read).map(Self::KvReply),
            unknown => Err(FrameError::unknown_type(unknown)),
        }
    }
}

/// A frame from the API server to the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum FrontFrame {
    Add(Add),
    Cancel(Cancel),
    Shutdown(Shutdown),
    Kv(KvCommand),
}

/// Cancels requests. Unknown ids are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancel {
    pub ids: Vec<u64>,
}

/// Makes the engine cancel its requests and exit with status 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown;

impl FrontFrame {
    /// Appends the frame with its length prefix. On an error `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Add(add) => FrameWriter::frame(out, ADD, "ADD", |w| add.write(w)),
            Self::Cancel(cancel) => FrameWriter::frame(out, CANCEL, "CANCEL", |w| {
                w.u64_list(&cancel.ids);
                Ok(())
            }),
            Self::Shutdown(Shutdown) => FrameWriter::frame(out, SHUTDOWN, "SHUTDOWN", |_| Ok(())),
            Self::Kv(command) => FrameWriter::frame(out, KV, "KV", |w| command.write(w)),
        }
    }
}

impl Frame for FrontFrame {
    fn decode(kind: u8, body: &[u8]) -> Result<Self, FrameError> {
        match kind {
            ADD => Fields::frame(body, "ADD", Add::read).map(Self::Add),
            CANCEL => Fields::frame(body, "CANCEL", |f| {
                let ids = f.u64_list("ids")?;
                Ok(Self::Cancel(Cancel { ids }))
            }),
            SHUTDOWN => Fields::frame(body, "SHUTDOWN", |_| Ok(Self::Shutdown(Shutdown))),
            KV => Fields::frame(body, "KV", KvCommand::read).map(Self::Kv),
            unknown => Err(FrameError::unknown_type(unknown)),
        }
    }
}
