//! Injected faults, and the selection of the requests that get them.

use std::str::FromStr;
use std::time::Duration;

use crate::random;

/// Kind of fault. A number is the number of tokens sent before the fault; shorter answers are
/// unaffected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FaultKind {
    /// The request is refused with a 503 that has a Retry-After.
    Refuse,
    /// A response with this status.
    Status(u16),
    /// The response's headers are sent this long after the first token.
    SlowHeaders(Duration),
    /// The stream ends with an error event.
    ErrorEvent(u32),
    /// The connection is dropped.
    Cut(u32),
    /// No more data is sent, and the connection stays open.
    Stall(u32),
    /// The stream has an event that is not JSON.
    Malformed(u32),
    /// The answer ends with `stop` after this number of tokens, even if the request asks for more.
    EarlyStop(u32),
    /// No event has a finish reason.
    NoFinish,
    /// There is no usage, even if the request asks for it.
    NoUsage,
}

/// A fault, and how many requests get it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// Probability that a request gets the fault, independent of other requests.
    pub(crate) probability: f64,
}

const KINDS: &str = "refuse, status, slow-headers, error-event, cut, stall, malformed, \
 early-stop, no-finish, no-usage";
const TOKENS: f64 = 4.0;

impl FromStr for Fault {
    type Err = String;

    /// Parses `KIND[:PROBABILITY[:PARAM]]`. The default probability is 1. PARAM is a number of
    /// tokens (default 4), the status (default 500) or the delay in seconds (default 1).
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.splitn(3, ':');
        let name = words.next().unwrap_or_default();
        let mut number = |what: &str, allowed: std::ops::RangeInclusive<f64>| match words.next() {
            None | Some("") => Ok(None),
            Some(word) => match word.parse::<f64>() {
                Ok(value) if allowed.contains(&value) => Ok(Some(value)),
                _ => Err(format!(
                    "fault {text:?}: {what} must be {} to {}",
                    allowed.start(),
                    allowed.end()
                )),
            },
        };
        let probability = number("the probability", 0.0..=1.0)?.unwrap_or(1.0);
        let kind = match name {
            "status" => {
                FaultKind::Status(number("the status", 400.0..=599.0)?.unwrap_or(500.0) as u16)
            }
            "slow-headers" => FaultKind::SlowHeaders(Duration::from_secs_f64(
                number("the delay in seconds", 0.0..=3600.0)?.unwrap_or(1.0),
            )),
            _ => {
                let tokens = number("the number of tokens", 0.0..=1e9)?;
                Self::by_tokens(name, tokens).map_err(|why| format!("fault {text:?}: {why}"))?
            }
        };
        Ok(Self { kind, probability })
    }
}

impl Fault {
    fn by_tokens(name: &str, given: Option<f64>) -> Result<FaultKind, String> {
        let count = given.unwrap_or(TOKENS) as u32;
        let kind = match name {
            "error-event" => FaultKind::ErrorEvent(count),
            "cut" => FaultKind::Cut(count),
            "stall" => FaultKind::Stall(count),
            "malformed" => FaultKind::Malformed(count),
            "early-stop" => FaultKind::EarlyStop(count.max(1)),
            "refuse" | "no-finish" | "no-usage" if given.is_some() => {
                return Err(format!("{name} has no further parameter"));
            }
            "refuse" => FaultKind::Refuse,
            "no-finish" => FaultKind::NoFinish,
            "no-usage" => FaultKind::NoUsage,
            _ => return Err(format!("there is no such fault, only {KINDS}")),
        };
        Ok(kind)
    }
}

/// The faults that one engine injects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) list: Vec<Fault>,
    pub(crate) seed: u64,
}

impl Faults {
    /// Returns an error if a fault cannot be injected by an engine behind a socket, where there is
    /// no HTTP.
    pub(crate) fn check_wire(&self) -> Result<(), String> {
        let on_wire = |kind| {
            matches!(
                kind,
                FaultKind::Refuse
                    | FaultKind::ErrorEvent(_)
                    | FaultKind::Stall(_)
                    | FaultKind::EarlyStop(_)
            )
        };
        match self.list.iter().find(|fault| !on_wire(fault.kind)) {
            None => Ok(()),
            Some(fault) => Err(format!(
                "fault {:?}: an engine on the wire has refuse, error-event, stall and early-stop \
                 only",
                fault.kind
            )),
        }
    }

    /// The fault of request number `request`: the first one in the list that strikes it.
    pub(crate) fn pick(&self, request: u64) -> Option<FaultKind> {
        let strikes = |(at, fault): (usize, &Fault)| {
            let key = random::join(random::join(self.seed, at as u64), request);
            (random::unit(key) < fault.probability).then_some(fault.kind)
        };
        self.list.iter().enumerate().find_map(strikes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(text: &str) -> Fault {
        text.parse().unwrap()
    }

    #[test]
    fn words_become_faults() {
        let fault = |kind, probability| Fault { kind, probability };
        assert_eq!(parsed("cut"), fault(FaultKind::Cut(4), 1.0));
        assert_eq!(parsed("cut:0.25:9"), fault(FaultKind::Cut(9), 0.25));
        assert_eq!(parsed("status::429"), fault(FaultKind::Status(429), 1.0));
        assert_eq!(parsed("no-usage:0.5"), fault(FaultKind::NoUsage, 0.5));
        let delay = FaultKind::SlowHeaders(Duration::from_millis(250));
        assert_eq!(parsed("slow-headers:1:0.25"), fault(delay, 1.0));
    }

    #[test]
    fn wrong_words_are_named() {
        for (text, complaint) in [
            ("explode", "no such fault"),
            ("cut:2", "probability must be 0 to 1"),
            ("cut:x", "probability"),
            ("cut:1:-1", "number of tokens"),
            ("status:1:200", "status must be 400 to 599"),
            ("refuse:1:4", "no further parameter"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn probabilities_hold_and_the_first_of_the_list_wins() {
        let faults = Faults {
            list: vec![parsed("refuse:0.25"), parsed("cut:0.5")],
            seed: 3,
        };
        let picks: Vec<_> = (0..40_000).map(|n| faults.pick(n)).collect();
        let share = |kind| picks.iter().filter(|p| **p == kind).count() as f64 / 40_000.0;
        assert!((share(Some(FaultKind::Refuse)) - 0.25).abs() < 0.02);
        assert!((share(Some(FaultKind::Cut(4))) - 0.375).abs() < 0.02);
        let again: Vec<_> = (0..40_000).map(|n| faults.pick(n)).collect();
        assert_eq!(picks, again);
    }
}
