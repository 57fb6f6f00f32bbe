//! Tokenization of prompts, identical to the server's, on threads separate from connection
//! handling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::Bytes;
use penstock_api_types::{ChatRequest, CompletionRequest, Prompt};
use penstock_tokenizer::{Conversation, TextModel};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Path of the explain endpoint.
pub(crate) const EXPLAIN: &str = "/route/explain";
/// Time-out of tokenization; a slower request is routed without token ids.
const PATIENCE: Duration = Duration::from_millis(200);
/// Larger bodies are not tokenized: the cost would exceed the benefit.
const MAX_BODY: usize = 2 << 20;

#[derive(Debug)]
pub(super) struct Tokens {
    model: Arc<TextModel>,
    threads: Arc<Semaphore>,
    counts: TokenCounts,
}

/// Outcomes of tokenization.
#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    pub(super) tokenized: AtomicU64,
    /// Body too large, or timed out.
    pub(super) given_up: AtomicU64,
    /// Not text only, or rejected by the template or the tokenizer.
    pub(super) other: AtomicU64,
}

impl Tokens {
    pub(super) fn new(model: TextModel) -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        Self {
            model: Arc::new(model),
            threads: Arc::new(Semaphore::new(threads)),
            counts: TokenCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> &TokenCounts {
        &self.counts
    }

    /// Token ids; `None` if the request has no text prompt or tokenization times out.
    pub(super) async fn of(&self, path: &str, body: Bytes) -> Option<Vec<u32>> {
        let kind = Kind::of(path)?;
        let counts = &self.counts;
        let made = match body.len() <= MAX_BODY {
            true => timeout(PATIENCE, self.make(kind, body)).await.ok(),
            false => None,
        };
        let counter = match &made {
            Some(Some(_)) => &counts.tokenized,
            Some(None) => &counts.other,
            None => &counts.given_up,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        made.flatten()
    }

    async fn make(&self, kind: Kind, body: Bytes) -> Option<Vec<u32>> {
        // held until the work is done, even if the request has timed out meanwhile
        let turn = self.threads.clone().acquire_owned().await.ok()?;
        let model = self.model.clone();
        let work = spawn_blocking(move || {
            let _turn = turn;
            kind.encode(&model, &body)
        });
        work.await.ok().flatten()
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Chat,
    Completion,
    /// Any of the above, detected from the fields of the body.
    Explained,
}

impl Kind {
    fn of(path: &str) -> Option<Self> {
        match path.split('?').next() {
            Some("/v1/chat/completions") => Some(Self::Chat),
            Some("/v1/completions") => Some(Self::Completion),
            Some(EXPLAIN) => Some(Self::Explained),
            _ => None,
        }
    }

    fn encode(self, model: &TextModel, body: &[u8]) -> Option<Vec<u32>> {
        match self {
            Self::Chat => chat(model, body),
            Self::Completion => completion(model, body),
            Self::Explained => chat(model, body).or_else(|| completion(model, body)),
        }
    }
}

fn chat(model: &TextModel, body: &[u8]) -> Option<Vec<u32>> {
    let request = ChatRequest::parse(body).ok()?;
    let tools = request.tools.for_template();
    let chat = Conversation {
        messages: &request.messages,
        add_generation_prompt: request.add_generation_prompt,
        tools: tools.as_ref(),
        continue_final: request.continue_final,
        template: None,
        template_kwargs: Some(&request.template_kwargs),
    };
    if request.template.is_some() {
        return None;
    }
    let prompt = model.render(&chat, true).ok()?;
    model.encode_rendered(&prompt).ok()
}

/// A completion request with several prompts goes to one replica; the first prompt decides.
fn completion(model: &TextModel, body: &[u8]) -> Option<Vec<u32>> {
    let request = CompletionRequest::parse(body).ok()?;
    match request.prompts.into_iter().next()? {
        Prompt::Text(text) => model
            .tokenizer
            .encode(&text, request.add_special_tokens)
            .ok(),
        Prompt::Tokens(ids) => Some(ids),
    }
}
