//! What a gateway knows of its replicas: metrics of the last poll, its own requests in flight, an
//! index of the prefixes that it sent, and the pace that it measured.

use std::collections::HashMap;

use penstock_prefix::PrefixIndex;
use penstock_routing::{Replica, ReplicaId};

use super::meter::PaceMeter;

/// Metrics of one replica.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Metrics {
    pub(super) waiting: f32,
    pub(super) running: f32,
    pub(super) kv_use: f32,
}

/// A request that was sent and has not ended.
#[derive(Debug)]
struct Flight {
    replica: usize,
    sent: f64,
    prompt_tokens: f32,
    /// Tokens to compute, as far as the gateway can tell.
    uncached: f32,
    /// Those, and the ones before them when it was sent.
    ahead: f32,
    first: Option<f64>,
    /// Sequences that decoded when its first token came.
    beside: f32,
}

#[derive(Debug, Default)]
struct Known {
    polled: Metrics,
    /// Own requests in flight when it was polled, and those without a first token.
    own_then: f32,
    pending_then: f32,
    /// Prompt tokens sent since, less those of requests that ended.
    tokens_since_poll: f32,
    /// Requests without a first token, oldest first.
    pending: Vec<usize>,
    decoding: f32,
    /// When the replica began the oldest of `pending`, at the earliest.
    head_since: f64,
    meter: PaceMeter,
    capacity_tokens: f32,
    links_sent: usize,
}

/// One gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    known: Vec<Known>,
    flights: HashMap<usize, Flight>,
    index: PrefixIndex,
    holders: Vec<u32>,
    block_tokens: f32,
    reservations: bool,
}

impl Gateway {
    /// `capacities`: tokens of each replica's KV pool.
    pub(super) fn new(capacities: &[f32], block_tokens: u32, reservations: bool) -> Self {
        let known = capacities.iter().map(|capacity| Known {
            capacity_tokens: *capacity,
            ..Known::default()
        });
        Self {
            known: known.collect(),
            flights: HashMap::new(),
            index: PrefixIndex::default(),
            holders: (0..capacities.len() as u32).collect(),
            block_tokens: block_tokens as f32,
            reservations,
        }
    }

    /// Tokens of a prompt with these links that each replica is believed to have.
    pub(super) fn cached(&self, links: &[u64], prompt_tokens: f32) -> Vec<f32> {
        let matched = self.index.matches(links, &self.holders);
        let tokens = |links: &usize| (*links as f32 * self.block_tokens).min(prompt_tokens);
        matched.iter().map(tokens).collect()
    }

    /// New links that were ever sent to each replica: a tree as large as SMG's forgets none.
    pub(super) fn links_sent(&self) -> Vec<usize> {
        self.known.iter().map(|known| known.links_sent).collect()
    }

    /// Replicas as routing sees them now.
    pub(super) fn view(&self, now: f64) -> Vec<Replica> {
        let replica = |(at, known): (usize, &Known)| {
            let seen = match self.reservations {
                true => known.with_reservations(),
                false => known.polled,
            };
            Replica {
                waiting: seen.waiting,
                running: seen.running,
                kv_use: seen.kv_use,
                backlog_tokens: self.backlog(known, now),
                pace: known.meter.pace(),
                ..Replica::new(ReplicaId(at as u32), format!("replica-{at}"))
            }
        };
        self.known.iter().enumerate().map(replica).collect()
    }

    /// Prompt tokens that were sent and are not computed. The first prompt in line is computed
    /// since the one before it was done, at the pace that was measured.
    fn backlog(&self, known: &Known, now: f64) -> f32 {
        let uncached = |id: &usize| self.flights.get(id).map_or(0.0, |flight| flight.uncached);
        let tokens: f32 = known.pending.iter().map(uncached).sum();
        let head = known.pending.first().map_or(0.0, uncached);
        let rate = known.meter.pace().prefill_tokens_per_s;
        let done = (now - known.head_since).max(0.0) as f32 * rate;
        tokens - done.min(head)
    }

    /// Notes a request that is sent.
    pub(super) fn sent(&mut self, id: usize, to: usize, links: &[u64], prompt: f32, now: f64) {
        let matched = self.index.matches(links, &[to as u32])[0];
        let uncached = (prompt - matched as f32 * self.block_tokens).max(1.0);
        let ahead = self.backlog(&self.known[to], now) + uncached;
        let known = &mut self.known[to];
        let capacity = (known.capacity_tokens / self.block_tokens) as usize;
        self.index.insert(to as u32, links, capacity);
        if known.pending.is_empty() {
            known.head_since = now;
        }
        known.pending.push(id);
        known.tokens_since_poll += prompt;
        known.links_sent += links.len() - matched;
        let flight = Flight {
            replica: to,
            sent: now,
            prompt_tokens: prompt,
            uncached,
            ahead,
            first: None,
            beside: 0.0,
        };
        self.flights.insert(id, flight);
    }

    /// Notes a first token.
    pub(super) fn first_token(&mut self, id: usize, now: f64) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let known = &mut self.known[flight.replica];
        known.pending.retain(|one| *one != id);
        known.decoding += 1.0;
        known.head_since = now;
        let step = known.meter.pace().decode_s as f64;
        let seconds = (now - flight.sent - step).max(0.0);
        known.meter.first_token(flight.ahead, seconds as f32);
        flight.first = Some(now);
        flight.beside = known.decoding;
    }

    /// Notes the end of an answer of so many tokens.
    pub(super) fn ended(&mut self, id: usize, tokens: u32, now: f64) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        let known = &mut self.known[flight.replica];
        known.tokens_since_poll -= flight.prompt_tokens;
        let Some(first) = flight.first else {
            known.pending.retain(|one| *one != id);
            return;
        };
        if tokens > 1 {
            let seconds = (now - first) / f64::from(tokens - 1);
            let beside = (flight.beside + known.decoding) / 2.0;
            known.meter.answer(seconds as f32, beside);
        }
        known.decoding -= 1.0;
    }

    /// Notes what a replica reports.
    pub(super) fn polled(&mut self, replica: usize, metrics: Metrics) {
        let known = &mut self.known[replica];
        known.polled = metrics;
        known.own_then = known.own();
        known.pending_then = known.pending.len() as f32;
        known.tokens_since_poll = 0.0;
    }
}

impl Known {
    fn own(&self) -> f32 {
        self.pending.len() as f32 + self.decoding
    }

    /// Load now, as `crates/fleet` reckons it: requests of others as of the poll, own ones as of
    /// now. An own request without its first token waits, unless the poll showed that as many ran.
    fn with_reservations(&self) -> Metrics {
        let (pending, polled) = (self.pending.len() as f32, &self.polled);
        let foreign = (polled.waiting + polled.running - self.own_then).max(0.0);
        let foreign_waiting = (polled.waiting - self.pending_then).clamp(0.0, foreign);
        let began = self.pending_then - polled.waiting.min(self.pending_then);
        let waiting = foreign_waiting + (pending - began).max(0.0);
        let since = self.tokens_since_poll / self.capacity_tokens.max(1.0);
        Metrics {
            waiting,
            running: foreign + self.own() - waiting,
            kv_use: (polled.kv_use + since).clamp(0.0, 1.0),
        }
    }
}
