use std::sync::Arc;

use crate::Tokenizer;

/// Prompt tokens of context. Enough that no decoder treats the output as the start of a text.
const CONTEXT_TOKENS: usize = 6;

/// Maximum tokens that the pipeline path holds back while they do not form whole characters.
const HELD_TOKENS: usize = 32;

/// Converts a stream of token ids to text, in whole characters.
///
/// The concatenated pieces of [`Self::push`] and [`Self::finish`] equal [`Tokenizer::decode`] of
/// all ids, without an incomplete character at the end.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// Special tokens that are written even if others are skipped.
    kept: Arc<[u32]>,
    state: DetokenizerState,
}

#[derive(Debug)]
enum DetokenizerState {
    Bytes(ByteState),
    Pipeline(PipelineState),
}

/// For byte-string tokens: only the bytes of an incomplete character are held back.
#[derive(Debug)]
struct ByteState {
    /// The next byte is the first of the text; a space there is dropped.
    strip_space: bool,
    pending: Vec<u8>,
}

/// For other decoders: the text is the difference between the decoded texts of two id sequences
/// with a common prefix.
#[derive(Debug)]
struct PipelineState {
    ids: Vec<u32>,
    /// `ids[..emitted]` have been sent and remain as context for the next ones.
    emitted: usize,
}

impl Detokenizer {
    /// `prompt_tail`: the last ids of the prompt (any number) if the output continues its text,
    /// else empty. Needed for decoders that treat the start of a text differently.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool, prompt_tail: &[u32]) -> Self {
        let tail = &prompt_tail[prompt_tail.len().saturating_sub(CONTEXT_TOKENS)..];
        let context: Vec<u32> = tail
            .iter()
            .copied()
            .filter(|&id| !tokenizer.is_special(id))
            .collect();
        let state = match tokenizer.byte_surface() {
            Some(strips) => DetokenizerState::Bytes(ByteState {
                strip_space: strips && context.is_empty(),
                pending: Vec::new(),
            }),
            None => DetokenizerState::Pipeline(PipelineState {
                emitted: context.len(),
                ids: context,
            }),
        };
        Self {
            tokenizer,
            skip_special,
            kept: Arc::default(),
            state,
        }
    }

    /// Keeps these special tokens in the text even if others are skipped.
    pub fn keep(&mut self, special: Arc<[u32]>) {
        self.kept = special;
    }

    /// Text completed by `id`; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_into(id, &mut text);
        text
    }

    /// Like [`Self::push`], appending to `out`.
    pub fn push_into(&mut self, id: u32, out: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) && !self.kept.contains(&id) {
            return;
        }
        match &mut self.state {
            DetokenizerState::Bytes(state) => {
                state.push(self.tokenizer.raw_bytes(id).unwrap_or_default(), out)
            }
            DetokenizerState::Pipeline(state) => state.push(&self.tokenizer, id, out),
        }
    }

    /// Ends the text. Drops an incomplete character: if it were returned as U+FFFD, it would stay
    /// in a text that the client continues with another request.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        match &mut self.state {
            DetokenizerState::Bytes(state) => state.pending.clear(),
            DetokenizerState::Pipeline(state) => {
                let cut = state.cut_bytes(&self.tokenizer);
                state.emit(&self.tokenizer, true, &mut text);
                // The decoder writes one U+FFFD per byte, or one for all.
                for _ in 0..cut {
                    if text.ends_with(char::REPLACEMENT_CHARACTER) {
                        text.pop();
                    }
                }
            }
        }
        text
    }
}

impl ByteState {
    fn push(&mut self, token: &[u8], out: &mut String) {
        let mut bytes = token;
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        if self.pending.is_empty() {
            let rest = emit_characters(bytes, out);
            self.pending.extend_from_slice(rest);
        } else {
            self.pending.extend_from_slice(bytes);
            let kept = emit_characters(&self.pending, out).len();
            let sent = self.pending.len() - kept;
            self.pending.drain(..sent);
        }
    }
}

/// Appends all complete characters of `bytes` to `out`, with U+FFFD for invalid bytes. Returns the
/// incomplete character at the end (at most 3 bytes).
fn emit_characters<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                out.push_str(&String::from_utf8_lossy(valid));
                let Some(length) = error.error_len() else {
                    return invalid;
                };
                out.push(char::REPLACEMENT_CHARACTER);
                rest = &invalid[length..];
            }
        }
    }
}

impl PipelineState {
    /// Length in bytes of the incomplete character at the end of the held-back tokens.
    fn cut_bytes(&self, tokenizer: &Tokenizer) -> usize {
        let held = self.ids[self.emitted..].iter();
        let bytes: Vec<u8> = held
            .flat_map(|&id| tokenizer.raw_bytes(id).unwrap_or_default())
            .copied()
            .collect();
        emit_characters(&bytes, &mut String::new()).len()
    }

    fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        self.ids.push(id);
        let overdue = self.ids.len() - self.emitted > HELD_TOKENS;
        self.emit(tokenizer, overdue, out);
    }

    fn emit(&mut self, tokenizer: &Tokenizer, even_if_broken: bool, out: &mut String) {
        let before = tokenizer.decode_by_pipeline(&self.ids[..self.emitted], false);
        let with_new = tokenizer.decode_by_pipeline(&self.ids, false);
        let Some(new) = with_new.get(before.len()..).filter(|new| !new.is_empty()) else {
            return;
        };
        if new.ends_with(char::REPLACEMENT_CHARACTER) && !even_if_broken {
            return;
        }
        out.push_str(new);
        self.ids.drain(..self.emitted);
        self.emitted = self.ids.len();
    }
}
