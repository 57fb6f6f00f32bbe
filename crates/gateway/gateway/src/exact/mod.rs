//! Exact prefix routing in a pool. Replicas publish which KV blocks they hold. The gateway
//! tokenizes prompts as the replicas do, and so computes how much of a prompt each replica has
//! cached.
//!
//! ```text
//!  replica --KV events--> Followers --> BlockIndex <-- token_chain <-- Tokens <-- body
//! ```
//!
//! If an input is missing (no connection, a prompt with an image or a cache salt, a busy
//! tokenizer), routing falls back to the estimate in `Pool`.

mod followers;
mod held;
mod known;
mod page;
mod tokens;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_fleet::{Fleet, View};
use penstock_prefix::token_chain;
use penstock_routing::{Replica, ReplicaId};
use penstock_tokenizer::TextModel;

use crate::config::{KvEvents, PoolConfig};
use followers::{Follower, Followers, Template};
pub(crate) use held::TokensByTier;
use known::{Known, root};
pub(crate) use page::exact_page;
pub(crate) use tokens::EXPLAIN;
use tokens::{TokenCounts, Tokens};

/// Added to the expected prefill time: a replica publishes the blocks of a prompt only at the end
/// of an engine step.
const STEP: Duration = Duration::from_secs(2);
/// Multiple of the estimated prefill time for which blocks are expected.
const SLACK: f32 = 4.0;
const MOST: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Exact {
    tokens: Tokens,
    known: Arc<Known>,
    followers: Followers,
}

impl Exact {
    /// Starts the subscriptions to the replicas of `fleet` on the current tokio runtime. `None` if
    /// the pool's configuration has no KV events.
    ///
    /// # Errors
    /// The tokenizer cannot be read, or an endpoint is invalid.
    pub(crate) fn of(pool: &PoolConfig, fleet: Fleet) -> Result<Option<Self>, String> {
        match (&pool.kv_events, &pool.tokenizer) {
            (Some(events), Some(tokenizer)) => Self::start(events, tokenizer, fleet).map(Some),
            _ => Ok(None),
        }
    }

    fn start(settings: &KvEvents, tokenizer: &Path, fleet: Fleet) -> Result<Self, String> {
        let model = TextModel::open(tokenizer, None);
        let model = model.map_err(|error| format!("tokenizer {}: {error}", tokenizer.display()))?;
        let template = Template::new(settings)?;
        let known = Arc::new(Known::new());
        Ok(Self {
            tokens: Tokens::new(model),
            followers: Followers::start(template, fleet, known.clone()),
            known,
        })
    }

    /// Token ids of a request's prompt; `None` if they are not available in time.
    pub(crate) async fn tokens(&self, path: &str, body: bytes::Bytes) -> Option<Vec<u32>> {
        if !self.followers.any_live() {
            return None;
        }
        self.tokens.of(path, body).await
    }

    /// Replaces the estimates in `cached` (number of the prompt's tokens that each replica has
    /// cached) by published numbers, where a replica publishes them. Published numbers are weighted
    /// by tier. Returns them unweighted, by position in the view.
    pub(crate) fn correct(
        &self,
        view: &View,
        model: &str,
        tokens: &[u32],
        cached: &mut Vec<f32>,
    ) -> Vec<Option<TokensByTier>> {
        cached.resize(view.replicas.len(), 0.0);
        let mut said = vec![None; view.replicas.len()];
        let followers = self.followers.now();
        // hash before taking the index's lock, to hold it for a shorter time
        let engines = view.replicas.iter().map(|replica| replica.id.0);
        let sizes = self.known.block_sizes(engines);
        let chains = Chains::new(self.root(view, model), &sizes, tokens);
        let (index, now) = (self.known.index(), self.known.now());
        for ((replica, cached), said) in view.replicas.iter().zip(cached).zip(&mut said) {
            let follower = followers.get(&replica.id).filter(|one| one.live());
            let engine = replica.id.0;
            let size = index.block_size(engine).unwrap_or(0);
            let (Some(follower), Some(chain)) = (follower, chains.of(size)) else {
                continue;
            };
            let found = index.matches(chain, &[engine], now);
            let held = TokensByTier(found[0].map(|blocks| blocks * size));
            let exact = held.weighted(replica.worth());
            // until the subscription is complete, the replica may hold blocks that it published
            // earlier
            *cached = if follower.complete() {
                exact
            } else {
                exact.max(*cached)
            };
            *said = Some(held);
        }
        said
    }

    /// Records that a replica is about to prefill a prompt, so that routing already counts its
    /// blocks.
    pub(crate) fn expect(&self, replica: &Replica, view: &View, model: &str, tokens: &[u32]) {
        let seconds = (replica.backlog_tokens + tokens.len() as f32)
            / replica.pace.prefill_tokens_per_s.max(1.0);
        let patience = Duration::try_from_secs_f32(SLACK * seconds).unwrap_or_default();
        let engine = replica.id.0;
        for size in self.known.block_sizes([engine].into_iter()) {
            let chain = token_chain(self.root(view, model), size, tokens);
            let now = self.known.now();
            let until = now + (STEP + patience.min(MOST)).as_millis() as u64;
            self.known.index().expect(engine, &chain, now, until);
        }
    }

    /// Start of a prompt's hash chain. Each adapter has its own.
    fn root(&self, view: &View, model: &str) -> u64 {
        let named = |one: &Replica| one.adapters.iter().any(|adapter| **adapter == *model);
        let is_adapter = self.followers.has_adapter(model) || view.replicas.iter().any(named);
        root(is_adapter.then_some(model))
    }

    /// The subscriptions, each with the number of blocks that its replica holds.
    fn followers(&self) -> Vec<(Arc<Follower>, usize)> {
        let followers = self.followers.now();
        let index = self.known.index();
        let one =
            |(id, follower): (&ReplicaId, &Arc<Follower>)| (follower.clone(), index.len_of(id.0));
        followers.iter().map(one).collect()
    }

    fn token_counts(&self) -> &TokenCounts {
        self.tokens.counts()
    }
}

/// Hash chains of one prompt, one for each block size.
struct Chains(Vec<(usize, Vec<u64>)>);

impl Chains {
    fn new(root: u64, sizes: &[usize], tokens: &[u32]) -> Self {
        let chain = |size: &usize| (*size, token_chain(root, *size, tokens));
        Self(sizes.iter().map(chain).collect())
    }

    fn of(&self, size: usize) -> Option<&[u64]> {
        let made = self.0.iter().find(|(one, _)| *one == size);
        made.map(|(_, chain)| chain.as_slice())
    }
}
