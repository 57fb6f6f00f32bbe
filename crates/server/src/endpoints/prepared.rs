//! Conversations of all protocols, from a chat request to its choices at the engine.

use std::sync::Arc;

use penstock_openai::{ApiError, ChatRequest, Common, MaxTokens};

use crate::admission::AdmissionPermit;
use crate::app::App;
use crate::arrival::Arrival;
use crate::choices::ChoiceStreams;
use crate::jobs::Job;
use crate::submit::{EndpointParams, submit, truncate};

/// An admitted and tokenized request.
pub(super) struct Prepared {
    pub(super) common: Common,
    pub(super) logprobs: Option<u8>,
    pub(super) prompt: Vec<u32>,
    pub(super) permit: AdmissionPermit,
}

/// Admits a conversation and makes its prompt.
pub(super) fn prepare(job: &Job<'_>, request: ChatRequest) -> Result<Prepared, ApiError> {
    let common = request.common;
    if request.tools.callable() {
        let remedy = "leave it out or send it empty";
        return Err(ApiError::unsupported("tools", remedy));
    }
    job.app.check_model(common.model.as_deref())?;
    let permit = job.app.admit(common.n)?;
    let mut prompt = job.encode_chat(
        &request.messages,
        request.add_generation_prompt,
        &request.template_kwargs,
        common.prompt_limit(permit.limits.max_model_len),
    )?;
    truncate(&mut prompt, &common, permit.limits);
    Ok(Prepared {
        common,
        logprobs: request.logprobs,
        prompt,
        permit,
    })
}

/// Tokens of a conversation of any length.
pub(super) fn count(job: &Job<'_>, request: &ChatRequest) -> Result<usize, ApiError> {
    job.app.check_model(request.common.model.as_deref())?;
    let tokens = job.encode_chat(
        &request.messages,
        request.add_generation_prompt,
        &request.template_kwargs,
        u32::MAX,
    )?;
    Ok(tokens.len())
}

impl Prepared {
    /// Lowers the tokens asked for to those that fit, for protocols in which they are a bound and
    /// the response tells what it ended by. Returns whether they were more.
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

    pub(super) fn submit(
        self,
        app: &Arc<App>,
        arrival: Arrival,
    ) -> Result<(Common, ChoiceStreams), ApiError> {
        let params = EndpointParams {
            default_max_tokens: None,
            logprobs: self.logprobs,
            prompt_logprobs: None,
            arrival,
        };
        let choices = submit(app, &self.common, &params, vec![self.prompt], self.permit)?;
        Ok((self.common, choices))
    }
}
