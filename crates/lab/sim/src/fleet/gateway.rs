//! The gateway in a replay: a real gateway's fleet in virtual time, and an index of the prefixes
//! that it has sent to each replica.

use std::collections::HashMap;
use std::time::Duration;

use penstock_fleet::{InFlight, Outcome, Reported, Settings, VirtualFleet};
use penstock_prefix::PrefixIndex;
use penstock_routing::{CacheState, Replica, ReplicaId, Unknown};

/// A gateway. The ids of its replicas start at 0.
#[derive(Debug)]
pub(super) struct Gateway {
    fleet: VirtualFleet,
    /// Requests in flight, by their number.
    open: HashMap<usize, InFlight>,
    index: PrefixIndex,
    holders: Vec<u32>,
    /// Capacity of each replica's KV pool in tokens.
    capacities: Vec<f32>,
    links_sent: Vec<usize>,
    block_tokens: f32,
    /// The last report of each replica, if the gateway uses only metrics and no reservations.
    metrics_alone: Option<Vec<Reported>>,
}

impl Gateway {
    /// `capacities` are the sizes of the replicas' KV pools in tokens. A report is used at least
    /// until its age reaches `stale`.
    pub(super) fn new(
        capacities: Vec<f32>,
        block_tokens: u32,
        reservations: bool,
        stale: Duration,
    ) -> Self {
        let mut settings = Settings::default();
        settings.metrics.stale_s = settings.metrics.stale_s.max(stale.as_secs_f64());
        let replicas = capacities.len();
        Self {
            fleet: VirtualFleet::new(replicas, settings),
            open: HashMap::new(),
            index: PrefixIndex::default(),
            holders: (0..replicas as u32).collect(),
            capacities,
            links_sent: vec![0; replicas],
            block_tokens: block_tokens as f32,
            metrics_alone: (!reservations).then(|| vec![Reported::default(); replicas]),
        }
    }

    /// Number of tokens that each replica is estimated to have cached, of a prompt with these links
    /// (hashes of its prefixes); and the part of the prompt that no replica has.
    pub(super) fn cached(&self, links: &[u64], prompt_tokens: f32) -> (Vec<f32>, Option<Unknown>) {
        let matched = self.index.matches(links, &self.holders);
        let tokens = |links: usize| (links as f32 * self.block_tokens).min(prompt_tokens);
        let known = matched.iter().copied().max().unwrap_or(0);
        let unknown = links.get(known).map(|link| Unknown {
            key: *link,
            tokens: prompt_tokens - tokens(known),
            others: self.fleet.fleet().others(),
        });
        (matched.into_iter().map(tokens).collect(), unknown)
    }

    /// Estimated state of each replica's prefix cache.
    pub(super) fn caches(&self) -> Vec<CacheState> {
        let one = |(holder, tokens): (&u32, &f32)| CacheState {
            fill: self.index.len_of(*holder) as f32 * self.block_tokens / tokens,
            regret: self.index.regret(*holder),
        };
        self.holders.iter().zip(&self.capacities).map(one).collect()
    }

    /// Number of new links that have ever been sent to each replica; SMG's tree at its default size
    /// forgets none.
    pub(super) fn links_sent(&self) -> &[usize] {
        &self.links_sent
    }

    pub(super) fn advance(&mut self, now: Duration) {
        self.fleet.advance(now);
    }

    /// The replicas' current state as routing uses it.
    pub(super) fn view(&self) -> Vec<Replica> {
        let mut replicas = self.fleet.fleet().view().replicas;
        let reported = self.metrics_alone.iter().flatten();
        for (replica, reported) in replicas.iter_mut().zip(reported) {
            replica.waiting = reported.waiting;
            replica.running = reported.running;
            replica.kv_use = reported.kv_use.unwrap_or(0.0);
        }
        replicas
    }

    /// Records that a request was sent to replica `to`.
    pub(super) fn sent(&mut self, id: usize, to: usize, links: &[u64], prompt: f32) {
        let matched = self.index.matches(links, &[to as u32])[0];
        let uncached = (prompt - matched as f32 * self.block_tokens).max(1.0);
        let capacity = (self.capacities[to] / self.block_tokens) as usize;
        self.index.insert(to as u32, links, capacity);
        self.links_sent[to] += links.len() - matched;
        let replica = ReplicaId(to as u32);
        let in_flight = self.fleet.fleet().begin(replica, uncached, prompt);
        self.open.insert(id, in_flight);
    }

    /// Records `count` output tokens of a request.
    pub(super) fn tokens(&mut self, id: usize, count: u32) {
        if let Some(in_flight) = self.open.get_mut(&id) {
            in_flight.first_token();
            in_flight.tokens(count);
        }
    }

    /// Records the end of a request's answer.
    pub(super) fn ended(&mut self, id: usize) {
        if let Some(in_flight) = self.open.remove(&id) {
            in_flight.end(Outcome::Served);
        }
    }

    /// Records a report of a replica.
    pub(super) fn polled(&mut self, replica: usize, reported: Reported) {
        if let Some(last) = &mut self.metrics_alone {
            last[replica] = reported.clone();
        }
        self.fleet.report(ReplicaId(replica as u32), reported);
    }
}
