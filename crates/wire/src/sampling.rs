use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, MAX_LOGPROBS, Problem};

/// How the tokens of a sequence are drawn: encoded by the front door, decoded by the sampler, and
/// opaque to everything between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; finite, at least 0. 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 is all.
    pub top_k: u32,
    /// Keep the most likely tokens up to this probability, in (0, 1]; 1 is all.
    pub top_p: f32,
    /// Key of the random stream.
    pub seed: u64,
    /// Index among the choices of one client request; part of the random stream's counter.
    pub choice: u32,
    /// Alternatives for each output token, up to [`MAX_LOGPROBS`]; `Some(0)` is the token's own
    /// log-probability alone.
    pub logprobs: Option<u8>,
}

/// The most bytes that encoded parameters may have, in any version.
pub const MAX_SAMPLING_BYTES: usize = 64;

const VERSION: u8 = 1;
const NAME: &str = "SAMPLING";

impl Default for SamplingParams {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            choice: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The parameters as bytes, or an error that names the value out of range.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        self.check()?;
        let mut out = Vec::with_capacity(27);
        FrameWriter::message(&mut out, NAME, |w| {
            w.u8(VERSION);
            w.f32(self.temperature);
            w.u32(self.top_k);
            w.f32(self.top_p);
            w.u64(self.seed);
            w.u32(self.choice);
            w.i16(self.logprobs.map_or(-1, i16::from));
            Ok(())
        })?;
        Ok(out)
    }

    /// Reads what [`Self::encode`] wrote; another version is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let params = Fields::frame(bytes, NAME, |f| {
            let version = f.u8("version")?;
            if version != VERSION {
                return Err(f.refuse("version", 1, version, "1"));
            }
            Ok(Self {
                temperature: f.f32("temperature")?,
                top_k: f.u32("top_k")?,
                top_p: f.f32("top_p")?,
                seed: f.u64("seed")?,
                choice: f.u32("choice")?,
                logprobs: read_logprobs(f, "logprobs")?,
            })
        })?;
        params.check()?;
        Ok(params)
    }

    /// The ranges, for both directions.
    fn check(&self) -> Result<(), FrameError> {
        let (temperature, top_p) = (self.temperature, self.top_p);
        let refuse = |field, offset, value: String, allowed| {
            Err(FrameError {
                frame: NAME,
                field,
                offset,
                problem: Problem::Value { value, allowed },
            })
        };
        if !(temperature.is_finite() && temperature >= 0.0) {
            let value = temperature.to_string();
            return refuse("temperature", 1, value, "finite numbers from 0");
        }
        if self.top_k > i32::MAX as u32 {
            return refuse("top_k", 5, self.top_k.to_string(), "0 to 2147483647");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return refuse("top_p", 9, top_p.to_string(), "above 0, up to 1");
        }
        match self.logprobs {
            Some(k) if k > MAX_LOGPROBS => refuse("logprobs", 25, k.to_string(), LOGPROBS),
            _ => Ok(()),
        }
    }
}

const LOGPROBS: &str = "-1 to 20";

/// Number of alternatives, or -1.
pub(super) fn read_logprobs(
    f: &mut Fields<'_>,
    field: &'static str,
) -> Result<Option<u8>, FrameError> {
    match f.i16(field)? {
        -1 => Ok(None),
        k => match u8::try_from(k) {
            Ok(k) if k <= MAX_LOGPROBS => Ok(Some(k)),
            _ => Err(f.refuse(field, 2, k, LOGPROBS)),
        },
    }
}
