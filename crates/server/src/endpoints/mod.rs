//! One file for each group of endpoints. A generation endpoint is one function, read downward:
//! parse, admit, tokenize, submit, answer.

pub(crate) mod chat;
mod chat_render;
pub(crate) mod completions;
mod completions_render;
pub(crate) mod info;
pub(crate) mod kv;
pub(crate) mod tokenize;

use std::sync::Arc;

use penstock_openai::ApiError;
use penstock_text::{TextError, TextModel};

use crate::app::App;

/// Text up to this many bytes is tokenized where it stands, in about a millisecond; more goes to a
/// thread of its own, so that other streams go on.
const INLINE_BYTES: usize = 4096;

/// Runs `work` on the model's text side. `bytes` is the size of the text.
async fn on_text<T: Send + 'static>(
    app: &Arc<App>,
    bytes: usize,
    work: impl FnOnce(&TextModel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    app.text()?;
    if bytes <= INLINE_BYTES {
        return work(app.text()?);
    }
    let app = app.clone();
    let joined = tokio::task::spawn_blocking(move || work(app.text()?)).await;
    joined.unwrap_or_else(|_| Err(ApiError::internal("Tokenizing the request failed.")))
}

/// Errors of templates and tokenizers are errors of the request: the model's files were checked at
/// the start.
fn text_error(field: &'static str, error: &TextError) -> ApiError {
    ApiError::invalid(field, format!("{error}."))
}
