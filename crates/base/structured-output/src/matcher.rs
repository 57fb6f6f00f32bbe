use std::sync::Arc;

use llguidance::{Matcher as Inner, api::StopReason};

use crate::error::MatchError;
use crate::lexer::{Lexer, Lexers};
use crate::mask::Mask;

/// State of one sequence in its grammar.
///
/// End tokens are not part of a grammar: they are allowed exactly where the output so far is
/// complete.
///
/// Sequences share a lexer. If the lexer exceeds a bound, possibly because of another sequence's
/// output, the sequence reads its output again with its own lexer. Thus only a sequence's own
/// output can make it fail.
pub struct Matcher {
    inner: Inner,
    lexer: Arc<Lexer>,
    lexers: Arc<Lexers>,
    /// Whether the lexer is not shared.
    own: bool,
    eos: u32,
    ends: Vec<u32>,
    /// Accepted tokens before the first end token.
    taken: Vec<u32>,
    /// Number of accepted tokens from the first end token on.
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

    /// The allowed next tokens, at least one.
    ///
    /// # Errors
    /// The grammar became too complex, or allows no token.
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
            // llguidance may detect only here that no token may follow.
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

    /// Accepts a token of the output. Returns false, and changes nothing, if the token is not
    /// allowed.
    ///
    /// # Errors
    /// The grammar became too complex.
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

    /// Rolls back the last `tokens` accepted tokens.
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
    /// The grammar became too complex.
    pub fn is_whole(&mut self) -> Result<bool, MatchError> {
        self.guarded(|this| Ok(this.after > 0 || this.accepting()?))
    }

    /// Runs `work`; if the shared lexer has exceeded a bound, runs it again with a separate lexer.
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

    /// Switches to a separate lexer and reads the output so far.
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

    /// Whether only an end token may follow.
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
