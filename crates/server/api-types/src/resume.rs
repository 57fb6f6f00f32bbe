//! State with which another server resumes an interrupted stream.
//!
//! On request, a server (`crates/server/server/src/marks.rs`) adds resume marks to its stream as
//! SSE comments. Collected into an array they form the field `resume` of the retried request: first
//! the origin, then the tokens of each step.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{Fields, read};
use crate::error::ApiError;

/// Header of requests for resume marks, and of responses with them.
pub const RESUMABLE: &str = "x-penstock-resumable";
/// Start of a mark, an SSE comment with JSON that ends with an empty line. The tokens of all marks
/// so far reproduce the events before the mark.
pub const MARK: &[u8] = b":resume ";
/// Content of the mark before an error event after which another server may resume the stream.
pub const FAILED_MARK: &[u8] = b"\"failed\"";

const FIELD: &str = "resume";

/// Random draws and time of the first server, on which the response depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Unix time, in seconds.
    pub created: u64,
    /// Seed of the sampler.
    pub seed: u64,
    /// Seed of tool call ids.
    pub calls: u64,
}

/// The output that a client has received of an interrupted stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    pub origin: Origin,
    /// Token ids of each step, never empty. A step's events are rendered from all its tokens at
    /// once.
    pub steps: Vec<Vec<u32>>,
}

impl Resume {
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, ApiError> {
        let parts: Option<Vec<Box<RawValue>>> = fields.take(FIELD)?;
        let Some(parts) = parts else { return Ok(None) };
        let Some((origin, steps)) = parts.split_first() else {
            return Err(invalid("it has no origin"));
        };
        let steps = steps.iter().map(|step| read(FIELD, step));
        let steps = steps.collect::<Result<Vec<Vec<u32>>, _>>()?;
        if steps.iter().any(Vec::is_empty) {
            return Err(invalid("a step has no tokens"));
        }
        let origin = read(FIELD, origin)?;
        Ok(Some(Self { origin, steps }))
    }

    /// Token ids of all steps, in order.
    pub fn tokens(&self) -> Vec<u32> {
        self.steps.concat()
    }
}

/// A 400 error about the field `resume`.
pub(crate) fn invalid(what: &str) -> ApiError {
    ApiError::invalid(FIELD, format!("{FIELD}: {what}."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn taken(value: &str) -> Result<Option<Resume>, ApiError> {
        let body = format!(r#"{{"resume":{value}}}"#);
        Resume::take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn marks_in_an_array_are_the_field() {
        let origin = Origin {
            created: 7,
            seed: u64::MAX,
            calls: 1,
        };
        let marks = [serde_json::to_string(&origin).unwrap(), "[5,6]".into()];
        let resume = taken(&format!("[{}]", marks.join(","))).unwrap().unwrap();
        assert_eq!(resume.origin, origin);
        assert_eq!(resume.tokens(), [5, 6]);
        assert_eq!(taken("null").unwrap(), None);
    }

    #[test]
    fn what_is_no_resume_is_named() {
        let origin = r#"{"created":1,"seed":2,"calls":3}"#;
        for (value, wanted) in [
            ("7", "resume"),
            ("[]", "no origin"),
            (&format!("[{origin},[]]"), "no tokens"),
            (&format!("[{origin},[-1]]"), "resume"),
            (r#"[{"seed":2}]"#, "resume"),
        ] {
            let error = taken(value).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("resume"));
            assert!(error.message.contains(wanted), "{}", error.message);
        }
    }
}
