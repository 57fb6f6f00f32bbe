//! Length limits of prompts and outputs.

use penstock_api_types::{ApiError, Common, MaxTokens};

use crate::admission::Limits;

/// Truncates a prompt to its last tokens if the request has `truncate_prompt_tokens`.
pub(crate) fn truncate(prompt: &mut Vec<u32>, common: &Common, limits: Limits) {
    if let Some(most) = common.truncate_prompt {
        keep_last(prompt, most, limits.max_model_len);
    }
}

/// Keeps the last `most` tokens; 0: all that leave room in the context for one output token.
pub(crate) fn keep_last(prompt: &mut Vec<u32>, most: usize, max_model_len: u32) {
    let most = match most {
        0 => max_model_len.saturating_sub(1) as usize,
        most => most,
    };
    prompt.drain(..prompt.len().saturating_sub(most));
}

pub(crate) fn check_prompt(prompt: &[u32], limits: &Limits) -> Result<(), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::invalid("prompt", "The prompt has no tokens."));
    }
    limits.check_tokens("prompt", prompt)
}

/// Maximum number of output tokens; `unset` is the default if the request does not set one. At
/// least 1 even if the request asks for 0, because the engine always generates a token.
pub(crate) fn max_tokens(
    common: &Common,
    unset: Option<u32>,
    limits: &Limits,
    prompt_tokens: usize,
) -> Result<u32, ApiError> {
    let window = limits.max_model_len;
    let room = u32::try_from(prompt_tokens)
        .ok()
        .and_then(|n| window.checked_sub(n))
        .filter(|room| *room > 0);
    let room = room.ok_or_else(|| ApiError::context_length(window, prompt_tokens, None))?;
    match common.max_tokens {
        MaxTokens::Exactly(asked) if asked > room => {
            Err(ApiError::context_length(window, prompt_tokens, Some(asked)))
        }
        MaxTokens::Exactly(asked) => Ok(asked.max(1)),
        MaxTokens::Remaining => Ok(room),
        MaxTokens::Unset => Ok(unset.unwrap_or(room).min(room)),
    }
}
