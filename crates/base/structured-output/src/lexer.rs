//! Lexers of a grammar: automata whose states llguidance finds while outputs are read, up to some
//! 100 MB of them. Sequences with one grammar share a lexer, so its states are found and held once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::{Matcher as Inner, TokenParser};

use crate::error::MatchError;

/// Bytes of a shared lexer from which on new sequences share a new one.
const SHARED_BYTES: usize = 32 << 20;
/// Bytes of all lexers of a vocabulary above which lexers of [`LARGE_BYTES`] are given up.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matcher::Matcher;
    use crate::vocabulary::Vocabulary;
    use llguidance::api::TopLevelGrammar;

    /// The end, and all texts of `a` and `b` up to seven letters: more texts than patterns, so that
    /// an output finds states all the time.
    fn lexers(total: &Arc<AtomicUsize>) -> (Arc<Lexers>, usize) {
        let texts = (1..8).flat_map(|length| (0..1 << length).map(move |bits| (length, bits)));
        let letters = |(length, bits): (u32, u32)| {
            let letter = |at| if bits >> at & 1 == 0 { b'a' } else { b'b' };
            (0..length).map(letter).collect()
        };
        let mut tokens = vec![b"<end>".to_vec()];
        tokens.extend(texts.map(letters));
        let size = tokens.len();
        let vocabulary = Vocabulary::of_tokens(tokens, vec![("<end>".into(), 0)]).unwrap();
        let pattern = crate::lark::of_regex("[ab]*a[ab]{17}").unwrap();
        let parser = vocabulary.parser(TopLevelGrammar::from_lark(pattern), false);
        (Arc::new(Lexers::new(parser.unwrap(), total)), size)
    }

    /// Reads up to `most` pseudo-random tokens, or up to the first error of the matcher.
    fn read(matcher: &mut Matcher, size: usize, most: usize) -> Result<(), MatchError> {
        let mut state = 1u64;
        for _ in 0..most {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            matcher.mask()?;
            matcher.accept(1 + (state >> 33) as u32 % (size as u32 - 1))?;
        }
        Ok(())
    }

    #[test]
    fn large_lexers_end_their_outputs_where_all_together_are_too_large() {
        // What the lexers of other grammars hold.
        let total = Arc::new(AtomicUsize::new(TOTAL_BYTES));
        let (lexers, size) = lexers(&total);
        let matcher = || Matcher::new(Arc::clone(&lexers), 0, vec![0]);
        let mut small = matcher();
        read(&mut small, size, 5).unwrap();
        let mut large = matcher();
        let error = read(&mut large, size, 100_000).unwrap_err();
        assert!(error.0.contains("too much memory"), "{error:?}");
        // The others go on, with lexers of their own.
        for _ in 0..20 {
            small.mask().unwrap();
            assert!(small.accept(1).unwrap());
        }
        read(&mut matcher(), size, 5).unwrap();
        drop(large);

        total.fetch_sub(TOTAL_BYTES, Ordering::Relaxed);
        let mut large = matcher();
        let error = read(&mut large, size, 100_000).unwrap_err();
        assert!(!error.0.contains("too much memory"), "{error:?}");
        assert!(total.load(Ordering::Relaxed) > LARGE_BYTES);
        drop((small, large, lexers));
        assert_eq!(total.load(Ordering::Relaxed), 0, "all is given back");
    }
}
