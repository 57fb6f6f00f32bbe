//! gRPC's health service.

use bytes::Bytes;

use crate::frames::{Frames, framed};
use crate::messages::{HealthCheckRequest, HealthCheckResponse};
use crate::status::{Code, Status};

/// Maximum size of a health check request in bytes.
pub(crate) const LIMIT: usize = 4096;

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// Answers a framed health check. The service `liveness` is always healthy; the other services are
/// healthy if the picker is `ready`.
///
/// # Errors
/// The service is unknown, or the message is malformed.
pub(crate) fn check(asked: &[u8], ready: bool) -> Result<Bytes, Status> {
    let mut frames = Frames::new(LIMIT);
    frames.push(asked);
    let question: HealthCheckRequest = frames.next()?.unwrap_or_default();
    let serving = match question.service.as_str() {
        "liveness" => true,
        "" | "readiness" | "envoy.service.ext_proc.v3.ExternalProcessor" => ready,
        other => {
            let text = format!("no service {other}");
            return Err(Status::new(Code::NotFound, text));
        }
    };
    let status = if serving { SERVING } else { NOT_SERVING };
    Ok(framed(&HealthCheckResponse { status }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_those_that_are_known() {
        let ask = |service: &str, ready| {
            let question = framed(&HealthCheckRequest {
                service: service.to_owned(),
            });
            check(&question, ready).map(|answer| answer.to_vec())
        };
        let serving = |code| Ok(vec![0, 0, 0, 0, 2, 8, code]);
        assert_eq!(ask("", true), serving(1));
        assert_eq!(ask("", false), serving(2));
        assert_eq!(ask("liveness", false), serving(1));
        assert_eq!(ask("readiness", false), serving(2));
        assert_eq!(ask("other", true).unwrap_err().code, Code::NotFound);
    }
}
