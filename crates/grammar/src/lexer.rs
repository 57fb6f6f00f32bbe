//! Lexers of a grammar: automata whose states llguidance finds while outputs are read, up to some
//! 100 MB of them. Sequences with one grammar share a lexer, so its states are found and held once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::{Matcher as Inner, TokenParser};

use crate::error::MatchError;

/// Bytes of a shared lexer from which on new sequences share a new one.
const SHARED_BYTES: usize = 32 << 20;
/// Bytes of all lexers of a vocabulary, from which on those of [`LARGE_BYTES`] are given up.
const TOTAL_BYTES: usize = 1 << 30;
const LARGE_BYTES: usize = 8 << 20;

/// The lexers of one grammar.
pub(crate) struct Lexers {
    /// As it was compiled.
    fresh: Mutex<TokenParser>,
    shared: Mutex<(Inner, Arc<Lexer>)>,
    total: Arc<AtomicUsize>,
}

/// The lexer of one or several matchers.
pub(crate) struct Lexer {
    /// A parser that only gives access to it.
    parser: TokenParser,
    /// What of its bytes is in `total`.
    counted: Mutex<usize>,
    total: Arc<AtomicUsize>,
}

impl Lexers {
    /// The lexers of a parser that has read nothing; `total` counts the bytes of all lexers.
    pub(crate) fn new(fresh: TokenParser, total: &Arc<AtomicUsize>) -> Self {
        let shared = Mutex::new(start(&fresh, total));
        Self {
            fresh: Mutex::new(fresh),
            shared,
            total: Arc::clone(total),
        }
    }

    /// A matcher whose lexer others share.
    pub(crate) fn shared(&self) -> (Inner, Arc<Lexer>) {
        let mut shared = lock(&self.shared);
        if shared.1.failed() || shared.1.bytes() > SHARED_BYTES {
            *shared = self.own();
        }
        (shared.0.clone(), Arc::clone(&shared.1))
    }

    /// A matcher with a lexer of its own.
    pub(crate) fn own(&self) -> (Inner, Arc<Lexer>) {
        start(&lock(&self.fresh), &self.total)
    }
}

fn start(fresh: &TokenParser, total: &Arc<AtomicUsize>) -> (Inner, Arc<Lexer>) {
    let parser = fresh.deep_clone();
    let lexer = Lexer {
        parser: parser.clone(),
        counted: Mutex::default(),
        total: Arc::clone(total),
    };
    (Inner::new(Ok(parser)), Arc::new(lexer))
}

impl Lexer {
    /// Whether it has met one of its bounds. It reads nothing rightly then.
    pub(crate) fn failed(&self) -> bool {
        self.parser.parser.get_error().is_some()
    }

    fn bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// Counts its states.
    ///
    /// # Errors
    /// It is large, and all lexers together are too large.
    pub(crate) fn count(&self) -> Result<(), MatchError> {
        let (now, mut counted) = (self.bytes(), lock(&self.counted));
        let before = std::mem::replace(&mut *counted, now);
        let more = now.wrapping_sub(before);
        let total = self
            .total
            .fetch_add(more, Ordering::Relaxed)
            .wrapping_add(more);
        match now > LARGE_BYTES && total > TOTAL_BYTES {
            true => Err(MatchError(
                "all grammars together take too much memory".into(),
            )),
            false => Ok(()),
        }
    }
}

impl Drop for Lexer {
    fn drop(&mut self) {
        let counted = *lock(&self.counted);
        self.total.fetch_sub(counted, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
