//! Steps of a rendering, and text that costs steps as it grows.

use std::cell::Cell;

use super::error::Error;

/// Steps of one rendering; a message of a conversation costs some hundreds. A node and an item
/// cost one step each, text one step per [`BYTES`], so that steps bound the memory, too.
const STEPS: u64 = 20_000_000;
const BYTES: usize = 32;

/// Steps that are left.
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

    /// Takes the steps for `bytes` of text.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        self.take(1 + (bytes / BYTES) as u64)
    }

    /// Takes a step for each of `values`.
    pub(super) fn charge_values(&self, values: usize) -> Result<(), Error> {
        self.take(1 + values as u64)
    }
}

/// Text that takes the steps for each piece before it adds the piece. So the bound on steps holds
/// while the text grows, not only for its end.
pub(super) struct Output<'s> {
    text: String,
    pub(super) steps: &'s Steps,
    /// Bytes beyond the last whole step.
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
    /// No steps are left, as for all methods that add to the text.
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
