//! Failover of a stream: when its replica fails, another replica resumes the response.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Response as HttpResponse, StatusCode};
use hyper::body::Incoming;
use penstock_api_types::RESUMABLE;
use penstock_api_types::sse_reader::Event;
use penstock_http::BodyShare;
use penstock_routing::ReplicaId;
use tracing::info;

use crate::attempt::{Answer, attempt};
use crate::call::ProxiedRequest;
use crate::filter::BodyFilter;
use crate::gateway::Gateway;
use crate::headers::is_read;
use crate::pool::Pool;
use crate::resume_markers::Marked;
use crate::text_resume::Continued;

/// Maximum number of failovers for one response, because a request may itself make replicas fail.
const MOST: usize = 5;
/// Pause before the next round, when all replicas have been tried or none accepts requests.
const PAUSE: Duration = Duration::from_millis(250);

/// A request in flight, kept so that another replica can resume its response.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) call: ProxiedRequest,
    pub(crate) pool: Arc<Pool>,
    /// The model's name in the pool, which may differ from the client's name for it.
    pub(crate) model: String,
}

/// The search for a replica that resumes the response; `None`: not found.
pub(crate) type ResumeFuture = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

/// Method of resumption at another replica: by resume markers, or by the text so far.
#[derive(Debug)]
enum Way {
    Marks(Marked),
    Text(Box<Continued>),
}

/// State from which another replica can resume a response.
#[derive(Debug)]
pub(crate) struct Failover {
    way: Way,
    /// The last bytes from the replica that failed. The client gets them if the response cannot be
    /// resumed.
    pub(crate) last_words: Bytes,
    began: Instant,
    times: usize,
    /// The kept request body's share of the memory budget; `None` if the budget is exhausted.
    kept: Option<BodyShare>,
}

impl Failover {
    /// Failover for a response that has resume markers or can be resumed from its text. If the
    /// memory budget does not allow keeping the request, failover is disabled; resume markers are
    /// still removed from the stream.
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

    /// Whether another replica may resume the response.
    pub(crate) fn may_go_on(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether the replica has reported that it cannot continue.
    pub(crate) fn failed(&self) -> bool {
        match &self.way {
            Way::Marks(marked) => marked.failed(),
            Way::Text(text) => text.failed(),
        }
    }

    /// Starts the search for a replica other than `lost`, which failed; `None` if the response
    /// cannot be resumed.
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

    /// Records that another replica has taken over.
    pub(crate) fn gone_on(&mut self, trip: &RequestContext, address: &str) {
        if let Way::Text(text) = &mut self.way {
            text.moved();
        }
        let after = self.began.elapsed();
        trip.gateway.metrics.failover(Some(after));
        let (id, ms) = (&trip.call.id, after.as_millis());
        info!("{id}: continued on {address} after {ms} ms");
    }
}

impl BodyFilter for Failover {
    /// Removes resume markers or rewrites events. Holds back events that another replica may send
    /// again.
    fn events(&mut self, events: &mut Vec<Event>) {
        for event in std::mem::take(events) {
            match &mut self.way {
                Way::Marks(marked) => marked.pass(event, events),
                Way::Text(text) => text.pass(event, events),
            }
        }
    }

    fn release(&mut self, events: &mut Vec<Event>) {
        events.append(&mut match &mut self.way {
            Way::Marks(marked) => marked.rest(),
            Way::Text(text) => text.rest(),
        });
    }
}

/// Whether the response's headers announce resume markers.
fn is_marked(headers: &HeaderMap) -> bool {
    headers.contains_key(RESUMABLE)
}

/// Collects the text of the stream, if the stream may be resumed from it.
fn by_text(trip: &RequestContext, headers: &HeaderMap) -> Option<Continued> {
    let config = &trip.gateway.config;
    let wanted = config.resume_by_text && config.resume_timeout_s > 0.0 && is_read(headers);
    wanted
        .then(|| Continued::of(trip.call.path(), trip.call.price.choices))
        .flatten()
}

/// Whether the headers of another replica's response allow it to continue the broken one.
type Fits = fn(&HeaderMap) -> bool;

/// Sends `body` to other replicas until one of them resumes the response.
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
                // all replicas were tried, or none is ready
                tokio::time::sleep(PAUSE).await;
                tried.truncate(1);
                continue;
            };
            tried.push(routed.choice.decision.first().replica);
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
