//! The step budget of a rendering, and text output that is charged to it.

use std::cell::Cell;

use super::error::Error;

/// Step budget of one rendering; a message of a conversation takes some hundreds. A node and an
/// item cost one step each, text one step per [`BYTES`], so that the budget also bounds the memory.
const STEPS: u64 = 20_000_000;
const BYTES: usize = 32;

/// The steps that remain of the budget.
pub(super) struct Steps(Cell<u64>);

impl Default for Steps {
    fn default() -> Self {
        Self(Cell::new(STEPS))
    }
}

impl Steps {
    pub(super) fn take(&self, steps: u64) -> Result<(), Error> {
        let Some(left) = self.0.get().checked_sub(steps) else {
            return Err(Error::limit("it took too many steps"));
        };
        self.0.set(left);
        Ok(())
    }

    /// Charges steps for `bytes` bytes of text.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        self.take(1 + (bytes / BYTES) as u64)
    }

    /// Charges a step for each of `values`.
    pub(super) fn charge_values(&self, values: usize) -> Result<(), Error> {
        self.take(1 + values as u64)
    }
}

/// Text that charges steps for each piece before it is appended, so that the bound also holds while
/// the text grows.
pub(super) struct Output<'s> {
    text: String,
    pub(super) steps: &'s Steps,
    /// Bytes not yet charged, less than one step.
    unpaid: usize,
}

impl<'s> Output<'s> {
    pub(super) fn new(steps: &'s Steps) -> Self {
        Self {
            text: String::new(),
            steps,
            unpaid: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// # Errors
    /// No steps remain. Holds for all methods that append text.
    pub(super) fn push_str(&mut self, piece: &str) -> Result<(), Error> {
        self.pay(piece.len())?;
        self.text.push_str(piece);
        Ok(())
    }

    pub(super) fn push(&mut self, character: char) -> Result<(), Error> {
        self.pay(character.len_utf8())?;
        self.text.push(character);
        Ok(())
    }

    fn pay(&mut self, bytes: usize) -> Result<(), Error> {
        let unpaid = self.unpaid.saturating_add(bytes);
        self.unpaid = unpaid % BYTES;
        self.steps.take((unpaid / BYTES) as u64)
    }
}
