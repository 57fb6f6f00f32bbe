//! Tokenizes prompts exactly as the server does. Runs on other threads than the connections.

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
/// Time-out of tokenization. When it passes, the request is routed without token ids.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum size in bytes of a body that is tokenized. Above it, the cost exceeds the benefit.
const MAX_BODY: usize = 2 << 20;

#[derive(Debug)]
pub(super) struct Tokens {
    model: Arc<TextModel>,
    threads: Arc<Semaphore>,
    counts: TokenCounts,
}

/// Number of prompts by outcome of their tokenization.
#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    pub(super) tokenized: AtomicU64,
    /// The body was too large, or tokenization took too long.
    pub(super) given_up: AtomicU64,
    /// The prompt is not only text, or the chat template or the tokenizer rejected it.
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

    /// Token ids of the prompt; `None` if it is not only text or tokenization takes too long.
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
        // the permit is held until the work is done, even if the request no longer waits for it
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
    /// Chat or completion, depending on the members of the body.
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

/// Tokens of the first prompt. A request with several prompts is sent to one replica, which is
/// chosen by the first prompt.
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
