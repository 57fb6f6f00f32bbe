//! Eviction order over all stores of a directory, and admission of new chunks.

use crate::eviction::{CachePolicy, Item, Key, Rule};
use crate::key::{Digest, Group, UNSALTED};

/// Maximum number of chunks in the frequency sketch (64 MiB).
const MOST_COUNTED: u64 = 1 << 22;

/// A chunk of any store in the directory: the number of the store, and the chunk's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) store: u32,
    pub(crate) digest: Digest,
}

impl Name {
    /// The chunk of `digest` in store number `store`.
    pub(crate) fn new(store: usize, digest: &Digest) -> Self {
        Self {
            store: store as u32,
            digest: *digest,
        }
    }

    pub(crate) fn parent(self, parent: Option<Digest>) -> Option<Self> {
        parent.map(|digest| Self { digest, ..self })
    }
}

impl Key for Name {
    fn words(&self) -> [u64; 2] {
        self.digest.words()
    }

    fn group(&self) -> Group {
        self.digest.group()
    }
}

/// A chunk to be stored. Its size covers all parts on all ranks, so that all ranks make the same
/// decision.
pub(crate) type StoreCandidate = Item<Name>;

/// Cache policy of a directory. Covers the indexed chunks whose last use is known.
pub(crate) struct Ranking {
    pub(crate) policy: CachePolicy<Name>,
    /// Maximum total bytes of a salt group's chunks.
    quota: Option<u64>,
    /// The most recently used chunk: consecutive uses of its parts count as one use.
    last: Option<Name>,
}

impl Ranking {
    /// Creates a ranking for `limit` bytes of chunks of about `chunk` bytes each, with a quota of
    /// `quota` bytes per salt group.
    pub(crate) fn new(limit: u64, chunk: u64, quota: Option<u64>) -> Self {
        let entries = (limit / chunk.max(1)).clamp(1, MOST_COUNTED) as usize;
        Self {
            policy: CachePolicy::new(Rule::Auto, limit, entries, quota.is_some()),
            quota,
            last: None,
        }
    }

    /// Marks a chunk of `bytes` bytes (all parts together) as present and used now.
    pub(crate) fn enter(&mut self, name: Name, bytes: u64, parent: Option<Digest>) {
        if !self.policy.has(&name) {
            self.policy.insert(item(name, bytes, parent));
        } else if self.last != Some(name) {
            self.policy.renew(&name);
        }
        self.last = Some(name);
        self.policy.continues(&name, name.parent(parent));
    }

    /// Adds a chunk that was stored before this process started. `later` is the number of such
    /// chunks with a more recent use.
    pub(crate) fn found(&mut self, name: Name, bytes: u64, later: usize) {
        if !self.policy.has(&name) {
            self.policy.found(item(name, bytes, None), later);
        }
    }

    /// Counts a request for chunks of one prefix, given in prefix order.
    pub(crate) fn ask(&mut self, names: &[Name]) {
        self.policy.ask(names);
        self.last = None;
    }

    /// Protects the candidate and its parent from eviction until `release`.
    pub(crate) fn hold(&mut self, candidate: &StoreCandidate) {
        self.policy.hold(&candidate.key);
        candidate
            .parent
            .iter()
            .for_each(|name| self.policy.hold(name));
    }

    /// Reverts a `hold`.
    pub(crate) fn release(&mut self, candidate: &StoreCandidate) {
        self.policy.release(&candidate.key);
        candidate
            .parent
            .iter()
            .for_each(|name| self.policy.release(name));
    }

    /// Whether the admission filter prefers the chunk to the first eviction victim. If the chunk's
    /// salt group is at its quota, the victim comes from that group.
    pub(crate) fn outweighs(&mut self, candidate: &StoreCandidate) -> bool {
        let over_quota = self.over_quota(candidate).is_some();
        let group = over_quota.then(|| candidate.key.group());
        self.policy.outweighs(candidate, group)
    }

    /// The quota, if the chunk would make its salt group exceed it.
    pub(crate) fn over_quota(&self, candidate: &StoreCandidate) -> Option<u64> {
        let group = candidate.key.group();
        let quota = self.quota.filter(|_| group != UNSALTED)?;
        let known = self.policy.has(&candidate.key);
        let more = if known { 0 } else { candidate.size };
        (self.policy.size_of(group) + more > quota).then_some(quota)
    }
}

fn item(name: Name, bytes: u64, parent: Option<Digest>) -> Item<Name> {
    Item {
        key: name,
        parent: name.parent(parent),
        size: bytes,
    }
}
