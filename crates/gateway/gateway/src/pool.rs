//! A pool: a fleet of replicas, the profile that picks a replica, and an estimate of the contents
//! of the replicas' prefix caches.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use penstock_fleet::{Fleet, InFlight, Outcome, View};
use penstock_http::{Client, OpenSpan};
use penstock_prefix::{PrefixIndex, TEXT_UNIT};
use penstock_routing::{
    CacheState, Condition, Decision, Profile, ReplicaId, Request, Slo, Unknown, Unroutable, pick,
};

use crate::choice::Choice;
use crate::config::PoolConfig;
use crate::error::StartError;
use crate::exact::{Exact, TokensByTier};
use crate::flow::FlowControl;
use crate::hedge::Hedging;
use crate::mirror::Mirror;

/// Initial estimate of the bytes of a prompt's text per token.
const USUAL_BYTES: f32 = 4.0;
/// Initial estimate of a response's output tokens per second.
const USUAL_RATE: f32 = 40.0;
/// Minimum number of output tokens for a measurement of the rate: prefill dominates the time of
/// shorter responses.
const RATED_TOKENS: u32 = 8;
/// Minimum weight of a new sample in the running mean of the bytes per token. Fixed weight of a new
/// sample in the running mean of the output rate.
const MEAN_WEIGHT: f32 = 1.0 / 32.0;
const RATE_WEIGHT: f32 = 1.0 / 8.0;
/// Default KV capacity in tokens, for replicas that do not report theirs.
const USUAL_KV_TOKENS: f32 = 2e6;
/// Interval at which the health of the replica is checked while a request waits for its response.
const HEALTH_TICK: Duration = Duration::from_millis(500);

/// The properties of a prompt that routing uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    /// Hashes of the prompt's prefixes, from `penstock_prefix::text_chain`.
    pub(crate) chain: Vec<u64>,
    pub(crate) bytes: usize,
    /// Token ids if the pool has a tokenizer, otherwise empty.
    pub(crate) tokens: Vec<u32>,
    /// Whether the prompt has a cache salt: equal tokens then do not imply a shared prefix.
    pub(crate) salted: bool,
    /// Hash of the session id, if the request has one.
    pub(crate) session: Option<u64>,
    /// Priority of the request's class: above 0 critical, below 0 sheddable.
    pub(crate) priority: i32,
    /// Latency targets from the request's headers.
    pub(crate) slo: Slo,
    /// Addresses of the only eligible replicas; `None`: all.
    pub(crate) subset: Option<Vec<String>>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: Arc<str>,
    pub(crate) fleet: Fleet,
    pub(crate) flow: Arc<FlowControl>,
    pub(crate) hedging: Hedging,
    pub(crate) mirror: Arc<Mirror>,
    profile: ArcSwap<Profile>,
    index: Mutex<Index>,
    pub(crate) exact: Option<Exact>,
    /// Running mean of the bytes of prompt per token, as the bits of an f32.
    bytes_per_token: AtomicU32,
    /// Number of responses in the mean of the bytes per token.
    learned: AtomicU64,
    /// Running mean of a response's output tokens per second, as the bits of an f32.
    rate: AtomicU32,
    tickets: AtomicU64,
    pub(crate) expected: Expected,
}

/// Sums over routed requests: prompt tokens, and the part of them that was estimated to be cached
/// at the chosen replicas. A comparison with the engines' counters of cache hits shows how accurate
/// the estimates are.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    prompt: AtomicU64,
    cached: AtomicU64,
}

impl Expected {
    fn add(&self, prompt: f32, cached: f32) {
        self.prompt.fetch_add(prompt as u64, Ordering::Relaxed);
        self.cached.fetch_add(cached as u64, Ordering::Relaxed);
    }

    /// Sum of the prompt tokens, and of those estimated to be cached.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let read = |one: &AtomicU64| one.load(Ordering::Relaxed);
        (read(&self.prompt), read(&self.cached))
    }
}

#[derive(Debug, Default)]
struct Index {
    prefixes: PrefixIndex,
    /// Replicas in the index, each with its number of restarts.
    replicas: Vec<(ReplicaId, u32)>,
}

/// Estimated contents of the replicas' caches, by position in the view.
#[derive(Debug, Default)]
struct PrefixEstimate {
    /// Number of the prompt's tokens that each replica has cached.
    cached: Vec<f32>,
    caches: Vec<CacheState>,
    /// The first hash of the prompt's chain that no replica has cached.
    unknown: Option<u64>,
}

/// Capacity of the cache of the replica at `place`, in hashes of a chain.
fn capacity(view: &View, place: usize, unit_tokens: f32) -> f32 {
    let tokens = view.kv_tokens(place).unwrap_or(USUAL_KV_TOKENS);
    (tokens / unit_tokens).max(1.0)
}

/// A replica picked for a request, with its reservation.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) choice: Arc<Choice>,
    /// The replica's short name.
    pub(crate) name: Arc<str>,
    /// `http://host:port`
    pub(crate) url: Arc<str>,
    pub(crate) in_flight: InFlight,
    /// Trace span of the attempt at the replica, if the trace is exported.
    pub(crate) span: Option<OpenSpan>,
}

impl Routed {
    /// `host:port` of the replica.
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.choice.decision.first().address
    }

    /// Marks the attempt's trace span as failed, unless the request was served.
    pub(crate) fn mark(&mut self, outcome: Outcome) {
        if let Some(span) = self.span.as_mut().filter(|_| outcome != Outcome::Served) {
            span.fail(outcome.word());
        }
    }
}

/// A routing decision and its inputs.
#[derive(Debug)]
pub(crate) struct RoutingTrace {
    pub(crate) view: View,
    /// Tokens of the prompt; and for each replica, by position in the view, how many of them are
    /// estimated to be cached. Missing entries are 0.
    pub(crate) prompt_tokens: f32,
    pub(crate) cached: Vec<f32>,
    pub(crate) caches: Vec<CacheState>,
    /// Per replica, the cached tokens of the prompt according to its KV events; empty if the pool
    /// does not follow KV events.
    pub(crate) held: Vec<Option<TokensByTier>>,
    /// Number of tokens that one hash of the prompt's chain covers.
    unit_tokens: f32,
    pub(crate) decision: Result<Decision, Unroutable>,
}

impl Pool {
    /// Starts the pool's fleet, on the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]
    pub(crate) fn start(config: &PoolConfig, client: Client) -> Result<Self, StartError> {
        let profile = profile(config)?;
        let fleet = Fleet::start(config.source.clone(), config.fleet.clone(), client);
        let fleet = fleet.map_err(|source| StartError::Fleet {
            pool: config.name.clone(),
            source,
        })?;
        let exact = Exact::of(config, fleet.clone());
        let exact = exact.map_err(|reason| {
            let pool = &config.name;
            StartError::Config(format!("pool {pool:?}: {reason}"))
        })?;
        Ok(Self {
            name: config.name.as_str().into(),
            flow: FlowControl::new(config.flow, fleet.clone()),
            hedging: Hedging::new(config.hedge),
            mirror: Mirror::new(config.mirror.clone()),
            fleet,
            profile: ArcSwap::from_pointee(profile),
            index: Mutex::default(),
            exact,
            bytes_per_token: AtomicU32::new(USUAL_BYTES.to_bits()),
            learned: AtomicU64::new(0),
            rate: AtomicU32::new(USUAL_RATE.to_bits()),
            tickets: AtomicU64::new(0),
            expected: Expected::default(),
        })
    }

    /// Replaces the profile; requests that have been routed are unaffected.
    pub(crate) fn set_profile(&self, profile: Profile) {
        self.profile.store(Arc::new(profile));
    }

    /// Picks a replica that serves `model` and is not among `tried`, and reserves capacity there.
    ///
    /// # Errors
    /// No replica can take the request.
    pub(crate) fn route(
        &self,
        model: &str,
        prompt: &Prompt,
        tried: &[ReplicaId],
    ) -> Result<Routed, Unroutable> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let look = self.look(model, prompt, tried, ticket);
        let (view, decision) = (look.view, look.decision?);
        let first = decision.first();
        let cached = look.cached.get(first.place).copied().unwrap_or(0.0);
        let capacity = capacity(&view, first.place, look.unit_tokens);
        self.note(first.replica, &prompt.chain, capacity);
        if let Some(exact) = self.exact_for(prompt) {
            exact.expect(&view.replicas[first.place], &view, model, &prompt.tokens);
        }
        let uncached = look.prompt_tokens - cached;
        self.expected.add(look.prompt_tokens, cached);
        Ok(Routed {
            name: view.name(first.place).clone(),
            url: view.url(first.place).clone(),
            in_flight: self
                .fleet
                .begin(first.replica, uncached, look.prompt_tokens),
            choice: Arc::new(Choice {
                held: look.held.get(first.place).copied().flatten(),
                decision,
            }),
            span: None,
        })
    }

    /// Dry run of the routing decision, without reservation or feedback.
    pub(crate) fn explain(&self, model: &str, prompt: &Prompt) -> RoutingTrace {
        self.look(model, prompt, &[], self.tickets.load(Ordering::Relaxed))
    }

    fn look(&self, model: &str, prompt: &Prompt, tried: &[ReplicaId], ticket: u64) -> RoutingTrace {
        let view = self.fleet.view();
        let allowed = within(&view, serving(&view, model), prompt.subset.as_deref());
        let bytes_per_token = match prompt.tokens.len() {
            0 => self.bytes_per_token(),
            tokens => prompt.bytes.max(1) as f32 / tokens as f32,
        };
        let unit_tokens = TEXT_UNIT as f32 / bytes_per_token;
        let prompt_tokens = prompt.bytes as f32 / bytes_per_token;
        let believed = self.believed(&view, prompt, unit_tokens);
        let mut cached = believed.cached;
        let exact = self.exact_for(prompt);
        let held = exact.map(|exact| exact.correct(&view, model, &prompt.tokens, &mut cached));
        let most = cached.iter().copied().fold(0.0, f32::max);
        let unknown = believed.unknown.map(|key| Unknown {
            key,
            tokens: prompt_tokens - most,
            others: self.fleet.others(),
        });
        let request = Request {
            prompt_tokens,
            cached_tokens: &cached,
            caches: &believed.caches,
            unknown,
            priority: prompt.priority,
            slo: prompt.slo,
            session: prompt.session,
            adapter: Some(model),
            tried,
            subset: allowed.as_deref(),
            ticket,
        };
        let decision = pick(&self.profile.load(), &request, &view.replicas);
        RoutingTrace {
            prompt_tokens,
            view,
            cached,
            caches: believed.caches,
            held: held.unwrap_or_default(),
            unit_tokens,
            decision,
        }
    }

    /// Estimates the contents of the replicas' caches from the requests that this gateway has sent.
    fn believed(&self, view: &View, prompt: &Prompt, unit_tokens: f32) -> PrefixEstimate {
        if prompt.chain.is_empty() || !self.profile.load().needs_prefixes() {
            return PrefixEstimate::default();
        }
        let ids = view.replicas.iter().map(|replica| replica.id);
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let places = ids.clone().enumerate();
        index.forget_others(places.map(|(place, id)| (id, view.restarts(place))));
        let holders: Vec<u32> = ids.map(|id| id.0).collect();
        let units = index.prefixes.matches(&prompt.chain, &holders);
        let tokens = |units: usize| units as f32 * unit_tokens;
        let known = units.iter().copied().max().unwrap_or(0);
        let cache = |(place, holder): (usize, &u32)| {
            let capacity = capacity(view, place, unit_tokens);
            CacheState {
                fill: index.prefixes.len_of(*holder) as f32 / capacity,
                regret: index.prefixes.regret(*holder),
            }
        };
        PrefixEstimate {
            caches: holders.iter().enumerate().map(cache).collect(),
            unknown: prompt.chain.get(known).copied(),
            cached: units.into_iter().map(tokens).collect(),
        }
    }

    fn exact_for(&self, prompt: &Prompt) -> Option<&Exact> {
        self.exact.as_ref().filter(|_| !prompt.tokens.is_empty())
    }

    /// Tokenizes a request's prompt, if the pool follows KV events and the profile uses prefixes.
    pub(crate) async fn tokenize(&self, prompt: &mut Prompt, path: &str, body: &Bytes) {
        let asked = self.profile.load().needs_prefixes() && !prompt.salted;
        if let Some(exact) = self.exact.as_ref().filter(|_| asked) {
            let tokens = exact.tokens(path, body.clone()).await;
            prompt.tokens = tokens.unwrap_or_default();
        }
    }

    /// Records that a replica computes a prompt. `capacity` is the size of its cache in hashes.
    fn note(&self, replica: ReplicaId, chain: &[u64], capacity: f32) {
        if !chain.is_empty() && self.profile.load().needs_prefixes() {
            let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
            index.prefixes.insert(replica.0, chain, capacity as usize);
        }
    }

    /// Completes when a replica's health checks fail.
    pub(crate) async fn unhealthy(&self, id: ReplicaId) {
        loop {
            tokio::time::sleep(HEALTH_TICK).await;
            if self.is_unhealthy(id) {
                return;
            }
        }
    }

    /// Whether a replica's health checks fail.
    pub(crate) fn is_unhealthy(&self, id: ReplicaId) -> bool {
        let view = self.fleet.view();
        let replica = view.replicas.iter().find(|replica| replica.id == id);
        replica.is_some_and(|replica| replica.condition == Condition::Unhealthy)
    }

    /// Mean bytes of prompt per token.
    pub(crate) fn bytes_per_token(&self) -> f32 {
        f32::from_bits(self.bytes_per_token.load(Ordering::Relaxed))
    }

    /// Estimated number of output tokens of a response that has taken `time`.
    pub(crate) fn tokens_in(&self, time: Duration) -> u64 {
        (f32::from_bits(self.rate.load(Ordering::Relaxed)) * time.as_secs_f32()) as u64
    }

    /// Updates the output rate from a finished response of `tokens` output tokens.
    pub(crate) fn learn_rate(&self, tokens: u32, time: Duration) {
        if tokens < RATED_TOKENS {
            return;
        }
        let seen = tokens as f32 / time.as_secs_f32().max(1e-3);
        let mean = f32::from_bits(self.rate.load(Ordering::Relaxed));
        let mean = mean + RATE_WEIGHT * (seen - mean);
        self.rate.store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Updates the bytes per token from a response that reports the tokens of its prompt.
    pub(crate) fn learn(&self, bytes: usize, tokens: u32) {
        if bytes < TEXT_UNIT || tokens == 0 {
            return;
        }
        let mean = f32::from_bits(self.bytes_per_token.load(Ordering::Relaxed));
        let seen = (bytes as f32 / tokens as f32).clamp(0.5, 32.0);
        // early samples weigh more, because the initial estimate may be wrong by more than a
        // factor of 2
        let before = self.learned.fetch_add(1, Ordering::Relaxed);
        let weight = (1.0 / (before + 1) as f32).max(MEAN_WEIGHT);
        let mean = mean + weight * (seen - mean);
        self.bytes_per_token
            .store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Whether any replica is eligible for requests.
    pub(crate) fn has_replica(&self) -> bool {
        let view = self.fleet.view();
        let one_takes = view.one_takes_requests();
        let mut conditions = view.replicas.iter().map(|one| one.condition);
        conditions.any(|condition| condition.takes_beside(one_takes))
    }

    /// Whether a replica lists `model`. `None`: no replica lists it, but at least one replica's
    /// models are unknown.
    pub(crate) fn serves(&self, model: &str) -> Option<bool> {
        let view = self.fleet.view();
        let lists = |place: usize| Some(view.models(place)?.iter().any(|one| **one == *model));
        let mut unknown = false;
        for place in 0..view.replicas.len() {
            match lists(place) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => unknown = true,
            }
        }
        (!unknown).then_some(false)
    }
}

/// # Errors
/// [`StartError::Profile`]
pub(crate) fn profile(config: &PoolConfig) -> Result<Profile, StartError> {
    Profile::new(config.profile.clone()).map_err(|source| StartError::Profile {
        pool: config.name.clone(),
        source,
    })
}

/// Replicas that serve `model`: all that list it, or, if no replica does, all whose models are
/// unknown. `None` means all replicas, for example for requests without a model.
fn serving(view: &View, model: &str) -> Option<Vec<ReplicaId>> {
    if model.is_empty() {
        return None;
    }
    let places = 0..view.replicas.len();
    let lists = |place| Some(view.models(place)?.iter().any(|one| **one == *model));
    let lists: Vec<Option<bool>> = places.map(lists).collect();
    let wanted = lists.contains(&Some(true)).then_some(true);
    let all = view.replicas.iter().zip(&lists);
    let serving = all.filter(|(_, lists)| **lists == wanted);
    let serving: Vec<ReplicaId> = serving.map(|(replica, _)| replica.id).collect();
    (serving.len() < lists.len()).then_some(serving)
}

/// The replicas of `allowed` whose address is in `subset`; all of `allowed` if there is no subset.
fn within(
    view: &View,
    allowed: Option<Vec<ReplicaId>>,
    subset: Option<&[String]>,
) -> Option<Vec<ReplicaId>> {
    let Some(subset) = subset else {
        return allowed;
    };
    let replicas = view.replicas.iter();
    let named = replicas.filter(|one| subset.iter().any(|address| **address == *one.address));
    let ids = named.map(|replica| replica.id);
    Some(match allowed {
        Some(allowed) => ids.filter(|id| allowed.contains(id)).collect(),
        None => ids.collect(),
    })
}

impl Index {
    /// Removes replicas that are gone or have restarted from the index. Ids are never reused.
    fn forget_others(&mut self, replicas: impl Iterator<Item = (ReplicaId, u32)> + Clone) {
        if self.replicas.iter().copied().eq(replicas.clone()) {
            return;
        }
        let now: Vec<(ReplicaId, u32)> = replicas.collect();
        for gone in self.replicas.iter().filter(|one| !now.contains(one)) {
            self.prefixes.clear(gone.0.0);
        }
        self.replicas = now;
    }
}
