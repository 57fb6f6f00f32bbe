//! A stream whose replica dies goes on on another one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use penstock_http::{Level, log};
use penstock_openai::RESUMABLE;
use penstock_routing::ReplicaId;
use tokio::time::Sleep;

use crate::attempt::{Answer, attempt};
use crate::call::Call;
use crate::gateway::Gateway;
use crate::marks::Marked;
use crate::pool::Pool;

/// How often one answer may go on elsewhere: a request that kills replicas is given up.
const MOST: usize = 5;
/// Between attempts when all replicas have been tried.
const PAUSE: Duration = Duration::from_millis(250);
/// A stream that has been silent for so long leaves a replica whose health checks fail.
const SILENCE: Duration = Duration::from_secs(1);

/// What an answer comes from, and would come from again.
#[derive(Debug)]
pub(crate) struct Trip {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) call: Call,
    pub(crate) pool: Arc<Pool>,
    /// The model's name there.
    pub(crate) model: String,
}

/// The search for another replica.
pub(crate) type Going = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

/// What an answer needs to go on.
#[derive(Debug)]
pub(crate) struct Failover {
    pub(crate) marked: Marked,
    /// The last words of the replica that broke off, for a client that gets no more.
    pub(crate) last_words: Bytes,
    began: Instant,
    times: usize,
    silence: Pin<Box<Sleep>>,
    moves: bool,
}

impl Failover {
    /// For an answer with marks.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        is_marked(headers).then(|| Self {
            marked: Marked::default(),
            last_words: Bytes::new(),
            began: Instant::now(),
            times: 0,
            silence: Box::pin(tokio::time::sleep(SILENCE)),
            moves: false,
        })
    }

    /// Notes that the replica has sent something.
    pub(crate) fn moves(&mut self) {
        self.moves = true;
    }

    /// Whether the replica has been silent for a while, and its health checks fail.
    pub(crate) fn hangs(&mut self, cx: &mut Context<'_>, pool: &Pool, replica: ReplicaId) -> bool {
        while let Poll::Ready(()) = self.silence.as_mut().poll(cx) {
            let next = tokio::time::Instant::now() + SILENCE;
            self.silence.as_mut().reset(next);
            if !std::mem::take(&mut self.moves) && pool.is_unhealthy(replica) {
                return true;
            }
        }
        false
    }

    /// Begins to look for another replica than the one that broke off; `None` where the answer
    /// cannot go on.
    pub(crate) fn go_on(&mut self, trip: &Arc<Trip>, lost: ReplicaId) -> Option<Going> {
        let (marks, last_words) = self.marked.broken();
        self.last_words = last_words;
        self.times += 1;
        let marks = marks?;
        if self.times > MOST {
            return None;
        }
        self.began = Instant::now();
        Some(Box::pin(elsewhere(trip.clone(), marks, lost)))
    }

    /// Notes that another replica has taken over.
    pub(crate) fn gone_on(&mut self, trip: &Trip, address: &str) {
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

fn goes_on(answer: &Answer) -> bool {
    answer.response.status() == StatusCode::OK && is_marked(answer.response.headers())
}

/// Another replica that goes on behind `marks`.
async fn elsewhere(trip: Arc<Trip>, marks: Vec<u8>, lost: ReplicaId) -> Option<Answer> {
    let patience = Duration::from_secs_f64(trip.gateway.config.resume_timeout_s);
    let body = trip.call.resumed(&marks);
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
                Ok(answer) if goes_on(&answer) => return Some(answer),
                Err(lost) if lost.absent => {}
                Ok(_) | Err(_) => attempts += 1,
            }
        }
        None
    };
    tokio::time::timeout(patience, looking).await.ok().flatten()
}
