/// The set of allowed next tokens: one bit per id of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    words: Vec<u32>,
}

impl Mask {
    pub(crate) fn new(words: &[u32]) -> Self {
        Self {
            words: words.to_vec(),
        }
    }

    pub(crate) fn allow(&mut self, token: u32) {
        let at = token as usize / 32;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (token % 32);
    }

    pub(crate) fn forbid(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }

    /// Bits of the tokens, 32 per word, lowest bit first.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether `token` is allowed; ids outside the vocabulary are not.
    pub fn allows(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32).copied();
        word.unwrap_or(0) & (1 << (token % 32)) != 0
    }

    /// The lowest allowed token.
    pub fn first(&self) -> Option<u32> {
        let word = self.words.iter().position(|&word| word != 0)?;
        Some(32 * word as u32 + self.words[word].trailing_zeros())
    }

    /// Sets the logits of all tokens that are not allowed to negative infinity. Returns whether any
    /// token is allowed.
    pub fn apply(&self, logits: &mut [f32]) -> bool {
        let mut left = false;
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            left |= word != 0;
            match word {
                0 => logits.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        left
    }
}
