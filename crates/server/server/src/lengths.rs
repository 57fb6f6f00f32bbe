//! Length limits of prompts and outputs.

use penstock_api_types::{ApiError, Common, MaxTokens, Truncation};

use crate::admission::Limits;

/// Truncates a prompt if the request asks for it. A prompt as long as fits leaves room in the
/// context for one output token.
pub(crate) fn truncate(prompt: &mut Vec<u32>, truncation: Truncation, max_model_len: u32) {
    let most = match truncation.most {
        None => return,
        Some(0) => max_model_len.saturating_sub(1) as usize,
        Some(most) => most,
    };
    if truncation.keep_last {
        prompt.drain(..prompt.len().saturating_sub(most));
    } else {
        prompt.truncate(most);
    }
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
