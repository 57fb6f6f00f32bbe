use std::sync::Arc;

use llguidance::{Matcher as Inner, api::StopReason};

use crate::error::MatchError;
use crate::lexer::{Lexer, Lexers};
use crate::mask::Mask;

/// Where one sequence is in its grammar.
///
/// End tokens are not part of a grammar: they may follow exactly where the output so far is whole.
///
/// It shares a lexer with other sequences. Where that lexer meets a bound, for which another output
/// may be the reason, the sequence reads its output again with a lexer of its own: so what ends it
/// is its own output.
pub struct Matcher {
    inner: Inner,
    lexer: Arc<Lexer>,
    lexers: Arc<Lexers>,
    /// Whether the lexer is no other sequence's.
    own: bool,
    eos: u32,
    ends: Vec<u32>,
    /// Tokens taken in before the output was whole and ended.
    taken: Vec<u32>,
    /// Tokens taken in after that, the first of them an end token.
    after: usize,
}

impl Matcher {
    pub(crate) fn new(lexers: Arc<Lexers>, eos: u32, ends: Vec<u32>) -> Self {
        let (inner, lexer) = lexers.shared();
        Self {
            inner,
            lexer,
            lexers,
            own: false,
            eos,
            ends,
            taken: Vec::new(),
            after: 0,
        }
    }

    /// The tokens that may follow: at least one.
    ///
    /// # Errors
    /// The grammar has become too complex, or leaves no token.
    pub fn mask(&mut self) -> Result<Mask, MatchError> {
        self.guarded(|this| {
            let mask = this.next_mask()?;
            this.lexer.count().map(|()| mask)
        })
    }

    fn next_mask(&mut self) -> Result<Mask, MatchError> {
        if self.after > 0 || self.stopped()? {
            return self.only_ends();
        }
        let words = self.inner.compute_mask();
        let words = match words {
            // It can be found only now that nothing may follow.
            Err(_) if self.inner.stop_reason() == StopReason::NoExtensionBias => {
                return self.only_ends();
            }
            words => words.map_err(|e| MatchError::of(&e))?,
        };
        let mut mask = Mask::new(words.as_slice());
        mask.forbid(self.eos);
        if self.accepting()? {
            self.ends.iter().for_each(|&end| mask.allow(end));
        }
        Ok(mask)
    }

    /// Takes in a token of the output; whether it may follow. One that may not changes nothing.
    ///
    /// # Errors
    /// The grammar has become too complex.
    pub fn accept(&mut self, token: u32) -> Result<bool, MatchError> {
        let before = self.after;
        let follows = self.guarded(|this| {
            this.after = before;
            this.follow(token)
        })?;
        if follows && self.after == before {
            self.taken.push(token);
        }
        Ok(follows)
    }

    fn follow(&mut self, token: u32) -> Result<bool, MatchError> {
        if self.after == 0 && !self.stopped()? {
            let taken = self.inner.try_consume_tokens(&[token]);
            if taken.map_err(|e| MatchError::of(&e))? == 1 {
                return Ok(true);
            }
        }
        let ended = self.after > 0 || self.accepting()?;
        let taken = ended && self.ends.contains(&token);
        self.after += usize::from(taken);
        Ok(taken)
    }

    /// Takes back the last `tokens` that were accepted.
    ///
    /// # Errors
    /// Fewer than `tokens` tokens were accepted.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), MatchError> {
        let ends = tokens.min(self.after);
        self.after -= ends;
        let left = self.taken.len().checked_sub(tokens - ends);
        self.taken.truncate(left.unwrap_or_default());
        let inner = self.inner.rollback(tokens - ends);
        inner.map_err(|e| MatchError::of(&e))
    }

    /// Whether the output may end here.
    ///
    /// # Errors
    /// The grammar has become too complex.
    pub fn is_whole(&mut self) -> Result<bool, MatchError> {
        self.guarded(|this| Ok(this.after > 0 || this.accepting()?))
    }

    /// Does `work`, again with a lexer of its own where the shared one has met a bound.
    fn guarded<T>(
        &mut self,
        work: impl Fn(&mut Self) -> Result<T, MatchError>,
    ) -> Result<T, MatchError> {
        let done = work(self);
        if self.own || (done.is_ok() && !self.lexer.failed()) {
            return done;
        }
        self.leave()?;
        work(self)
    }

    /// Reads the output so far with a lexer of its own.
    fn leave(&mut self) -> Result<(), MatchError> {
        (self.inner, self.lexer) = self.lexers.own();
        self.own = true;
        for &token in &self.taken {
            // llguidance's bounds are per mask, so a mask is computed for each token.
            self.inner.compute_mask().map_err(|e| MatchError::of(&e))?;
            let taken = self.inner.try_consume_tokens(&[token]);
            if taken.map_err(|e| MatchError::of(&e))? != 1 {
                return Err(MatchError("the output does not follow it".into()));
            }
        }
        Ok(())
    }

    fn accepting(&mut self) -> Result<bool, MatchError> {
        Ok(self.stopped()? || self.inner.is_accepting().map_err(|e| MatchError::of(&e))?)
    }

    /// Whether nothing but an end can follow.
    fn stopped(&self) -> Result<bool, MatchError> {
        match self.inner.get_error() {
            Some(error) => Err(MatchError::of(&error)),
            None => Ok(self.inner.is_stopped()),
        }
    }

    fn only_ends(&self) -> Result<Mask, MatchError> {
        if self.ends.is_empty() {
            return Err(MatchError(
                "it has ended, and no token ends the output".into(),
            ));
        }
        let mut mask = Mask::new(&[]);
        self.ends.iter().for_each(|&end| mask.allow(end));
        Ok(mask)
    }
}
