//! Policies that choose a replica: a profile, another router's rule, or an oracle.

use penstock_routing::{CacheState, Profile, Replica, Request, Unknown, pick};

use super::oracle;
use super::setup::PolicyChoice;
use crate::config::SimError;

/// From the rule of SGLang's and SMG's routers, with their default values: share of the prompt that
/// a cached prefix must exceed for the prefix to decide.
const MATCH_SHARE: f32 = 0.3;
/// In the same rule, a fleet is unbalanced if the highest load exceeds the lowest by more than this
/// number of requests and by more than the factor `MORE_TIMES`.
const MORE_BY: f32 = 64.0;
/// Factor between the highest and the lowest load; see `MORE_BY`.
const MORE_TIMES: f32 = 1.5;

#[derive(Debug)]
pub(super) enum Policy {
    Profile(Profile),
    /// The rule of SGLang's and SMG's routers: the replica with the longest cached prefix, or, if
    /// that is short, the one with the smallest prefix tree; in an unbalanced fleet, the one with
    /// the least load.
    CacheAware,
    Oracle,
}

/// Inputs of a decision.
pub(super) struct Decision<'a> {
    pub(super) view: &'a [Replica],
    pub(super) cached: &'a [f32],
    pub(super) unknown: Option<Unknown>,
    pub(super) caches: &'a [CacheState],
    pub(super) links_sent: &'a [usize],
    pub(super) prompt_tokens: f32,
    pub(super) ticket: u64,
}

impl Policy {
    pub(super) fn new(choice: PolicyChoice) -> Result<Self, SimError> {
        Ok(match choice {
            PolicyChoice::Profile(spec) => {
                let profile = Profile::new(spec);
                Self::Profile(profile.map_err(|error| SimError::Config(error.to_string()))?)
            }
            PolicyChoice::CacheAware => Self::CacheAware,
            PolicyChoice::Oracle => Self::Oracle,
        })
    }

    /// Index of the chosen replica. `outlooks` is called for the oracle alone.
    pub(super) fn choose(
        &self,
        asked: &Decision<'_>,
        outlooks: impl FnOnce() -> Vec<oracle::Outlook>,
    ) -> Result<usize, SimError> {
        match self {
            Self::Profile(profile) => {
                let request = Request {
                    prompt_tokens: asked.prompt_tokens,
                    cached_tokens: asked.cached,
                    unknown: asked.unknown,
                    caches: asked.caches,
                    ticket: asked.ticket,
                    ..Request::default()
                };
                let decision = pick(profile, &request, asked.view);
                let decision = decision.map_err(|error| SimError::Config(error.to_string()))?;
                Ok(decision.first().place)
            }
            Self::CacheAware => Ok(cache_aware(asked)),
            Self::Oracle => Ok(oracle::best(&outlooks())),
        }
    }
}

fn cache_aware(asked: &Decision<'_>) -> usize {
    let load = |at: &usize| asked.view[*at].waiting + asked.view[*at].running;
    let places = 0..asked.view.len();
    let loads: Vec<f32> = places.clone().map(|at| load(&at)).collect();
    let least = loads.iter().copied().fold(f32::INFINITY, f32::min);
    let most = loads.iter().copied().fold(0.0, f32::max);
    let by_load = |a: &usize, b: &usize| load(a).total_cmp(&load(b));
    if most - least > MORE_BY && most > MORE_TIMES * least {
        return places.min_by(by_load).unwrap_or(0);
    }
    let cached = |at: &usize| asked.cached[*at];
    let longest = places.clone().max_by(|a, b| {
        let longer = cached(a).total_cmp(&cached(b));
        longer.then_with(|| by_load(b, a))
    });
    match longest {
        Some(at) if cached(&at) > MATCH_SHARE * asked.prompt_tokens => at,
        _ => places.min_by_key(|at| asked.links_sent[*at]).unwrap_or(0),
    }
}
