//! Maps the model names in requests to pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use penstock_api_types::ApiError;
use penstock_routing::Unroutable;

use crate::config::ModelRule;
use crate::pool::Pool;

/// `Retry-After` header in seconds, for errors that a retry may avoid.
pub(crate) const RETRY_AFTER: u32 = 1;

/// The rules and pools currently used; a reload replaces both as a whole.
#[derive(Debug)]
pub(crate) struct Models(ArcSwap<Known>);

#[derive(Debug)]
struct Known {
    rules: Vec<Rule>,
    pools: Arc<[Arc<Pool>]>,
}

#[derive(Debug)]
struct Rule {
    name: String,
    targets: Vec<Target>,
    priority: i32,
    /// Number of requests for which a target was drawn.
    drawn: AtomicU64,
}

#[derive(Debug)]
struct Target {
    pool: Arc<Pool>,
    model: Option<String>,
    weight: u32,
}

/// Destination of a request.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) pool: Arc<Pool>,
    /// The model's name in the pool, if it differs from that in the request.
    pub(crate) renamed: Option<String>,
    /// The default priority, for requests without an objective.
    pub(crate) priority: i32,
}

impl Destination {
    /// The error that the client gets if no replica can take the request.
    pub(crate) fn unroutable(&self, none: Unroutable) -> ApiError {
        let pool = &self.pool.name;
        ApiError::unavailable(format!("Pool {pool}: {none}."), RETRY_AFTER)
    }
}

/// Whether `only`, the name of a pool, permits `pool`. `None` permits all pools.
pub(crate) fn is_in(pool: &Pool, only: Option<&str>) -> bool {
    only.is_none_or(|only| *pool.name == *only)
}

impl Models {
    /// `rules` must only name existing pools.
    pub(crate) fn new(rules: &[ModelRule], pools: Vec<Arc<Pool>>) -> Self {
        Self(ArcSwap::from_pointee(Known::new(rules, pools)))
    }

    /// Replaces rules and pools. Requests that have already been routed are unaffected.
    pub(crate) fn replace(&self, rules: &[ModelRule], pools: Vec<Arc<Pool>>) {
        self.0.store(Arc::new(Known::new(rules, pools)));
    }

    pub(crate) fn pools(&self) -> Arc<[Arc<Pool>]> {
        self.0.load().pools.clone()
    }

    /// Finds the destination of a request for `model`, in this order: a rule of that name, a pool
    /// with a replica that lists the model, a pool with a replica that lists no models, the rule
    /// `*`. `None` if nothing matches. A request without a model is sent to the first pool. `only`
    /// limits the search to one pool.
    pub(crate) fn destination(
        &self,
        model: Option<&str>,
        only: Option<&str>,
    ) -> Option<Destination> {
        self.0.load().destination(model.unwrap_or_default(), only)
    }

    /// The model names that requests may use: the names of rules, and the models that replicas
    /// list. `only` limits them to one pool.
    pub(crate) fn names(&self, only: Option<&str>) -> Vec<String> {
        self.0.load().names(only)
    }
}

impl Known {
    fn new(rules: &[ModelRule], pools: Vec<Arc<Pool>>) -> Self {
        let find = |name: &str| pools.iter().find(|pool| *pool.name == *name).cloned();
        let rule = |rule: &ModelRule| Rule {
            name: rule.name.clone(),
            priority: rule.priority,
            drawn: AtomicU64::new(0),
            targets: rule
                .targets
                .iter()
                .filter_map(|target| {
                    Some(Target {
                        pool: find(&target.pool)?,
                        model: target.model.clone(),
                        weight: target.weight,
                    })
                })
                .collect(),
        };
        Self {
            rules: rules.iter().map(rule).collect(),
            pools: pools.into(),
        }
    }

    fn destination(&self, name: &str, only: Option<&str>) -> Option<Destination> {
        let rule = |name: &str| self.rules.iter().find(|rule| rule.name == name);
        if let Some(rule) = rule(name) {
            return rule.draw(only);
        }
        let mut pools = self.pools.iter().filter(|pool| is_in(pool, only));
        let found = match name {
            "" => pools.next(),
            _ => serving(pools, name),
        };
        match found {
            Some(pool) => Some(Destination {
                pool: pool.clone(),
                renamed: None,
                priority: 0,
            }),
            None => rule("*").and_then(|rule| rule.draw(only)),
        }
    }

    fn names(&self, only: Option<&str>) -> Vec<String> {
        let here = |rule: &&Rule| rule.targets.iter().any(|target| is_in(&target.pool, only));
        let exact = self.rules.iter().filter(here);
        let exact = exact.map(|rule| rule.name.clone());
        let mut names: Vec<String> = exact.filter(|name| name != "*").collect();
        for pool in self.pools.iter().filter(|pool| is_in(pool, only)) {
            let view = pool.fleet.view();
            for place in 0..view.replicas.len() {
                let listed = view.models(place).unwrap_or_default();
                names.extend(listed.iter().map(ToString::to_string));
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The first pool with a replica that lists `model`, else the first one whose models are unknown.
fn serving<'a>(pools: impl Iterator<Item = &'a Arc<Pool>>, model: &str) -> Option<&'a Arc<Pool>> {
    let mut unsure = None;
    for pool in pools {
        match pool.serves(model) {
            Some(true) => return Some(pool),
            Some(false) => {}
            None => unsure = unsure.or(Some(pool)),
        }
    }
    unsure
}

impl Rule {
    /// Draws a target by weight. In a cycle of as many draws as the sum of the weights, each target
    /// is drawn as often as its weight, spread over the cycle.
    fn draw(&self, only: Option<&str>) -> Option<Destination> {
        let targets = || self.targets.iter().filter(|one| is_in(&one.pool, only));
        let total: u64 = targets().map(|one| u64::from(one.weight)).sum();
        // with a step coprime to the total, a cycle visits each number below the total once
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut left = number.wrapping_mul(coprime(total)) % total.max(1);
        let chosen = targets().find(|target| {
            let here = left < u64::from(target.weight);
            left = left.saturating_sub(u64::from(target.weight));
            here
        })?;
        Some(Destination {
            pool: chosen.pool.clone(),
            renamed: chosen.model.clone(),
            priority: self.priority,
        })
    }
}

/// A number coprime to `total` and near 0.618 * `total` (the golden section), which spreads the
/// draws evenly.
fn coprime(total: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = ((total as f64 * 0.618) as u64).max(1);
    (start..).find(|step| gcd(*step, total) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_run_is_drawn_once() {
        for total in [1u64, 2, 7, 10, 100, 1000] {
            let step = coprime(total);
            let mut seen: Vec<u64> = (0..total).map(|n| n * step % total).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..total), "{total}");
        }
    }
}
