//! A trace played on modelled replicas behind a modelled gateway, in virtual time: how good are a
//! profile's choices?
//!
//! ```text
//!  arrivals --> gateway: view of the replicas, prefix index, measured pace --policy--> batcher i
//!                 ^------------- metrics at each poll, tokens as they come ---------------'
//! ```
//!
//! The gateway knows what a real one can know: metrics as old as the last poll, what it sent and
//! what came back. Nothing is lost on the way, and messages take no time.

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

/// Plays a setup and returns a report, both JSON. `progress` gets the requests that have arrived
/// and their number from time to time; false ends the replay.
///
/// # Errors
/// A setup that is not valid, or `progress` wanted no more.
pub fn fleet_replay(
    setup: &str,
    mut progress: impl FnMut(usize, usize) -> bool,
) -> Result<String, SimError> {
    let run = run::Run::new(read(setup)?)?;
    let report = run.play(&mut progress)?;
    serde_json::to_string(&report).map_err(|error| SimError::Config(error.to_string()))
}
