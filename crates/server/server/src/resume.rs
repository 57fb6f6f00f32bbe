//! Resumption of a stream that was interrupted at another server, from that server's time and
//! random seeds and the output so far.

use std::sync::Arc;

use penstock_api_types::{ApiError, Common, Origin};
use penstock_wire::TokenRequest;

use crate::admission::Limits;
use crate::app::App;
use crate::request_meta::RequestMeta;

/// Time and seeds of a response: new, or taken from the stream to resume.
pub(crate) fn origin(app: &Arc<App>, common: &Common, arrival: &RequestMeta) -> Origin {
    if let Some(resume) = &common.resume {
        return resume.origin;
    }
    let seed = common.seed.map(i64::cast_unsigned);
    let seed = seed.or(app.config.generation_defaults.seed);
    Origin {
        created: arrival.created(common),
        seed: seed.unwrap_or_else(|| app.guard.ids.next()),
        calls: app.guard.ids.next(),
    }
}

/// Appends the output so far to the prompt of a resumed request.
pub(crate) fn append(
    request: &mut TokenRequest,
    common: &Common,
    limits: &Limits,
    single: bool,
) -> Result<(), ApiError> {
    let Some(resume) = &common.resume else {
        return Ok(());
    };
    let tokens = resume.tokens();
    let refused = |what: &str| Err(ApiError::invalid("resume", format!("resume: {what}.")));
    if !single {
        return refused("it is for one prompt without prompt_logprobs");
    }
    if tokens.len() >= request.max_tokens as usize {
        return refused("it has all tokens already");
    }
    limits.check_tokens("resume", &tokens)?;
    request.prompt.extend_from_slice(&tokens);
    request.resumed = tokens.len() as u32;
    Ok(())
}
