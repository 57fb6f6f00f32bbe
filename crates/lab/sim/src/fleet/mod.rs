//! Replays a trace on modelled replicas behind a modelled gateway, in virtual time, to evaluate how
//! a profile chooses.
//!
//! ```text
//!  arrivals --> gateway: view of the replicas, prefix index, measured pace --policy--> batcher i
//!                 ^------------- metrics at each poll, tokens as they come ---------------'
//! ```
//!
//! The gateway has the information of a real one: metrics as old as the last poll, the requests
//! that it has sent, and the responses. Messages are never lost and take no time.

mod gateway;
mod oracle;
mod policy;
mod prompts;
mod report;
mod run;
mod setup;
#[cfg(test)]
mod tests;

use crate::config::{SimError, read};

/// Replays a setup and returns a report, both in JSON. `progress` is called from time to time with
/// the number of requests that have arrived and the number of all; if it returns false, the replay
/// ends.
///
/// # Errors
/// The setup is invalid, or `progress` returned false.
pub fn fleet_replay(
    setup: &str,
    mut progress: impl FnMut(usize, usize) -> bool,
) -> Result<String, SimError> {
    let run = run::Run::new(read(setup)?)?;
    let report = run.play(&mut progress)?;
    serde_json::to_string(&report).map_err(|error| SimError::Config(error.to_string()))
}
