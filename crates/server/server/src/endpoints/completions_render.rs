//! Renders output deltas as completion chunks and completion responses.

use std::iter::once;
use std::sync::Arc;

use bytes::BytesMut;
use penstock_api_types::sse::{ChunkWriter, Tail};
use penstock_api_types::{
    CompletionChoice, CompletionLogprobs, CompletionResponse, PromptScores, Usage,
};
use penstock_tokenizer::{Detokenizer, Tokenizer};
use penstock_wire::LogprobRow;

use crate::delta::OutputDelta;
use crate::logprobs::{self, TokenNames, append_completion};
use crate::offsets::{Offsets, count, of_prompt};
use crate::render::{Identity, Render};

/// Optional contents of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) echo: bool,
    /// Number of alternatives per token of the text.
    pub(crate) logprobs: Option<u8>,
    /// Number of alternatives per prompt token, in a list of their own.
    pub(crate) prompt_logprobs: Option<u8>,
    pub(crate) tokens_as_ids: bool,
    pub(crate) token_ids: bool,
    /// Special tokens are left out of the text.
    pub(crate) skip_special: bool,
}

impl Style {
    /// Number of alternatives per prompt token that the response needs.
    pub(crate) fn scored_prompt(self) -> Option<u8> {
        let echoed = self.logprobs.filter(|_| self.echo);
        self.prompt_logprobs.max(echoed)
    }

    /// Whether the response needs the prompt's tokens.
    pub(crate) fn needs_prompt(self) -> bool {
        self.echo || self.token_ids || self.logprobs.is_some() || self.prompt_logprobs.is_some()
    }
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
    /// Number of choices per prompt.
    n: usize,
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
    /// `prompts` has an item for each choice, `n` in a row for each prompt.
    pub(crate) fn new(
        identity: Identity,
        tokenizer: Arc<Tokenizer>,
        style: Style,
        prompts: Vec<ShownPrompt>,
        n: usize,
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
            n,
        }
    }

    /// Puts the prompt before the first delta if the request has `echo`. `prompt_rows` are its
    /// log-probabilities.
    fn parts(&mut self, index: usize, delta: &OutputDelta, prompt_rows: &[LogprobRow]) -> Parts {
        let sent = &mut self.choices[index];
        let echo = self.style.echo && !std::mem::replace(&mut sent.started, true);
        let names = TokenNames {
            tokenizer: &self.tokenizer,
            as_ids: self.style.tokens_as_ids,
        };
        let logprobs = self.style.logprobs.map(|most| {
            let mut out = CompletionLogprobs::default();
            if echo {
                let rows = once(None).chain(prompt_rows.iter().map(Some));
                let prompt = &sent.prompt;
                let offsets = of_prompt(&self.tokenizer, &prompt.tokens, &prompt.text);
                let tokens = prompt.tokens.iter().copied().zip(offsets);
                append_completion(&mut out, names, most, tokens, rows);
            }
            let rows = delta.logprobs.iter().map(Some);
            let tokens = delta.tokens.iter();
            let tokens = tokens.map(|&token| (token, sent.offsets.next(token)));
            append_completion(&mut out, names, most, tokens, rows);
            out
        });
        let mut text = String::new();
        if echo {
            text.push_str(&sent.prompt.text);
        }
        text.push_str(&delta.text);
        Parts { text, logprobs }
    }

    /// For each prompt, its log-probabilities; `None` unless requested. The first choice's delta
    /// has them.
    fn prompt_scores(&self, deltas: &[OutputDelta]) -> Option<Vec<Vec<Option<PromptScores>>>> {
        let most = self.style.prompt_logprobs?;
        let firsts = self.choices.iter().zip(deltas).step_by(self.n);
        let scores = firsts.map(|(choice, delta)| {
            let tokens = &choice.prompt.tokens;
            logprobs::prompt(&self.tokenizer, most, tokens, &delta.prompt_logprobs)
        });
        Some(scores.collect())
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
            prompt_logprobs: None,
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
        let parts = self.parts(index, delta, &delta.prompt_logprobs);
        self.choices[index].started = true;
        let tokens_shown = self.style.token_ids || self.style.logprobs.is_some() || usage.is_some();
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
        let scores = self.prompt_scores(deltas);
        let mut parts = Vec::with_capacity(deltas.len());
        for (index, delta) in deltas.iter().enumerate() {
            let first = &deltas[index - index % self.n];
            parts.push(self.parts(index, delta, &first.prompt_logprobs));
        }
        let both = deltas.iter().zip(&parts).enumerate();
        let choices = both.map(|(index, (delta, parts))| CompletionChoice {
            prompt_logprobs: scores.as_ref().map(|scores| &*scores[index / self.n]),
            ..self.choice(index, true, delta, parts)
        });
        let response = CompletionResponse {
            id: &self.identity.id,
            object: "text_completion",
            created: self.identity.created,
            model: &self.identity.model,
            choices: choices.collect(),
            usage,
        };
        // Plain data with string keys always serialises.
        serde_json::to_vec(&response).unwrap_or_default()
    }
}
