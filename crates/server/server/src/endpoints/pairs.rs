//! `POST /v1/score` and `POST /v1/rerank`: similarity of two texts, by the cosine of their
//! embeddings or by the model's classification head.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_http::{Failure, json as answer};
use penstock_api_types::{
    ApiError, Pooled, PoolingUsage, RerankRequest, ScoreRequest, cosine, sigmoid,
};
use penstock_http::{HeldBody, request_id};
use penstock_wire::PoolerOutput;
use serde_json::json;

use super::pooled::{body, encoded, inputs, pooler};
use crate::app::App;
use crate::jobs::{Job, work_on};
use crate::pooling::{Inputs, pool};
use crate::request_meta::RequestMeta;

pub(crate) async fn score(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let sent = app.read_body(request).await?;
    let (scores, usage, request) = scores(&app, &arrival, sent, |body| {
        let request = ScoreRequest::parse(body)?;
        let pairs = Pairs {
            pooled: request.pooled,
            fields: ["text_1", "text_2"],
            left: request.left,
            right: request.right,
            activation: request.activation,
        };
        Ok((pairs, ()))
    })
    .await?;
    let item = |(index, score): (usize, &f32)| {
        json!({"index": index, "object": "score", "score": score}).to_string()
    };
    let items: Vec<String> = scores.iter().enumerate().map(item).collect();
    let identity = app.identity("score", &request_id, request.0, arrival.unix);
    Ok(answer(body(&identity, "data", &items, usage)))
}

pub(crate) async fn rerank(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let sent = app.read_body(request).await?;
    let (scores, usage, (model, shown)) = scores(&app, &arrival, sent, |body| {
        let request = RerankRequest::parse(body)?;
        let shown = RerankStyle {
            top_n: request.top_n,
            documents: request.return_documents.then(|| request.documents.clone()),
        };
        let pairs = Pairs {
            pooled: request.pooled,
            fields: ["query", "documents"],
            left: vec![request.query],
            right: request.documents,
            activation: request.activation,
        };
        Ok((pairs, shown))
    })
    .await?;
    let item = |index: usize| {
        let mut item = json!({"index": index, "relevance_score": scores[index]});
        if let Some(documents) = &shown.documents {
            item["document"] = json!({"text": documents[index]});
        }
        item.to_string()
    };
    let best = ranked(&scores).into_iter().take(shown.top_n);
    let items: Vec<String> = best.map(item).collect();
    let identity = app.identity("rerank", &request_id, model, arrival.unix);
    Ok(answer(body(&identity, "results", &items, usage)))
}

/// Optional contents of rerank results.
struct RerankStyle {
    top_n: usize,
    documents: Option<Vec<String>>,
}

/// Texts to compare; the left side has one text, or the same number as the right side.
struct Pairs {
    pooled: Pooled,
    fields: [&'static str; 2],
    left: Vec<String>,
    right: Vec<String>,
    activation: bool,
}

/// Rule for turning vectors into scores.
enum Rule {
    /// The cosine of two embeddings. The first `left` vectors belong to the left side.
    Cosine { left: usize },
    /// Each pair has a vector of one logit; the activation turns it into a probability.
    Logit { activation: bool },
}

/// Returns the score of each pair, the number of tokens, and the request's model name and other
/// options.
async fn scores<T: Send + 'static>(
    app: &Arc<App>,
    arrival: &RequestMeta,
    sent: HeldBody,
    parse: impl FnOnce(&[u8]) -> Result<(Pairs, T), ApiError> + Send + 'static,
) -> Result<(Vec<f32>, PoolingUsage, (Option<String>, T)), ApiError> {
    let caller = arrival.clone();
    let prepared = work_on(app, sent, move |job| {
        let (pairs, rest) = parse(job.body)?;
        let (inputs, rule) = prepare(job, &caller, &pairs)?;
        Ok((inputs, rule, (pairs.pooled.model, rest)))
    });
    let (inputs, rule, rest) = prepared.await?;
    let mut vectors = vec![Vec::new(); inputs.prompts.len()];
    let usage = pool(app, arrival, inputs, |index, vector| {
        vectors[index] = vector
    })
    .await?;
    Ok((rule.apply(&vectors), usage, rest))
}

fn prepare(
    job: &Job<'_>,
    arrival: &RequestMeta,
    pairs: &Pairs,
) -> Result<(Inputs, Rule), ApiError> {
    let pooled = &pairs.pooled;
    job.app.check_model(pooled.model.as_deref())?;
    let pooler = pooler(job.app)?;
    let (left, right) = (&pairs.left, &pairs.right);
    if pooler.output != PoolerOutput::Labels {
        let count = left.len() + right.len();
        let inputs = inputs(job, arrival, pooled, count, |index, limits| {
            match index.checked_sub(left.len()) {
                None => encoded(job, pairs.fields[0], &left[index], pooled, limits),
                Some(index) => encoded(job, pairs.fields[1], &right[index], pooled, limits),
            }
        });
        return Ok((inputs?, Rule::Cosine { left: left.len() }));
    }
    if pooler.size != 1 {
        let reason = format!(
            "The model's classification head has {} labels, and a score is made of one",
            pooler.size
        );
        return Err(ApiError::unsupported_endpoint(&reason));
    }
    // Plain concatenation, as in vLLM for models whose tokenizer has no pair template.
    let inputs = inputs(job, arrival, pooled, right.len(), |index, limits| {
        let pair = format!("{}{}", left[index % left.len()], right[index]);
        encoded(job, pairs.fields[1], &pair, pooled, limits)
    });
    let activation = pairs.activation;
    Ok((inputs?, Rule::Logit { activation }))
}

impl Rule {
    fn apply(&self, vectors: &[Vec<f32>]) -> Vec<f32> {
        match *self {
            Self::Cosine { left } => {
                let (left, right) = vectors.split_at(left);
                let pairs = left.iter().cycle().zip(right);
                pairs.map(|(a, b)| cosine(a, b)).collect()
            }
            Self::Logit { activation } => {
                let logits = vectors.iter().flatten();
                logits
                    .map(|logit| if activation { sigmoid(*logit) } else { *logit })
                    .collect()
            }
        }
    }
}

/// Indexes by descending score; the sort is stable.
fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let descending = |a: &usize, b: &usize| scores[*b].partial_cmp(&scores[*a]);
    order.sort_by(|a, b| descending(a, b).unwrap_or(Ordering::Equal));
    order
}
