//! Eviction order of the chunks of all stores of a directory, and admission of new ones.

use std::collections::VecDeque;

use super::index::Part;
use crate::eviction::{CachePolicy, Item, Key, Rule};
use crate::key::{Digest, Group, UNSALTED};

/// Chunks whose frequency is counted, at most (64 MiB).
const MOST_COUNTED: u64 = 1 << 22;
/// Decisions that are remembered until all parts of their chunks have come.
const DECISIONS: usize = 64;

/// A chunk, by the number of its store.
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

    fn parent(self, parent: Option<Digest>) -> Option<Self> {
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

/// A chunk of which a part is to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreCandidate {
    pub(crate) name: Name,
    pub(crate) part: Part,
    /// All its parts, on all ranks: so all ranks decide alike.
    pub(crate) bytes: u64,
    pub(crate) parent: Option<Digest>,
}

impl StoreCandidate {
    /// The chunk and its parent: neither is evicted for it.
    fn family(&self) -> impl Iterator<Item = Name> {
        let parent = self.name.parent(self.parent);
        std::iter::once(self.name).chain(parent)
    }

    fn item(&self) -> Item<Name> {
        item(self.name, self.bytes, self.parent)
    }
}

struct Decision {
    name: Name,
    /// The part that it was made for. When that comes again, it is made anew.
    part: Part,
    admitted: bool,
}

/// The policy of a directory. It has the chunks of the index whose times are known.
pub(crate) struct Ranking {
    policy: CachePolicy<Name>,
    /// Bytes that a salt group may have.
    quota: Option<u64>,
    decisions: VecDeque<Decision>,
    /// The chunk that was used last: its other parts are used with it.
    last: Option<Name>,
}

impl Ranking {
    /// For `limit` bytes in chunks of about `chunk`, of which a salt group may have `quota`.
    pub(crate) fn new(limit: u64, chunk: u64, quota: Option<u64>) -> Self {
        let entries = (limit / chunk.max(1)).clamp(1, MOST_COUNTED) as usize;
        Self {
            policy: CachePolicy::new(Rule::Auto, limit, entries, quota.is_some()),
            quota,
            decisions: VecDeque::new(),
            last: None,
        }
    }

    /// Chunks that are ranked.
    pub(crate) fn len(&self) -> usize {
        self.policy.len()
    }

    /// Whether a chunk is ranked.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.policy.has(name)
    }

    /// Marks a chunk of `bytes` in all its parts as present and used now.
    pub(crate) fn enter(&mut self, name: Name, bytes: u64, parent: Option<Digest>) {
        if !self.has(&name) {
            self.policy.insert(item(name, bytes, parent));
        } else if self.last != Some(name) {
            self.policy.renew(&name);
        }
        self.last = Some(name);
        self.policy.continues(&name, name.parent(parent));
    }

    /// Adds a chunk from before this process, used before `later` others.
    pub(crate) fn found(&mut self, name: Name, bytes: u64, later: usize) {
        if !self.has(&name) {
            self.policy.found(item(name, bytes, None), later);
        }
    }

    /// Counts a request for chunks of one prefix, in its order.
    pub(crate) fn ask(&mut self, names: &[Name]) {
        self.policy.ask(names);
        self.last = None;
    }

    /// Removes a chunk that is not there any more.
    pub(crate) fn gone(&mut self, name: &Name) {
        self.policy.remove(name);
    }

    /// Evicts a chunk to make room.
    pub(crate) fn give_up(&mut self, name: &Name) {
        self.policy.give_up(name);
    }

    /// The next chunk to evict: of the salt group of `of`, or of all.
    pub(crate) fn first(&self, of: Option<&Name>) -> Option<Name> {
        self.policy.first(of.map(Name::group))
    }

    /// Keeps the candidate and its parent until `release`.
    pub(crate) fn hold(&mut self, candidate: &StoreCandidate) {
        candidate.family().for_each(|name| self.policy.hold(&name));
    }

    /// Ends a `hold`.
    pub(crate) fn release(&mut self, candidate: &StoreCandidate) {
        let names = candidate.family();
        names.for_each(|name| self.policy.release(&name));
    }

    /// The decision about the chunk from when another of its parts came.
    pub(crate) fn decided(&self, candidate: &StoreCandidate) -> Option<bool> {
        let known = self.decisions.iter().find(|d| d.name == candidate.name)?;
        (known.part != candidate.part).then_some(known.admitted)
    }

    /// Remembers a decision for the other parts.
    pub(crate) fn decide(&mut self, candidate: &StoreCandidate, admitted: bool) {
        let StoreCandidate { name, part, .. } = *candidate;
        self.decisions.retain(|known| known.name != name);
        if self.decisions.len() == DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            name,
            part,
            admitted,
        });
    }

    /// Whether the chunk passes the admission filter against the first that would be evicted for
    /// it: of its salt group, if that is at its quota.
    pub(crate) fn outweighs(&mut self, candidate: &StoreCandidate) -> bool {
        let over_quota = self.over_quota(candidate).is_some();
        let group = over_quota.then(|| candidate.name.group());
        self.policy.outweighs(&candidate.item(), group)
    }

    /// The quota, if the chunk's salt group would exceed it with the chunk.
    pub(crate) fn over_quota(&self, candidate: &StoreCandidate) -> Option<u64> {
        let group = candidate.name.group();
        let quota = self.quota.filter(|_| group != UNSALTED)?;
        let known = self.has(&candidate.name);
        let more = if known { 0 } else { candidate.bytes };
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
