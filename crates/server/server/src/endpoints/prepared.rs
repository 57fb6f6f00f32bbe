//! Common path of all chat protocols, from a chat request to its choices at the engine.

use std::sync::Arc;

use penstock_api_types::{ApiError, ChatRequest, Common, MaxTokens};
use penstock_tokenizer::Conversation;

use crate::admission::AdmissionPermit;
use crate::app::App;
use crate::call_grammar::CallConstraint;
use crate::choices::ChoiceStreams;
use crate::jobs::{ChatPrompt, Job};
use crate::lengths::truncate;
use crate::reading::Reading;
use crate::request_meta::RequestMeta;
use crate::submit::{EndpointParams, submit};

/// An admitted and tokenized request.
pub(super) struct AdmittedRequest {
    pub(super) common: Common,
    pub(super) logprobs: Option<u8>,
    prompt_logprobs: Option<u8>,
    pub(super) prompt: Vec<u32>,
    pub(super) permit: AdmissionPermit,
    reading: Reading,
    calls: Option<CallConstraint>,
}

const RESPONSE_FORMAT: &str = "response_format";

/// Admits a conversation and builds its prompt.
pub(super) fn prepare(job: &Job<'_>, request: ChatRequest) -> Result<AdmittedRequest, ApiError> {
    let common = &request.common;
    job.app.check_model(common.model.as_deref())?;
    let formats = job.app.formats()?;
    let permit = job.app.admit(common.n)?;
    let length = common.prompt_limit(permit.limits.max_model_len);
    let ChatPrompt { ids, text } = encode(job, &request, length)?;
    let reading = Reading::new(formats, &request, &text);
    let mut prompt = ids;
    truncate(&mut prompt, common.truncation, permit.limits.max_model_len);
    let calls = CallConstraint::of(&reading, &request)?;
    let mut common = request.common;
    // If calls are required, the output has no content. A response format constrains content, so
    // it is dropped.
    if calls.as_ref().is_some_and(CallConstraint::demanded)
        && let Some(other) = common.grammar.take()
        && other.field != RESPONSE_FORMAT
    {
        let message = format!("{} cannot be combined with demanded calls.", other.field);
        return Err(ApiError::invalid("tool_choice", message));
    }
    Ok(AdmittedRequest {
        common,
        logprobs: request.logprobs,
        prompt_logprobs: request.prompt_logprobs,
        prompt,
        permit,
        reading,
        calls,
    })
}

/// Counts the tokens of a conversation, without the limit of `max_model_len`.
pub(super) fn count(job: &Job<'_>, request: &ChatRequest) -> Result<usize, ApiError> {
    job.app.check_model(request.common.model.as_deref())?;
    Ok(encode(job, request, u32::MAX)?.ids.len())
}

/// Encodes the conversation; rejects a text that has too many bytes for `max_model_len` tokens.
fn encode(
    job: &Job<'_>,
    request: &ChatRequest,
    max_model_len: u32,
) -> Result<ChatPrompt, ApiError> {
    check_template(job, request.template.as_deref())?;
    let tools = request.tools.for_template();
    let chat = Conversation {
        messages: &request.messages,
        add_generation_prompt: request.add_generation_prompt,
        tools: tools.as_ref(),
        continue_final: request.continue_final,
        template: request.template.as_deref(),
        template_kwargs: Some(&request.template_kwargs),
    };
    job.encode_chat(&chat, max_model_len)
}

/// Rejects a template in the request unless the operator allows it.
pub(super) fn check_template(job: &Job<'_>, template: Option<&str>) -> Result<(), ApiError> {
    if template.is_some() && !job.app.config.trust_request_chat_template {
        let remedy = "leave it out, or start the server with --trust-request-chat-template";
        return Err(ApiError::unsupported("chat_template", remedy));
    }
    Ok(())
}

impl AdmittedRequest {
    /// Lowers `max_tokens` to the remaining context, for protocols that treat it as an upper bound
    /// and report the stop reason. Returns whether it was lowered.
    pub(super) fn fit(&mut self) -> bool {
        let window = self.permit.limits.max_model_len as usize;
        let room = window.saturating_sub(self.prompt.len());
        let more = match self.common.max_tokens {
            MaxTokens::Exactly(asked) => asked as usize > room,
            _ => true,
        };
        if more {
            self.common.max_tokens = MaxTokens::Remaining;
        }
        more
    }

    pub(super) async fn submit(
        mut self,
        app: &Arc<App>,
        arrival: RequestMeta,
    ) -> Result<(Common, ChoiceStreams), ApiError> {
        if let Some(calls) = self.calls {
            self.common.grammar = Some(calls.grammar(app).await?);
        }
        let params = EndpointParams {
            default_max_tokens: None,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            reading: Some(self.reading),
            arrival,
        };
        let choices = submit(app, &self.common, &params, vec![self.prompt], self.permit).await?;
        Ok((self.common, choices))
    }
}
