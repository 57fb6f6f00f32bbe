//! Fleets and requests at random.
#![allow(dead_code)] // each test file uses its share

use penstock_routing::{CacheState, Condition, Pace, Replica, ReplicaId, Request, Slo, Unknown};
use proptest::prelude::*;

/// What a [`Request`] borrows.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) prompt_tokens: f32,
    pub(crate) cached: Vec<f32>,
    pub(crate) caches: Vec<CacheState>,
    pub(crate) priority: i32,
    pub(crate) slo: Slo,
    pub(crate) unknown: Option<Unknown>,
    pub(crate) session: Option<u64>,
    pub(crate) adapter: Option<String>,
    pub(crate) tried: Vec<ReplicaId>,
    pub(crate) subset: Option<Vec<ReplicaId>>,
    pub(crate) ticket: u64,
}

impl Asked {
    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: &self.cached,
            caches: &self.caches,
            priority: self.priority,
            slo: self.slo,
            unknown: self.unknown,
            session: self.session,
            adapter: self.adapter.as_deref(),
            tried: &self.tried,
            subset: self.subset.as_deref(),
            ticket: self.ticket,
        }
    }
}

/// Numbers that no replica should report.
pub(crate) fn hostile() -> BoxedStrategy<f32> {
    prop_oneof![
        Just(f32::NAN),
        Just(f32::INFINITY),
        Just(f32::NEG_INFINITY),
        Just(-1.0),
        Just(f32::MAX),
        Just(f32::MIN_POSITIVE),
        Just(0.0),
        0.0..1e6f32,
        any::<f32>(),
    ]
    .boxed()
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        8 => Just(Condition::Ready),
        1 => Just(Condition::Warming(0.0)),
        1 => Just(Condition::Warming(1.0)),
        1 => Just(Condition::Draining),
        1 => Just(Condition::Ejected),
        1 => Just(Condition::Unhealthy),
    ]
}

/// A replica with numbers from `number`, tame or hostile.
fn replica<S: Strategy<Value = f32> + Clone + 'static>(
    id: u32,
    number: S,
) -> impl Strategy<Value = Replica> {
    let numbers = prop::collection::vec(number, 7);
    let adapters = prop::collection::vec(prop::sample::select(vec!["sql", "law", "art"]), 0..3);
    (numbers, condition(), adapters, 0u32..4, any::<bool>()).prop_map(
        move |(n, condition, adapters, max_adapters, labelled)| Replica {
            condition,
            waiting: n[0],
            running: n[1],
            kv_use: n[2] / 100.0,
            backlog_tokens: n[3] * 50.0,
            pace: Pace {
                prefill_tokens_per_s: n[4] * 100.0,
                decode_s: n[5] / 1000.0,
                decode_s_per_sequence: n[6] / 10_000.0,
            },
            adapters: adapters.into_iter().map(Into::into).collect(),
            max_adapters,
            labels: match labelled {
                true => [("zone".into(), "a".into())].into(),
                false => [].into(),
            },
            ..Replica::new(ReplicaId(id), format!("r{id}:80"))
        },
    )
}

/// Up to seven replicas.
pub(crate) fn fleet<S: Strategy<Value = f32> + Clone + 'static>(
    number: S,
) -> impl Strategy<Value = Vec<Replica>> {
    (0u32..8).prop_flat_map(move |many| {
        (0..many)
            .map(|id| replica(id * 3 + 1, number.clone()).boxed())
            .collect::<Vec<_>>()
    })
}

/// A request; ids are those of [`fleet`].
pub(crate) fn asked<S: Strategy<Value = f32> + Clone + 'static>(
    number: S,
) -> impl Strategy<Value = Asked> {
    let ids = || prop::collection::vec((0u32..8).prop_map(|n| ReplicaId(n * 3 + 1)), 0..8);
    let adapter = prop::option::of(prop::sample::select(vec!["sql", "law", "art"]));
    let cache = (number.clone(), number.clone()).prop_map(|(fill, regret)| CacheState {
        fill: fill / 100.0,
        regret: regret / 100.0,
    });
    let caches = prop::collection::vec(cache, 0..8);
    let seconds = || prop::option::of(number.clone());
    let slo = (seconds(), seconds()).prop_map(|(ttft, tpot)| Slo {
        ttft_s: ttft.map(|value| value / 10.0),
        tpot_s: tpot.map(|value| value / 1000.0),
    });
    let policy = (caches, -2..3i32, slo);
    let unknown =
        (any::<u64>(), number.clone(), number.clone()).prop_map(|(key, tokens, others)| Unknown {
            key,
            tokens,
            others,
        });
    (
        number.clone(),
        prop::collection::vec(number, 0..8),
        prop::option::of(unknown),
        prop::option::of(any::<u64>()),
        adapter,
        ids(),
        prop::option::weighted(0.3, ids()),
        any::<u64>(),
        policy,
    )
        .prop_map(
            |(tokens, cached, unknown, session, adapter, tried, subset, ticket, policy)| Asked {
                caches: policy.0,
                priority: policy.1,
                slo: policy.2,
                prompt_tokens: tokens * 80.0,
                cached: cached.into_iter().map(|tokens| tokens * 80.0).collect(),
                unknown,
                session,
                adapter: adapter.map(str::to_owned),
                tried: tried.into_iter().take(3).collect(),
                subset,
                ticket,
            },
        )
}
