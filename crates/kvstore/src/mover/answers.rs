//! Answers from the threads of the tiers to the caller of `take`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::transfer::Moved;

/// Answers that were not taken yet.
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

    /// All answers; waits at most `timeout` for the first.
    pub(crate) fn take(&self, timeout: Duration) -> Vec<Moved> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, _) = self
            .some
            .wait_timeout_while(waiting, timeout, |w| w.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).collect()
    }
}

/// Destination of an answer.
pub(crate) enum Reply {
    /// The caller of `take`.
    Asked(Arc<Answers>),
    /// A removal from several tiers.
    Part(Arc<Removal>),
}

impl Reply {
    pub(crate) fn send(self, moved: Moved) {
        match self {
            Self::Asked(answers) => answers.put(moved),
            Self::Part(removal) => removal.ended(moved),
        }
    }
}

/// A removal from several tiers, answered when the last of them has ended.
pub(crate) struct Removal {
    left: AtomicUsize,
    joined: Mutex<Moved>,
    answers: Arc<Answers>,
}

impl Removal {
    /// `parts` is not 0.
    pub(crate) fn new(id: u64, parts: usize, answers: Arc<Answers>) -> Arc<Self> {
        let joined = Moved {
            id,
            done: true,
            ..Moved::default()
        };
        Arc::new(Self {
            left: AtomicUsize::new(parts),
            joined: Mutex::new(joined),
            answers,
        })
    }

    fn ended(&self, part: Moved) {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.done &= part.done;
        joined.seconds = joined.seconds.max(part.seconds);
        joined.waited = joined.waited.max(part.waited);
        joined.fault = joined.fault.max(part.fault);
        if joined.error.is_empty() {
            joined.error = part.error;
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.answers.put(std::mem::take(&mut *joined));
        }
    }
}
