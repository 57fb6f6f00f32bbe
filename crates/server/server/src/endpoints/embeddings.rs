//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_http::{Failure, json};
use penstock_api_types::{ApiError, EmbeddingInput, EmbeddingRequest, Encoding, Prompt, trimmed};
use penstock_http::request_id;
use penstock_tokenizer::Conversation;
use penstock_wire::{Pooler, PoolerOutput};

use super::pooled::{body, encoded, given, inputs, pooler};
use crate::app::App;
use crate::jobs::{Job, work_on};
use crate::pooling::{Inputs, pool};
use crate::request_meta::RequestMeta;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let sent = app.read_body(request).await?;
    let caller = arrival.clone();
    let prepared = work_on(&app, sent, move |job| prepare(job, &caller)).await?;
    let (form, mut items) = (
        prepared.form,
        vec![String::new(); prepared.inputs.prompts.len()],
    );
    let usage = pool(&app, &arrival, prepared.inputs, |index, vector| {
        let vector = trimmed(vector, form.dimensions, form.normalize);
        let vector = form.encoding.json(&vector);
        items[index] =
            format!("{{\"index\":{index},\"object\":\"embedding\",\"embedding\":{vector}}}");
    })
    .await?;
    let identity = app.identity("embd", &request_id, prepared.model, arrival.unix);
    Ok(json(body(&identity, "data", &items, usage)))
}

/// An admitted request.
struct AdmittedRequest {
    model: Option<String>,
    inputs: Inputs,
    form: Form,
}

/// Format of the vectors in the response.
#[derive(Clone, Copy)]
struct Form {
    encoding: Encoding,
    dimensions: Option<usize>,
    normalize: bool,
}

fn prepare(job: &Job<'_>, arrival: &RequestMeta) -> Result<AdmittedRequest, ApiError> {
    let request = EmbeddingRequest::parse(job.body)?;
    let pooled = request.pooled;
    job.app.check_model(pooled.model.as_deref())?;
    let pooler = pooler(job.app)?;
    let form = Form {
        encoding: request.encoding,
        dimensions: dimensions(request.dimensions, pooler)?,
        normalize: request
            .normalize
            .unwrap_or(pooler.output == PoolerOutput::UnitEmbedding),
    };
    let inputs = match request.input {
        EmbeddingInput::Prompts(mut prompts) => {
            let count = prompts.len();
            inputs(
                job,
                arrival,
                &pooled,
                count,
                |index, limits| match &mut prompts[index] {
                    Prompt::Text(text) => encoded(job, "input", text, &pooled, limits),
                    Prompt::Tokens(ids) => given(std::mem::take(ids), "input", &pooled, limits),
                },
            )
        }
        EmbeddingInput::Messages {
            messages,
            add_generation_prompt,
            template_kwargs,
        } => inputs(job, arrival, &pooled, 1, |_, limits| {
            let chat = Conversation {
                add_generation_prompt,
                template_kwargs: Some(&template_kwargs),
                ..Conversation::of(&messages)
            };
            let cut = pooled.truncation.most;
            let longest = cut.map_or(limits.max_model_len, |_| u32::MAX);
            given(
                job.encode_chat(&chat, longest)?.ids,
                "messages",
                &pooled,
                limits,
            )
        }),
    }?;
    Ok(AdmittedRequest {
        model: pooled.model,
        inputs,
        form,
    })
}

/// Checks the requested number of dimensions against the vector size.
fn dimensions(asked: Option<usize>, pooler: Pooler) -> Result<Option<usize>, ApiError> {
    if pooler.output == PoolerOutput::Labels {
        return Err(ApiError::unsupported_endpoint(
            "The model has a classification head and gives no embeddings: it is served at \
             /v1/score and /v1/rerank",
        ));
    }
    match asked {
        Some(asked) if asked > pooler.size as usize => {
            let message = format!("dimensions must be at most {}, got {asked}.", pooler.size);
            Err(ApiError::invalid("dimensions", message))
        }
        asked => Ok(asked),
    }
}
