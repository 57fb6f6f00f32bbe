//! Jobs on request bodies: small bodies are handled inline, larger ones on blocking threads.
//!
//! A body is parsed, admitted and tokenized in one job. The number of threads therefore limits the
//! intermediate memory, which can be a hundred times the body's size.

use std::sync::{Arc, Weak};

use penstock_api_types::{ApiError, Fields};
use penstock_http::HeldBody;
use penstock_tokenizer::{Conversation, TextError, TextModel};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;

/// After a body above this size, freed memory is returned to the system.
const TRIM_BYTES: usize = 256 << 10;
const RETRY_S: u32 = 1;
const FAILED: &str = "Reading the request failed.";

/// A body and the context for its job.
pub(crate) struct Job<'a> {
    pub(crate) app: &'a App,
    pub(crate) text: &'a TextModel,
    pub(crate) body: &'a [u8],
    /// Cannot be upgraded once the client has disconnected; `None` for inline jobs, which a
    /// disconnect cannot interrupt.
    client: Option<Weak<()>>,
}

/// A rendered and tokenized conversation.
pub(crate) struct ChatPrompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
}

impl Job<'_> {
    /// Fails if the client has disconnected. Called before each longer part of the job.
    pub(crate) fn check_client(&self) -> Result<(), ApiError> {
        let gone = |client: &Weak<()>| client.strong_count() == 0;
        if self.client.as_ref().is_some_and(gone) {
            return Err(ApiError::bad_request("The client has left."));
        }
        Ok(())
    }

    /// Renders and tokenizes a conversation, with the limits of [`Self::encode`].
    pub(crate) fn encode_chat(
        &self,
        chat: &Conversation<'_>,
        max_model_len: u32,
    ) -> Result<ChatPrompt, ApiError> {
        self.app.check_tokenizer("messages")?;
        self.check_client()?;
        let rendered = self
            .text
            .render(chat, !self.app.config.allow_special_tokens);
        let prompt = rendered.map_err(|error| text_error("messages", &error))?;
        self.check_client()?;
        self.check_length(prompt.text(), max_model_len)?;
        let ids = self.text.encode_rendered(&prompt);
        let ids = ids.map_err(|error| text_error("messages", &error))?;
        let text = prompt.written();
        Ok(ChatPrompt { ids, text })
    }

    /// Rejects a text that exceeds the context in any tokenization.
    fn check_length(&self, written: &str, max_model_len: u32) -> Result<(), ApiError> {
        if written.len() > self.text.longest_text(max_model_len).unwrap_or(usize::MAX) {
            return Err(ApiError::text_too_long(max_model_len, written.len()));
        }
        Ok(())
    }

    /// Tokenizes a prompt; text that cannot fit the context is rejected before tokenization.
    ///
    /// # Errors
    /// There is no tokenizer, the text is too long, the tokenizer rejects it, or the client has
    /// disconnected.
    pub(crate) fn encode(
        &self,
        field: &'static str,
        written: &str,
        add_special: bool,
        max_model_len: u32,
    ) -> Result<Vec<u32>, ApiError> {
        self.app.check_tokenizer(field)?;
        self.check_client()?;
        self.check_length(written, max_model_len)?;
        let encoded = self.text.tokenizer.encode(written, add_special);
        encoded.map_err(|error| text_error(field, &error))
    }
}

/// Maps template and tokenizer errors to errors of the request: the model's files were checked at
/// startup.
fn text_error(field: &'static str, error: &TextError) -> ApiError {
    match error {
        TextError::TemplateStart(_) => ApiError::unavailable(format!("{error}."), RETRY_S),
        error => ApiError::invalid(field, format!("{error}.")),
    }
}

const TEMPLATE: &str = "chat_template";

/// Whether the request contains a chat template, which may run for seconds. Parses the body as the
/// endpoint does; the endpoint rejects a non-object.
fn has_template(body: &[u8]) -> bool {
    Fields::parse(body).is_ok_and(|fields| fields.has(TEMPLATE))
}

/// Whether the body may contain the template field: its name, or an escape that may spell it. A
/// cheap byte search that avoids the parse of [`has_template`].
fn may_have_template(body: &[u8]) -> bool {
    [TEMPLATE, "\\u"]
        .iter()
        .any(|text| memchr::memmem::find(body, text.as_bytes()).is_some())
}

/// Like [`has_template`], for a body of any size. A body above the inline size is parsed on a
/// thread of its lane; the permit for that thread is returned.
async fn brings_template(
    app: &App,
    body: HeldBody,
) -> Result<(HeldBody, bool, Option<OwnedSemaphorePermit>), ApiError> {
    let (limits, size) = (&app.config.limits, body.bytes.len());
    if !app.config.trust_request_chat_template || !may_have_template(&body.bytes) {
        return Ok((body, false, None));
    }
    if size <= limits.inline_body_bytes {
        let templated = has_template(&body.bytes);
        return Ok((body, templated, None));
    }
    let turn = app.lanes.turn(size > limits.short_body_bytes).await?;
    let parsed = tokio::task::spawn_blocking(move || {
        let templated = has_template(&body.bytes);
        (body, templated, Some(turn))
    });
    parsed.await.map_err(|_| ApiError::internal(FAILED))
}

/// Runs `work` on a body, inline or on a thread.
///
/// # Errors
/// Errors of `work`; 503 while the tokenizer is not loaded, or if too many bodies are waiting.
pub(crate) async fn work_on<T: Send + 'static>(
    app: &Arc<App>,
    body: HeldBody,
    work: impl FnOnce(&Job<'_>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (body, templated, turn) = brings_template(app, body).await?;
    let (limits, size) = (&app.config.limits, body.bytes.len());
    if size <= limits.inline_body_bytes && !templated {
        let text = app.text()?;
        return work(&Job {
            app,
            text,
            body: &body.bytes,
            client: None,
        });
    }
    app.text()?;
    let long = size > limits.short_body_bytes;
    let turn = match (templated, turn) {
        (true, turn) => {
            drop(turn);
            app.lanes.template_turn().await?
        }
        (false, Some(turn)) => turn,
        (false, None) => app.lanes.turn(long).await?,
    };
    let client = Arc::new(());
    let (app, watched) = (app.clone(), Arc::downgrade(&client));
    let joined = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let done = work(&Job {
            app: &app,
            text: app.text()?,
            body: &body.bytes,
            client: Some(watched),
        });
        drop(body);
        if size > TRIM_BYTES {
            penstock_memory::trim();
        }
        done
    });
    let done = joined.await;
    drop(client);
    done.unwrap_or_else(|_| Err(ApiError::internal(FAILED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_without_the_name_of_the_field_are_not_parsed_for_it() {
        for body in ["{\"messages\": []}", "{\"chat_templat\": \"\\n\"}", ""] {
            assert!(!may_have_template(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn templates_are_found_as_the_endpoints_read_bodies() {
        for (body, has) in [
            ("{\"chat_template\": \"t\"}", true),
            ("\u{feff}{\"chat_template\": \"t\"}", true),
            ("{\"chat_template\": null, \"chat_template\": \"t\"}", true),
            ("{\"chat_template\": \"t\", \"chat_template\": null}", false),
            ("{\"chat_\\u0074emplate\": \"t\"}", true),
            ("{\"model\": 1, \"model\": 2, \"chat_template\": 3}", true),
            ("{\"chat_template\": null}", false),
            ("{\"messages\": [{\"chat_template\": \"t\"}]}", false),
            ("{\"chat_template\": \"t\"", false),
        ] {
            assert_eq!(has_template(body.as_bytes()), has, "{body}");
            assert!(may_have_template(body.as_bytes()), "{body}");
        }
    }
}
