//! Failover of a stream: when its replica dies, another replica continues the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Response as HttpResponse, StatusCode};
use hyper::body::Incoming;
use penstock_api_types::RESUMABLE;
use penstock_http::{BodyShare, Level, log};
use penstock_routing::ReplicaId;

use crate::attempt::{Answer, attempt};
use crate::call::ProxiedRequest;
use crate::gateway::Gateway;
use crate::headers::is_read;
use crate::pool::Pool;
use crate::resume_markers::Marked;
use crate::text_resume::Continued;

/// Most replicas that may continue one answer: a request that kills replicas is given up.
const MOST: usize = 5;
/// Between attempts when all replicas have been tried.
const PAUSE: Duration = Duration::from_millis(250);

/// The request of an answer, kept to be sent to another replica.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) call: ProxiedRequest,
    pub(crate) pool: Arc<Pool>,
    /// The model's name there.
    pub(crate) model: String,
}

/// The search for another replica.
pub(crate) type ResumeFuture = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

/// How another replica learns where it goes on.
#[derive(Debug)]
enum Way {
    Marks(Marked),
    Text(Box<Continued>),
}

/// The state from which another replica can continue an answer.
#[derive(Debug)]
pub(crate) struct Failover {
    way: Way,
    /// The last words of the replica that broke off, for a client that gets no more.
    pub(crate) last_words: Bytes,
    began: Instant,
    times: usize,
    /// The request's body, which another replica would get; `None`: there was no room for it.
    kept: Option<BodyShare>,
}

impl Failover {
    /// For an answer with marks, or one that can be continued by its text. Where no room is left to
    /// keep the request, failover is off and the marks are only taken out.
    pub(crate) fn of(trip: &RequestContext, headers: &HeaderMap) -> Option<Self> {
        let way = match is_marked(headers) && is_read(headers) {
            true => Way::Marks(Marked::default()),
            false => Way::Text(Box::new(by_text(trip, headers)?)),
        };
        let mut kept = trip.gateway.kept_bodies.share();
        let (way, kept) = match (kept.grow(trip.call.body.len()), way) {
            (Ok(()), way) => (way, Some(kept)),
            (Err(_), way) => {
                trip.gateway.metrics.not_kept();
                match way {
                    Way::Marks(_) => (Way::Marks(Marked::flowing()), None),
                    Way::Text(_) => return None,
                }
            }
        };
        Some(Self {
            way,
            last_words: Bytes::new(),
            began: Instant::now(),
            times: 0,
            kept,
        })
    }

    /// Whether another replica could go on with the answer.
    pub(crate) fn may_go_on(&self) -> bool {
        self.kept.is_some()
    }

    /// Takes a whole event of the replica; adds to `out` what the client may have now.
    pub(crate) fn pass(&mut self, event: Bytes, out: &mut Vec<Bytes>) {
        match &mut self.way {
            Way::Marks(marked) => marked.pass(event, out),
            Way::Text(text) => text.pass(event, out),
        }
    }

    /// What was held back, when the answer has ended.
    pub(crate) fn rest(&mut self) -> Vec<Bytes> {
        match &mut self.way {
            Way::Marks(marked) => marked.rest(),
            Way::Text(text) => text.rest(),
        }
    }

    /// Whether the replica itself says that it cannot go on.
    pub(crate) fn failed(&self) -> bool {
        match &self.way {
            Way::Marks(marked) => marked.failed(),
            Way::Text(text) => text.failed(),
        }
    }

    /// Begins to look for another replica than the one that broke off; `None` where the answer
    /// cannot go on.
    pub(crate) fn go_on(
        &mut self,
        trip: &Arc<RequestContext>,
        lost: ReplicaId,
    ) -> Option<ResumeFuture> {
        let call = &trip.call;
        let (body, last_words, fits): (_, _, Fits) = match &mut self.way {
            Way::Marks(marked) => {
                let (marks, last_words) = marked.broken();
                (marks.map(|marks| call.resumed(&marks)), last_words, |of| {
                    is_marked(of) && is_read(of)
                })
            }
            Way::Text(text) => {
                let (body, last_words) = text.broken(&call.body);
                (body, last_words, is_read)
            }
        };
        self.last_words = last_words;
        self.times += 1;
        let body = body?;
        if self.times > MOST {
            return None;
        }
        self.began = Instant::now();
        Some(Box::pin(elsewhere(trip.clone(), body, lost, fits)))
    }

    /// Notes that another replica has taken over.
    pub(crate) fn gone_on(&mut self, trip: &RequestContext, address: &str) {
        if let Way::Text(text) = &mut self.way {
            text.moved();
        }
        let after = self.began.elapsed();
        trip.gateway.metrics.failover(Some(after));
        let (id, ms) = (&trip.call.id, after.as_millis());
        log(
            Level::Info,
            format!("{id}: {address} goes on with the answer after {ms} ms"),
        );
    }
}

/// Whether the answer can go on elsewhere.
fn is_marked(headers: &HeaderMap) -> bool {
    headers.contains_key(RESUMABLE)
}

/// The stream's text so far, where it may go on by it.
fn by_text(trip: &RequestContext, headers: &HeaderMap) -> Option<Continued> {
    let config = &trip.gateway.config;
    let wanted = config.resume_by_text && config.resume_timeout_s > 0.0 && is_read(headers);
    wanted
        .then(|| Continued::of(trip.call.path(), trip.call.price.choices))
        .flatten()
}

/// Whether an answer with these headers can continue another one.
type Fits = fn(&HeaderMap) -> bool;

/// Sends `body` to other replicas until one continues the answer.
async fn elsewhere(
    trip: Arc<RequestContext>,
    body: Bytes,
    lost: ReplicaId,
    fits: Fits,
) -> Option<Answer> {
    let patience = Duration::from_secs_f64(trip.gateway.config.resume_timeout_s);
    let goes_on = |answer: &HttpResponse<Incoming>| {
        answer.status() == StatusCode::OK && fits(answer.headers())
    };
    let looking = async {
        let (mut tried, mut attempts) = (vec![lost], 0);
        while attempts <= trip.gateway.config.retries {
            let Ok(routed) = trip.pool.route(&trip.model, &trip.call.prompt, &tried) else {
                // all were tried, or are not ready
                tokio::time::sleep(PAUSE).await;
                tried.truncate(1);
                continue;
            };
            tried.push(routed.decision.first().replica);
            match attempt(&trip.gateway, &trip.call, &body, &trip.pool, routed).await {
                Ok(answer) if goes_on(&answer.response) => return Some(answer),
                Err(lost) if lost.absent => {}
                Ok(_) | Err(_) => attempts += 1,
            }
        }
        None
    };
    tokio::time::timeout(patience, looking).await.ok().flatten()
}
