//! Admits and tokenizes the inputs of pooled requests, and renders the common part of their
//! responses.

use penstock_api_types::{ApiError, Pooled, PoolingUsage, Truncation};
use penstock_tokenizer::shortened;
use penstock_wire::{Pooler, PoolerOutput};
use serde_json::{Value, json};

use crate::admission::Limits;
use crate::app::App;
use crate::jobs::Job;
use crate::pooling::Inputs;
use crate::render::Identity;
use crate::request_meta::RequestMeta;

/// Admits a request of `count` inputs; `encode` makes the token ids of each, in order.
pub(super) fn inputs(
    job: &Job<'_>,
    arrival: &RequestMeta,
    pooled: &Pooled,
    count: usize,
    mut encode: impl FnMut(usize, &Limits) -> Result<Vec<u32>, ApiError>,
) -> Result<Inputs, ApiError> {
    let permit = job.app.admit_pooled(count)?;
    let prompts = (0..count).map(|index| encode(index, &permit.limits));
    Ok(Inputs {
        prompts: prompts.collect::<Result<_, _>>()?,
        cache_salt: arrival.salt(pooled.cache_salt.as_deref()),
        priority: pooled.priority,
        permit,
    })
}

/// The kind of vectors that the engine returns.
///
/// # Errors
/// 400 if the model has no pooler; 503 while no engine is ready.
pub(super) fn pooler(app: &App) -> Result<Pooler, ApiError> {
    let limits = app.limits().ok_or_else(|| app.engine_down())?;
    match limits.pooler.output {
        PoolerOutput::None => Err(ApiError::unsupported_endpoint(
            "The engine keeps the hidden states of this model to itself",
        )),
        _ => Ok(limits.pooler),
    }
}

/// Token ids of a text, truncated if the request asks for it. Truncation keeps the surrounding
/// special tokens.
pub(super) fn encoded(
    job: &Job<'_>,
    field: &'static str,
    text: &str,
    pooled: &Pooled,
    limits: &Limits,
) -> Result<Vec<u32>, ApiError> {
    let (special, cut) = (pooled.add_special_tokens, pooled.truncation);
    let longest = cut.most.map_or(limits.max_model_len, |_| u32::MAX);
    let encode = |special| job.encode(field, text, special, longest);
    let mut ids = encode(special).map_err(|error| named(error, field))?;
    if let Some(most) = most(cut, limits).filter(|most| ids.len() > *most) {
        let bare = if special { encode(false)? } else { ids.clone() };
        ids = shortened(&ids, &bare, most, cut.keep_last);
    }
    checked(ids, field, limits)
}

/// Truncates and checks token ids sent by the client.
pub(super) fn given(
    mut ids: Vec<u32>,
    field: &'static str,
    pooled: &Pooled,
    limits: &Limits,
) -> Result<Vec<u32>, ApiError> {
    let cut = pooled.truncation;
    if let Some(most) = most(cut, limits).filter(|most| ids.len() > *most) {
        ids = shortened(&ids, &ids, most, cut.keep_last);
    }
    checked(ids, field, limits)
}

fn most(cut: Truncation, limits: &Limits) -> Option<usize> {
    cut.most.map(|most| match most {
        0 => limits.max_model_len as usize,
        most => most,
    })
}

fn checked(ids: Vec<u32>, field: &'static str, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    let longest = limits.max_model_len;
    if ids.is_empty() {
        return Err(ApiError::invalid(field, format!("{field} has no tokens.")));
    }
    if ids.len() > longest as usize {
        let error = ApiError::context_length(longest, ids.len(), None);
        return Err(named(error, field));
    }
    limits.check_tokens(field, &ids)?;
    Ok(ids)
}

/// Renames the parameter of a prompt error to `field`.
fn named(mut error: ApiError, field: &'static str) -> ApiError {
    error.param = error.param.map(|_| field.into());
    error
}

/// Renders a response with the list `member`, whose items are already JSON.
pub(super) fn body(
    identity: &Identity,
    member: &str,
    items: &[String],
    usage: PoolingUsage,
) -> Vec<u8> {
    let Identity { id, created, model } = identity;
    let (id, model) = (Value::from(id.as_str()), Value::from(model.as_str()));
    let (items, usage) = (items.join(","), json!(usage));
    format!(
        "{{\"id\":{id},\"object\":\"list\",\"created\":{created},\"model\":{model},\
         \"{member}\":[{items}],\"usage\":{usage}}}"
    )
    .into_bytes()
}
