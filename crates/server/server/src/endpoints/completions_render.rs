//! Renders output deltas as completion chunks and completion responses.

use std::iter::once;
use std::sync::Arc;

use bytes::BytesMut;
use penstock_api_types::sse::{ChunkWriter, Tail};
use penstock_api_types::{CompletionChoice, CompletionLogprobs, CompletionResponse, Usage};
use penstock_tokenizer::{Detokenizer, Tokenizer};

use crate::delta::OutputDelta;
use crate::logprobs::append_completion;
use crate::offsets::{Offsets, count, of_prompt};
use crate::render::{Identity, Render};

/// Optional contents of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) echo: bool,
    pub(crate) logprobs: bool,
    pub(crate) token_ids: bool,
    /// Special tokens are left out of the text.
    pub(crate) skip_special: bool,
}

/// The parts of a prompt that responses need, empty if unneeded. Shared by the choices of a prompt.
#[derive(Clone)]
pub(crate) struct ShownPrompt {
    pub(crate) text: Arc<str>,
    pub(crate) tokens: Arc<[u32]>,
}

impl ShownPrompt {
    /// Offsets of the output's tokens, which follow the prompt if it is echoed.
    fn output_offsets(&self, tokenizer: &Arc<Tokenizer>, style: Style) -> Offsets {
        let output = Detokenizer::new(Arc::clone(tokenizer), style.skip_special, &self.tokens);
        Offsets::of_output(output, count(&self.text))
    }
}

pub(crate) struct CompletionRender {
    identity: Identity,
    writer: ChunkWriter,
    tokenizer: Arc<Tokenizer>,
    style: Style,
    choices: Vec<ChoiceProgress>,
}

/// Progress of one choice's response.
struct ChoiceProgress {
    prompt: ShownPrompt,
    started: bool,
    /// Text offset of the next token with log-probabilities.
    offsets: Offsets,
}

/// A delta, preceded by the echoed prompt.
struct Parts {
    text: String,
    logprobs: Option<CompletionLogprobs>,
}

impl CompletionRender {
    pub(crate) fn new(
        identity: Identity,
        tokenizer: Arc<Tokenizer>,
        style: Style,
        prompts: Vec<ShownPrompt>,
    ) -> Self {
        let writer = ChunkWriter::new(
            &identity.id,
            "text_completion",
            identity.created,
            &identity.model,
        );
        let choices = prompts.into_iter().map(|prompt| ChoiceProgress {
            offsets: prompt.output_offsets(&tokenizer, style),
            prompt,
            started: false,
        });
        let choices = choices.collect();
        Self {
            identity,
            writer,
            tokenizer,
            style,
            choices,
        }
    }

    /// Puts the prompt before the first delta if the request has `echo`.
    fn parts(&mut self, index: usize, delta: &OutputDelta) -> Parts {
        let sent = &mut self.choices[index];
        let echo = self.style.echo && !std::mem::replace(&mut sent.started, true);
        let mut parts = Parts {
            text: String::new(),
            logprobs: self.style.logprobs.then(Default::default),
        };
        if let (true, Some(out)) = (echo, &mut parts.logprobs) {
            let rows = once(None).chain(delta.prompt_logprobs.iter().map(Some));
            let prompt = &sent.prompt;
            let offsets = of_prompt(&self.tokenizer, &prompt.tokens, &prompt.text);
            let tokens = prompt.tokens.iter().copied().zip(offsets);
            append_completion(out, &self.tokenizer, tokens, rows);
        }
        if let Some(out) = &mut parts.logprobs {
            let rows = delta.logprobs.iter().map(Some);
            let tokens = delta.tokens.iter();
            let tokens = tokens.map(|&token| (token, sent.offsets.next(token)));
            append_completion(out, &self.tokenizer, tokens, rows);
        }
        if echo {
            parts.text.push_str(&sent.prompt.text);
        }
        parts.text.push_str(&delta.text);
        parts
    }

    /// `first`: the choice's first chunk, or its only response.
    fn choice<'a>(
        &'a self,
        index: usize,
        first: bool,
        delta: &'a OutputDelta,
        parts: &'a Parts,
    ) -> CompletionChoice<'a> {
        let token_ids = self.style.token_ids;
        CompletionChoice {
            index: index as u32,
            text: &parts.text,
            logprobs: parts.logprobs.as_ref(),
            finish_reason: delta.finish,
            stop_reason: delta.stop_reason.as_ref(),
            prompt_token_ids: (token_ids && first).then_some(&*self.choices[index].prompt.tokens),
            token_ids: token_ids.then_some(delta.tokens.as_slice()),
        }
    }
}

impl Render for CompletionRender {
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        delta: &OutputDelta,
        usage: Option<&Usage>,
    ) {
        let first = !self.choices[index].started;
        let parts = self.parts(index, delta);
        self.choices[index].started = true;
        let tokens_shown = self.style.token_ids || self.style.logprobs || usage.is_some();
        let has_tokens = tokens_shown && !delta.tokens.is_empty();
        if first || !parts.text.is_empty() || delta.finish.is_some() || has_tokens {
            let choice = self.choice(index, first, delta, &parts);
            self.writer.choice(
                out,
                &choice,
                Tail {
                    usage,
                    prompt_token_ids: None,
                },
            );
        }
    }

    fn usage(&self, out: &mut BytesMut, usage: &Usage) {
        self.writer.usage(out, usage);
    }

    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8> {
        let parts: Vec<Parts> = deltas
            .iter()
            .enumerate()
            .map(|(index, delta)| self.parts(index, delta))
            .collect();
        let both = deltas.iter().zip(&parts).enumerate();
        let response = CompletionResponse {
            id: &self.identity.id,
            object: "text_completion",
            created: self.identity.created,
            model: &self.identity.model,
            choices: both
                .map(|(index, (delta, parts))| self.choice(index, true, delta, parts))
                .collect(),
            usage,
        };
        // Plain data with string keys always serialises.
        serde_json::to_vec(&response).unwrap_or_default()
    }
}
