//! Passes transfer results from the threads of the tiers to the caller of `Mover::take`.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::transfer::Moved;

/// Results not yet taken.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: Mutex<VecDeque<Moved>>,
    some: Condvar,
}

impl Answers {
    pub(crate) fn put(&self, moved: Moved) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(moved);
        self.some.notify_one();
    }

    /// Takes all results; waits at most `timeout` for the first.
    pub(crate) fn take(&self, timeout: Duration) -> Vec<Moved> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, _) = self
            .some
            .wait_timeout_while(waiting, timeout, |w| w.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).collect()
    }
}

/// The result of one transfer, which may consist of several jobs: a removal has one per tier, a
/// long store to RAM several. Merges the jobs' results and is published when the last job drops it.
pub(crate) struct Reply {
    joined: Mutex<Moved>,
    answers: Arc<Answers>,
}

impl Reply {
    pub(crate) fn new(id: u64, answers: &Arc<Answers>) -> Arc<Self> {
        let done = true;
        let joined = Mutex::new(Moved {
            id,
            done,
            ..Moved::default()
        });
        let answers = Arc::clone(answers);
        Arc::new(Self { joined, answers })
    }

    /// Merges the result of one job.
    pub(crate) fn join(&self, part: Moved) {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.done &= part.done;
        joined.found.extend(part.found);
        joined.bytes += part.bytes;
        joined.seconds += part.seconds;
        joined.waited = joined.waited.max(part.waited);
        joined.fault = joined.fault.max(part.fault);
        joined.left.extend(part.left);
        if joined.error.is_empty() {
            joined.error = part.error;
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let joined = self
            .joined
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.answers.put(std::mem::take(joined));
    }
}
