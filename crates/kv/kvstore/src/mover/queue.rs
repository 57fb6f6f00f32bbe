//! Queue of a tier's jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::answers::Reply;
use super::transfer::Pool;
use crate::key::{Digest, Group};

/// Work for one tier, with its borrowed blocks. The blocks are ordered by table entry, then by
/// group.
pub(crate) enum Work<P: Pool> {
    /// From a chunk tier. A block is `None` where its KV group needs none.
    Load {
        digest: Digest,
        blocks: Vec<Option<P::Write>>,
    },
    Store {
        digest: Digest,
        blocks: Vec<P::Read>,
        parent: Option<Digest>,
    },
    /// From slots of the RAM tier to blocks, which are ordered by slot.
    FromRam {
        slots: Vec<usize>,
        blocks: Vec<Option<P::Write>>,
    },
    ToRam {
        slots: Vec<usize>,
        blocks: Vec<P::Read>,
    },
    /// Digests and block counts of chunks.
    Probe {
        chunks: Vec<(Digest, u16)>,
    },
    Remove {
        digests: Vec<Digest>,
    },
    Clear {
        group: Option<Group>,
    },
}

/// Kinds of work, for scheduling rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    Load,
    Store,
    Probe,
    Remove,
}

impl<P: Pool> Work<P> {
    pub(crate) fn kind(&self) -> WorkKind {
        match self {
            Self::Load { .. } | Self::FromRam { .. } => WorkKind::Load,
            Self::Store { .. } | Self::ToRam { .. } => WorkKind::Store,
            Self::Probe { .. } => WorkKind::Probe,
            Self::Remove { .. } | Self::Clear { .. } => WorkKind::Remove,
        }
    }
}

/// Work of one transfer for one tier.
pub(crate) struct Job<P: Pool> {
    pub(crate) id: u64,
    /// Time of submission on the mover's clock.
    pub(crate) asked: Duration,
    pub(crate) work: Work<P>,
    pub(crate) reply: Arc<Reply>,
}

/// Jobs in scheduling order. Loads come before stores and removals, which keep their relative
/// order. Probes are independent of both. A load from a slot that a queued store will fill stays
/// behind that store.
pub(crate) struct Queue<P: Pool> {
    probes: VecDeque<Job<P>>,
    loads: VecDeque<Job<P>>,
    stores: VecDeque<Job<P>>,
}

/// Kinds of work that may start now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Free {
    pub(crate) probe: bool,
    pub(crate) load: bool,
    pub(crate) store: bool,
    pub(crate) remove: bool,
}

impl<P: Pool> Queue<P> {
    pub(crate) fn new() -> Self {
        Self {
            probes: VecDeque::new(),
            loads: VecDeque::new(),
            stores: VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, job: Job<P>) {
        match job.work.kind() {
            WorkKind::Load if !self.waits_for_store(&job.work) => self.loads.push_back(job),
            WorkKind::Probe => self.probes.push_back(job),
            _ => self.stores.push_back(job),
        }
    }

    fn waits_for_store(&self, work: &Work<P>) -> bool {
        let Work::FromRam { slots, .. } = work else {
            return false;
        };
        self.stores.iter().any(|job| match &job.work {
            Work::ToRam { slots: filled, .. } => slots.iter().any(|slot| filled.contains(slot)),
            _ => false,
        })
    }

    /// The next job that may start.
    pub(crate) fn next(&mut self, free: Free) -> Option<Job<P>> {
        if free.probe && !self.probes.is_empty() {
            return self.probes.pop_front();
        }
        if free.load && !self.loads.is_empty() {
            return self.loads.pop_front();
        }
        let may = match self.stores.front()?.work.kind() {
            WorkKind::Remove => free.remove,
            WorkKind::Load => free.load,
            _ => free.store,
        };
        may.then(|| self.stores.pop_front())?
    }

    /// Removes the jobs of these transfers.
    pub(crate) fn cancel(&mut self, ids: &[u64]) -> Vec<Job<P>> {
        let mut taken = Vec::new();
        for queue in [&mut self.probes, &mut self.loads, &mut self.stores] {
            let (out, stay): (VecDeque<_>, _) = queue.drain(..).partition(|j| ids.contains(&j.id));
            taken.extend(out);
            *queue = stay;
        }
        taken
    }

    /// Removes all jobs, except stores and removals if `keep_stores`.
    pub(crate) fn clear(&mut self, keep_stores: bool) -> Vec<Job<P>> {
        let mut taken: Vec<_> = self.probes.drain(..).chain(self.loads.drain(..)).collect();
        if !keep_stores {
            taken.extend(self.stores.drain(..));
        }
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.probes.is_empty() && self.loads.is_empty() && self.stores.is_empty()
    }
}
