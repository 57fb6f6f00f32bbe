//! What chunks are worth beside each other, of all stores of a directory: who is let in, and who
//! leaves.

use std::collections::{HashMap, VecDeque};

use super::index::Part;
use crate::key::{Digest, Group, UNSALTED, group};
use crate::policy::{Item, Key, Policy, RuleChoice};
use crate::tier::About;

/// Chunks for which counts of requests are kept, at most (64 MiB).
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

    /// What it continues, when that is known.
    fn parent(&self, about: &About) -> Option<Self> {
        about.parent.map(|digest| Self { digest, ..*self })
    }
}

impl Key for Name {
    fn words(&self) -> [u64; 2] {
        self.digest.words()
    }
}

/// A chunk of which a part is to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer {
    pub(crate) name: Name,
    pub(crate) part: Part,
    /// Of all its parts, on all ranks: so all ranks judge alike.
    pub(crate) bytes: u64,
    pub(crate) about: About,
}

impl Newcomer {
    /// The chunk and what it continues: neither leaves for it.
    pub(crate) fn family(&self) -> impl Iterator<Item = Name> {
        [Some(self.name), self.name.parent(&self.about)]
            .into_iter()
            .flatten()
    }
}

struct Decision {
    name: Name,
    /// The part that it was made for. When that comes again, so do all, and it is made anew.
    part: Part,
    admitted: bool,
}

/// The order in which chunks leave. It knows those of the index, but for those whose times have not
/// been asked for yet.
pub(crate) struct Ranking {
    policy: Policy<Name>,
    /// Bytes that a group may have.
    quota: Option<u64>,
    lanes: Lanes,
    decisions: VecDeque<Decision>,
    /// The chunk that was used last: its other parts are used with it.
    last: Option<Name>,
}

impl Ranking {
    /// For `limit` bytes in chunks of about `chunk`, of which a group may have `quota`.
    pub(crate) fn new(limit: u64, chunk: u64, quota: Option<u64>) -> Self {
        let entries = (limit / chunk.max(1)).clamp(1, MOST_COUNTED) as usize;
        Self {
            policy: Policy::new(RuleChoice::Auto, limit, entries, quota.is_some()),
            quota,
            lanes: Lanes::default(),
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

    /// A chunk of `bytes` in all its parts is there and used now.
    pub(crate) fn enter(&mut self, name: Name, bytes: u64, about: &About) {
        if !self.has(&name) {
            let item = self.item(name, bytes, about);
            self.policy.insert(item);
        } else if self.last != Some(name) {
            self.policy.renew(&name);
        }
        self.last = Some(name);
        let parent = name.parent(about);
        self.policy.learn(&name, parent, about.cost_us);
    }

    /// A chunk was there before this process came, used before `later` others.
    pub(crate) fn found(&mut self, name: Name, bytes: u64, later: usize) {
        if !self.has(&name) {
            let item = self.item(name, bytes, &About::default());
            self.policy.found(item, later);
        }
    }

    /// Chunks of one prefix were asked for, in its order.
    pub(crate) fn ask(&mut self, names: &[Name]) {
        self.policy.ask(names);
        self.last = None;
    }

    /// A chunk is not there any more.
    pub(crate) fn gone(&mut self, name: &Name) {
        self.policy.remove(name);
        self.close(name);
    }

    /// A chunk leaves to make room.
    pub(crate) fn give_up(&mut self, name: &Name) {
        self.policy.give_up(name);
        self.close(name);
    }

    /// The next to leave: of the group of `of`, or of all.
    pub(crate) fn first(&self, of: Option<&Name>) -> Option<Name> {
        match of {
            Some(name) => self.policy.first(Some(self.lanes.find(name)?)),
            None => self.policy.first(None),
        }
    }

    /// These do not leave until they are released.
    pub(crate) fn hold(&mut self, newcomer: &Newcomer) {
        newcomer.family().for_each(|name| self.policy.hold(&name));
    }

    /// The end of `hold`.
    pub(crate) fn release(&mut self, newcomer: &Newcomer) {
        newcomer
            .family()
            .for_each(|name| self.policy.release(&name));
    }

    /// What was decided about the chunk when another of its parts came.
    pub(crate) fn decided(&self, newcomer: &Newcomer) -> Option<bool> {
        let known = self.decisions.iter().find(|d| d.name == newcomer.name)?;
        (known.part != newcomer.part).then_some(known.admitted)
    }

    /// Remembers a decision for the other parts.
    pub(crate) fn decide(&mut self, newcomer: &Newcomer, admitted: bool) {
        let Newcomer { name, part, .. } = *newcomer;
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

    /// Whether the chunk is worth more than the first that would leave for it: of its group, if
    /// that has its quota.
    pub(crate) fn outweighs(&mut self, newcomer: &Newcomer) -> bool {
        let of_group = self.over_quota(newcomer).is_some();
        let item = self.item(newcomer.name, newcomer.bytes, &newcomer.about);
        let outweighs = self.policy.outweighs(&item, of_group);
        self.close(&newcomer.name);
        outweighs
    }

    /// The quota, if the chunk's group would have more with it.
    pub(crate) fn over_quota(&self, newcomer: &Newcomer) -> Option<u64> {
        let Newcomer { name, bytes, .. } = newcomer;
        let quota = self.quota.filter(|_| group(&name.digest) != UNSALTED)?;
        let has = self
            .lanes
            .find(name)
            .map_or(0, |lane| self.policy.size_of(lane));
        let more = if self.has(name) { 0 } else { *bytes };
        (has + more > quota).then_some(quota)
    }

    fn item(&mut self, name: Name, bytes: u64, about: &About) -> Item<Name> {
        Item {
            key: name,
            parent: name.parent(about),
            size: bytes,
            cost_us: about.cost_us,
            lane: match self.quota {
                Some(_) => self.lanes.open(&name),
                None => 0,
            },
        }
    }

    fn close(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.find(name)
            && self.policy.size_of(lane) == 0
        {
            self.lanes.close(name);
        }
    }
}

/// Numbers of the groups that have something.
#[derive(Default)]
struct Lanes {
    by_group: HashMap<Group, u32>,
    free: Vec<u32>,
}

impl Lanes {
    fn find(&self, name: &Name) -> Option<u32> {
        self.by_group.get(&group(&name.digest)).copied()
    }

    fn open(&mut self, name: &Name) -> u32 {
        let next = self.by_group.len() as u32;
        let free = &mut self.free;
        let lane = self.by_group.entry(group(&name.digest));
        // Numbers that are taken and numbers that are free are those below their count.
        *lane.or_insert_with(|| free.pop().unwrap_or(next))
    }

    fn close(&mut self, name: &Name) {
        self.free.extend(self.by_group.remove(&group(&name.digest)));
    }
}
