use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, TierTokens};

/// STEP: the counters after one engine step, and its outputs by request. An idle engine sends a
/// STEP without outputs as a heartbeat.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    pub stats: StepStats,
    pub outputs: Vec<Output>,
}

/// Counters of the engine after a step; counters named `_total` are monotonic.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepStats {
    /// Number of the step, from 1; unchanged in heartbeats.
    pub step: u64,
    pub running: u32,
    pub waiting: u32,
    /// KV blocks referenced by running requests.
    pub blocks_used: u32,
    pub blocks_total: u32,
    pub preemptions_total: u64,
    pub prefix_query_tokens_total: u64,
    pub prefix_hit_tokens_total: u64,
    /// Number of grammar masks computed.
    pub masks_total: u64,
    /// Time that computing the masks took.
    pub mask_seconds_total: f64,
    /// Time that rows of the batch waited for their masks.
    pub mask_wait_seconds_total: f64,
    /// Tokens computed in this step.
    pub batch_tokens: u32,
    /// Wall time of this step.
    pub step_ms: f32,
}

/// Output of one step for one request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    pub id: u64,
    pub finish: Finish,
    /// The token that stopped the request; it is the last of `tokens`.
    pub stop_token: Option<u32>,
    /// Prompt tokens whose KV was loaded from the pool or a tier instead of being computed. Set on
    /// the request's first output, else 0.
    pub cached_tokens: u32,
    /// The part of `cached_tokens` loaded from tiers behind the pool.
    pub tier_tokens: TierTokens,
    /// Microseconds from receipt to the first schedule. Set on the request's first output, else 0.
    pub queue_us: u32,
    pub tokens: Vec<u32>,
    /// One row for each of `tokens`, or empty.
    pub logprobs: Vec<LogprobRow>,
    /// Row i is for prompt token i + 1: the first prompt token has no log-probability.
    pub prompt_logprobs: Vec<LogprobRow>,
    /// Only on the last output of a pooled request.
    pub vector: Vec<f32>,
    pub error: Option<String>,
}

/// Whether and why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Finish {
    /// Not ended.
    #[default]
    None = 0,
    /// A stop token was sampled.
    Stop = 1,
    /// `max_tokens` was reached.
    Length = 2,
    Cancelled = 3,
    /// See [`Output::error`].
    Error = 4,
    /// The engine's queue is full, or the request expired in it.
    Rejected = 5,
    /// The request is invalid for every engine with this configuration: see [`Output::error`].
    Unfit = 6,
}

/// Log-probability of one token and of the most likely ones at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobRow {
    pub logprob: f32,
    /// Rank of the token at its position; 1 = the most likely.
    pub rank: u32,
    /// The most likely tokens: ids and log-probabilities, in descending order of probability.
    pub alternatives: Vec<(u32, f32)>,
}

const OUTPUT_LOGPROBS: u8 = 1;
const PROMPT_LOGPROBS: u8 = 2;
const ERROR_MESSAGE: u8 = 3;
const TIER_TOKENS: u8 = 4;
const VECTOR: u8 = 5;
const SMALLEST_EXTRA: usize = 9;
const SMALLEST_ROW: usize = 12;
const STOP_TOKEN_ALLOWED: &str = "-1 to 2147483647";

impl Finish {
    /// The reason with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        [
            Self::None,
            Self::Stop,
            Self::Length,
            Self::Cancelled,
            Self::Error,
            Self::Rejected,
            Self::Unfit,
        ]
        .get(usize::from(code))
        .copied()
    }
}

impl Step {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let stats = StepStats::read(f)?;
        let mut outputs = read_outputs(f)?;
        for _ in 0..f.count("extras", SMALLEST_EXTRA)? {
            read_extra(f, &mut outputs)?;
        }
        Ok(Self { stats, outputs })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        self.stats.write(w);
        write_outputs(w, &self.outputs)?;
        write_extras(w, &self.outputs);
        Ok(())
    }
}

impl StepStats {
    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            step: f.u64("step")?,
            running: f.u32("running")?,
            waiting: f.u32("waiting")?,
            blocks_used: f.u32("blocks_used")?,
            blocks_total: f.u32("blocks_total")?,
            preemptions_total: f.u64("preemptions_total")?,
            prefix_query_tokens_total: f.u64("prefix_query_tokens_total")?,
            prefix_hit_tokens_total: f.u64("prefix_hit_tokens_total")?,
            masks_total: f.u64("masks_total")?,
            mask_seconds_total: f.f64("mask_seconds_total")?,
            mask_wait_seconds_total: f.f64("mask_wait_seconds_total")?,
            batch_tokens: f.u32("batch_tokens")?,
            step_ms: f.f32("step_ms")?,
        })
    }

    fn write(&self, w: &mut FrameWriter<'_>) {
        w.u64(self.step);
        w.u32(self.running);
        w.u32(self.waiting);
        w.u32(self.blocks_used);
        w.u32(self.blocks_total);
        w.u64(self.preemptions_total);
        w.u64(self.prefix_query_tokens_total);
        w.u64(self.prefix_hit_tokens_total);
        w.u64(self.masks_total);
        w.f64(self.mask_seconds_total);
        w.f64(self.mask_wait_seconds_total);
        w.u32(self.batch_tokens);
        w.f32(self.step_ms);
    }
}

fn read_outputs(f: &mut Fields<'_>) -> Result<Vec<Output>, FrameError> {
    let n = f.u32("n")? as usize;
    let ids = f.column("request id", n)?;
    let mut outputs: Vec<Output> = ids
        .iter()
        .map(|id| Output {
            id: u64::from_le_bytes(*id),
            ..Output::default()
        })
        .collect();
    for output in &mut outputs {
        let code = f.u8("finish")?;
        output.finish =
            Finish::from_code(code).ok_or_else(|| f.refuse("finish", 1, code, "0 to 6"))?;
    }
    for output in &mut outputs {
        output.stop_token = match f.i32("stop_token")? {
            -1 => None,
            token => Some(
                u32::try_from(token)
                    .map_err(|_| f.refuse("stop_token", 4, token, STOP_TOKEN_ALLOWED))?,
            ),
        };
    }
    for (output, cached) in outputs.iter_mut().zip(f.column("cached_tokens", n)?) {
        output.cached_tokens = u32::from_le_bytes(*cached);
    }
    for (output, queue) in outputs.iter_mut().zip(f.column("queue_us", n)?) {
        output.queue_us = u32::from_le_bytes(*queue);
    }
    for (output, count) in outputs.iter_mut().zip(f.column("count", n)?) {
        let tokens = f.column("token ids", u16::from_le_bytes(*count).into())?;
        output.tokens = tokens
            .iter()
            .map(|token| u32::from_le_bytes(*token))
            .collect();
    }
    Ok(outputs)
}

fn write_outputs(w: &mut FrameWriter<'_>, outputs: &[Output]) -> Result<(), FrameError> {
    w.count(outputs.len());
    outputs.iter().for_each(|output| w.u64(output.id));
    outputs.iter().for_each(|output| w.u8(output.finish as u8));
    for output in outputs {
        let token = output.stop_token.map_or(Ok(-1), i32::try_from);
        w.i32(token.map_err(|_| {
            w.refuse(
                "stop_token",
                output.stop_token.unwrap_or_default(),
                STOP_TOKEN_ALLOWED,
            )
        })?);
    }
    outputs
        .iter()
        .for_each(|output| w.u32(output.cached_tokens));
    outputs.iter().for_each(|output| w.u32(output.queue_us));
    for output in outputs {
        let count = output.tokens.len();
        w.u16(u16::try_from(count).map_err(|_| w.refuse("count", count, "0 to 65535"))?);
    }
    w.u32_column(
        outputs
            .iter()
            .flat_map(|output| output.tokens.iter().copied()),
    );
    Ok(())
}

fn read_extra(f: &mut Fields<'_>, outputs: &mut [Output]) -> Result<(), FrameError> {
    let index = f.u32("extra index")?;
    let Some(output) = outputs.get_mut(index as usize) else {
        return Err(f.refuse("extra index", 4, index, "indexes of outputs in this frame"));
    };
    match f.u8("extra kind")? {
        OUTPUT_LOGPROBS => output.logprobs = f.nested("logprobs", read_rows)?,
        PROMPT_LOGPROBS => output.prompt_logprobs = f.nested("prompt logprobs", read_rows)?,
        ERROR_MESSAGE => output.error = Some(f.string("error")?),
        TIER_TOKENS => output.tier_tokens = read_tier_tokens(f, output.cached_tokens)?,
        VECTOR => output.vector = f.vector("vector")?,
        unknown => return Err(f.refuse("extra kind", 1, unknown, "1 to 5")),
    }
    Ok(())
}

fn read_tier_tokens(f: &mut Fields<'_>, cached: u32) -> Result<TierTokens, FrameError> {
    let tokens = f.nested("tier tokens", TierTokens::read)?;
    if tokens.total() > cached.into() {
        return Err(f.refuse("tier tokens", 12, tokens.total(), "up to cached_tokens"));
    }
    Ok(tokens)
}

fn write_extras(w: &mut FrameWriter<'_>, outputs: &[Output]) {
    let extras = |output: &Output| {
        usize::from(!output.logprobs.is_empty())
            + usize::from(!output.prompt_logprobs.is_empty())
            + usize::from(output.error.is_some())
            + usize::from(output.tier_tokens != TierTokens::default())
            + usize::from(!output.vector.is_empty())
    };
    w.count(outputs.iter().map(extras).sum());
    for (index, output) in outputs.iter().enumerate() {
        for (kind, rows) in [
            (OUTPUT_LOGPROBS, &output.logprobs),
            (PROMPT_LOGPROBS, &output.prompt_logprobs),
        ] {
            if !rows.is_empty() {
                w.count(index);
                w.u8(kind);
                w.nested(|w| write_rows(w, rows));
            }
        }
        if let Some(message) = &output.error {
            w.count(index);
            w.u8(ERROR_MESSAGE);
            w.bytes(message.as_bytes());
        }
        if output.tier_tokens != TierTokens::default() {
            w.count(index);
            w.u8(TIER_TOKENS);
            w.nested(|w| output.tier_tokens.write(w));
        }
        if !output.vector.is_empty() {
            w.count(index);
            w.u8(VECTOR);
            w.vector(&output.vector);
        }
    }
}

pub(super) fn read_rows(f: &mut Fields<'_>) -> Result<Vec<LogprobRow>, FrameError> {
    let count = f.count("rows", SMALLEST_ROW)?;
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let (logprob, rank) = (f.f32("logprob")?, f.u32("rank")?);
        let k = f.u32("k")? as usize;
        let alternatives = f.column::<8>("alternatives", k)?.iter().map(|pair| {
            let [a, b, c, d, w, x, y, z] = *pair;
            (
                u32::from_le_bytes([a, b, c, d]),
                f32::from_le_bytes([w, x, y, z]),
            )
        });
        rows.push(LogprobRow {
            logprob,
            rank,
            alternatives: alternatives.collect(),
        });
    }
    Ok(rows)
}

pub(super) fn write_rows(w: &mut FrameWriter<'_>, rows: &[LogprobRow]) {
    w.count(rows.len());
    for row in rows {
        w.f32(row.logprob);
        w.u32(row.rank);
        w.count(row.alternatives.len());
        for (token, logprob) in &row.alternatives {
            w.u32(*token);
            w.f32(*logprob);
        }
    }
}
