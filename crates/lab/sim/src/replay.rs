//! Replays scenarios on the batcher in no time, for the test that compares it with the real
//! scheduler.

use std::time::Duration;

use penstock_wire::{Step, TokenRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::Answers;
use crate::batching::{Ask, Batcher};
use crate::config::{SimError, read};
use crate::profile::Profile;

#[derive(Deserialize)]
struct Scenario {
    profile: Profile,
    requests: Vec<Planned>,
}

/// A request. Its prompt is a list of runs of consecutive token ids, each as (first id, count).
#[derive(Deserialize)]
struct Planned {
    id: u64,
    prompt: Vec<(u32, u32)>,
    max_tokens: u32,
    skip_prefix_cache: bool,
    pool: bool,
    cache_salt: String,
    /// Number of steps that come before its arrival.
    arrives: usize,
    /// Number of steps that come before its cancellation; `None`: it is not cancelled.
    cancelled: Option<usize>,
}

/// Replays a scenario (JSON) until every request has arrived and ended. Returns JSON with a row for
/// each step: [tokens computed, running, waiting, blocks used, preemptions, prefix query tokens,
/// prefix hit tokens, outputs]. Preemptions and prefix tokens are totals since the start. An output
/// is [id, finish, tokens, cached tokens].
///
/// # Errors
/// The scenario is invalid, or the batcher's bookkeeping is inconsistent.
pub fn replay(scenario: &str) -> Result<String, SimError> {
    let Scenario { profile, requests } = read(scenario)?;
    let answers = Answers {
        words: (1..profile.vocab_size).collect(),
        eos: 0,
        seed: 1,
        lengths: None,
    };
    let mut batcher = Batcher::new(profile, answers);
    let mut steps: Vec<Value> = Vec::new();
    let last = requests.iter().map(|one| one.arrives).max().unwrap_or(0);
    while steps.len() <= last || !batcher.is_idle() {
        for one in &requests {
            if one.arrives == steps.len() {
                batcher.add(one.id, one.ask(), Duration::ZERO);
            }
            if one.cancelled == Some(steps.len()) {
                batcher.cancel(one.id);
            }
        }
        let step = match batcher.schedule(Duration::ZERO) {
            Some(_) => batcher.apply(),
            None => batcher.idle_step(),
        };
        steps.push(row(step));
        if let Some(fault) = batcher.fault() {
            return Err(SimError::Config(format!("step {}: {fault}", steps.len())));
        }
    }
    Ok(Value::from(steps).to_string())
}

impl Planned {
    fn ask(&self) -> Ask {
        let runs = self.prompt.iter();
        Ask {
            request: TokenRequest {
                prompt: runs.flat_map(|&(from, count)| from..from + count).collect(),
                max_tokens: self.max_tokens,
                ignore_eos: true,
                skip_prefix_cache: self.skip_prefix_cache,
                pool: self.pool,
                cache_salt: self.cache_salt.as_bytes().to_vec(),
                ..TokenRequest::default()
            },
            ..Ask::default()
        }
    }
}

fn row(step: Step) -> Value {
    let (stats, mut outputs) = (step.stats, step.outputs);
    outputs.sort_by_key(|output| output.id);
    let output = outputs.iter().map(|output| {
        json!([
            output.id,
            output.finish as u8,
            output.tokens.len(),
            output.cached_tokens
        ])
    });
    json!([
        stats.batch_tokens,
        stats.running,
        stats.waiting,
        stats.blocks_used,
        stats.preemptions_total,
        stats.prefix_query_tokens_total,
        stats.prefix_hit_tokens_total,
        output.collect::<Vec<_>>(),
    ])
}
