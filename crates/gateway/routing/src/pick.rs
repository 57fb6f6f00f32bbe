//! [`pick`]: filters the replicas, scores the rest and ranks them.

use crate::decision::{Decision, Ranked, Removed, Unroutable};
use crate::filters::in_condition;
use crate::home::home;
use crate::load::amount;
use crate::scorers::Candidate;
use crate::{Profile, Replica, Request};

/// Share of a prompt's unknown tokens that is assumed to be cached at its home replica if all of
/// the replicas' load comes from other gateways. Scaled down with the other gateways' share. Tuned
/// by replay.
const AT_HOME: f32 = 0.4;

/// Ranks the replicas that can take `request`.
///
/// # Errors
/// [`Unroutable`] if no replica can.
pub fn pick(
    profile: &Profile,
    request: &Request<'_>,
    replicas: &[Replica],
) -> Result<Decision, Unroutable> {
    let request = &Request {
        prompt_tokens: amount(request.prompt_tokens),
        ..*request
    };
    let mut removed = Vec::new();
    let mut candidates = allowed(request, replicas, &mut removed)?;
    for filter in &profile.filters {
        let keeps = |one: &Candidate<'_>| filter.keeps(request, one);
        if candidates.iter().any(keeps) {
            take_out(&mut candidates, &mut removed, filter.name(), keeps);
        }
    }
    expect_at_home(request, &mut candidates);
    let scores: Vec<Vec<f32>> = profile
        .scorers
        .iter()
        .map(|(scorer, _)| scorer.score(request, &candidates))
        .collect();
    let parts = |at: usize| {
        let columns = profile.scorers.iter().zip(&scores);
        columns.map(move |((scorer, weight), column)| (scorer.name(), column[at], *weight))
    };
    let totals: Vec<f32> = (0..candidates.len())
        .map(|at| parts(at).map(|(_, score, weight)| score * weight).sum())
        .collect();
    let order = profile.picker.rank(&totals, request.ticket);
    let ranked = order.into_iter().map(|at| Ranked {
        replica: candidates[at].replica.id,
        address: candidates[at].replica.address.clone(),
        place: candidates[at].place,
        total: totals[at],
        parts: parts(at).collect(),
        load: candidates[at].load,
        cached_tokens: candidates[at].cached_tokens,
    });
    Ok(Decision {
        ranked: ranked.collect(),
        removed,
        prompt_tokens: request.prompt_tokens,
        picker: profile.picker,
    })
}

/// Replicas that are healthy, in the request's subset and not tried yet. Two fallbacks: if all
/// healthy replicas of the subset are ejected, returns the ejected ones; if all are in a slow start
/// and none accepts the request's ticket, returns all of them.
fn allowed<'a>(
    request: &Request<'_>,
    replicas: &'a [Replica],
    removed: &mut Vec<Removed>,
) -> Result<Vec<Candidate<'a>>, Unroutable> {
    let cached = |place: usize| {
        let tokens = request.cached_tokens.get(place).copied().unwrap_or(0.0);
        // NaN counts as 0 cached tokens.
        tokens.max(0.0).min(request.prompt_tokens)
    };
    let mut left: Vec<Candidate<'a>> = replicas
        .iter()
        .enumerate()
        .map(|(place, replica)| Candidate::new(replica, place, cached(place)))
        .collect();
    if left.is_empty() {
        return Err(Unroutable::Empty);
    }
    let asked = |one: &Candidate<'_>| {
        let subset = request.subset;
        subset.is_none_or(|subset| subset.contains(&one.replica.id))
    };
    let mut asked_for = left.iter().filter(|one| asked(one));
    let one_takes = asked_for.any(|one| one.replica.condition.takes_requests());
    take_out(&mut left, removed, "condition", |one| {
        one.replica.condition.takes_beside(one_takes || !asked(one))
    });
    if left.is_empty() {
        return Err(Unroutable::Unhealthy);
    }
    if let Some(subset) = request.subset {
        take_out(&mut left, removed, "subset", |one| {
            subset.contains(&one.replica.id)
        });
        if left.is_empty() {
            return Err(Unroutable::Subset);
        }
    }
    take_out(&mut left, removed, "tried", |one| {
        !request.tried.contains(&one.replica.id)
    });
    if left.is_empty() {
        return Err(Unroutable::Tried);
    }
    let now = |one: &Candidate<'_>| in_condition(request, one.replica);
    if left.iter().any(now) {
        take_out(&mut left, removed, "warming", now);
    }
    Ok(left)
}

fn take_out<'a>(
    candidates: &mut Vec<Candidate<'a>>,
    removed: &mut Vec<Removed>,
    name: &'static str,
    keeps: impl Fn(&Candidate<'a>) -> bool,
) {
    candidates.retain(|one| {
        let kept = keeps(one);
        if !kept {
            removed.push(Removed {
                replica: one.replica.id,
                filter: name,
                condition: one.replica.condition,
            });
        }
        kept
    });
}

/// Counts a share of the prompt's unknown tokens as cached at the prompt's home replica, because
/// another gateway may have sent the same prompt to it.
fn expect_at_home(request: &Request<'_>, candidates: &mut [Candidate<'_>]) {
    let Some(unknown) = request.unknown else {
        return;
    };
    let addresses = candidates.iter().map(Candidate::address);
    if let Some(at) = home(unknown.key, addresses) {
        let one = &mut candidates[at];
        let room = request.prompt_tokens - one.cached_tokens;
        let others = match unknown.others > 0.0 {
            true => unknown.others.min(1.0),
            false => 0.0,
        };
        one.cached_tokens += AT_HOME * others * unknown.tokens.max(0.0).min(room);
    }
}
