//! Answers on their way from the threads that move to whoever asked.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::transfer::Moved;

/// Answers that were not taken yet, and a descriptor that is readable while there are any.
pub(crate) struct Answers {
    waiting: Mutex<VecDeque<Moved>>,
    some: Condvar,
    event: OwnedFd,
}

impl Answers {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            some: Condvar::new(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn put(&self, moved: Moved) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(moved);
        if waiting.len() == 1 {
            // The counter was zero, so there is room for one.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            self.some.notify_one();
        }
    }

    /// All answers; waits at most `timeout` for the first.
    pub(crate) fn take(&self, timeout: Duration) -> Vec<Moved> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, _) = self
            .some
            .wait_timeout_while(waiting, timeout, |w| w.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        if !waiting.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        waiting.drain(..).collect()
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Where the answer of a piece of work goes.
pub(crate) enum Reply {
    /// To whoever asked.
    Asked(Arc<Answers>),
    /// To the removal that several tiers have a part in.
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
        if joined.error.is_empty() {
            joined.error = part.error;
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.answers.put(std::mem::take(&mut *joined));
        }
    }
}
