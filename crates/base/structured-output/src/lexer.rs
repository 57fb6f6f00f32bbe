//! Lexers of a grammar: automata whose states llguidance creates lazily while it reads outputs, up
//! to some 100 MB. Sequences with the same grammar share a lexer, so each state is computed and
//! stored once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::{Matcher as Inner, TokenParser};

use crate::error::MatchError;

/// Size in bytes of a shared lexer above which new sequences start a new one.
const SHARED_BYTES: usize = 32 << 20;
/// Total size in bytes of a vocabulary's lexers above which any lexer larger than [`LARGE_BYTES`]
/// fails.
const TOTAL_BYTES: usize = 1 << 30;
const LARGE_BYTES: usize = 8 << 20;

/// The lexers of one grammar.
pub(crate) struct Lexers {
    /// The parser as compiled, of which each lexer gets a copy.
    fresh: Mutex<TokenParser>,
    shared: Mutex<(Inner, Arc<Lexer>)>,
    total: Arc<AtomicUsize>,
}

/// A lexer of one or several matchers.
pub(crate) struct Lexer {
    /// A parser that gives access to the lexer and is not used otherwise.
    parser: TokenParser,
    /// Bytes of this lexer already added to `total`.
    counted: Mutex<usize>,
    total: Arc<AtomicUsize>,
}

impl Lexers {
    /// The lexers of a new parser. `total` counts the bytes of all lexers.
    pub(crate) fn new(fresh: TokenParser, total: &Arc<AtomicUsize>) -> Self {
        let shared = Mutex::new(start(&fresh, total));
        Self {
            fresh: Mutex::new(fresh),
            shared,
            total: Arc::clone(total),
        }
    }

    /// A matcher with a shared lexer.
    pub(crate) fn shared(&self) -> (Inner, Arc<Lexer>) {
        let mut shared = lock(&self.shared);
        if shared.1.failed() || shared.1.bytes() > SHARED_BYTES {
            *shared = self.own();
        }
        (shared.0.clone(), Arc::clone(&shared.1))
    }

    /// A matcher with its own lexer.
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
    /// Whether the lexer has exceeded one of its bounds. Its results are then invalid.
    pub(crate) fn failed(&self) -> bool {
        self.parser.parser.get_error().is_some()
    }

    fn bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// Adds the growth of this lexer since the last call to the total size of all lexers.
    ///
    /// # Errors
    /// This lexer is large and the total exceeds its bound.
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

    /// The end token, and all texts of `a` and `b` up to seven letters: more texts than patterns,
    /// so that an output keeps creating states.
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

    /// Reads up to `most` pseudo-random tokens, or up to the matcher's first error.
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
        // Size of the lexers of other grammars.
        let total = Arc::new(AtomicUsize::new(TOTAL_BYTES));
        let (lexers, size) = lexers(&total);
        let matcher = || Matcher::new(Arc::clone(&lexers), 0, vec![0]);
        let mut small = matcher();
        read(&mut small, size, 5).unwrap();
        let mut large = matcher();
        let error = read(&mut large, size, 100_000).unwrap_err();
        assert!(error.0.contains("too much memory"), "{error:?}");
        // The others continue with their own lexers.
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
