//! Pushes the engine's load as a stream of lines, so that gateways need not poll it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use penstock_engine_client::{Engine, EngineState, Progress};
use penstock_wire::Ready;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

/// Path of the stream; the metrics page names it.
pub(crate) const LOAD_STREAM: &str = "/metrics/stream";
/// Upper bound on concurrent streams: each holds a connection and needs no API key.
pub(crate) const MAX_STREAMS: usize = 64;
/// Minimum time between two lines of a stream.
const GAP: Duration = Duration::from_millis(5);
/// Heartbeat interval while nothing changes.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// The load streams of a server.
#[derive(Debug)]
pub(crate) struct LoadStreams {
    places: Arc<Semaphore>,
}

impl Default for LoadStreams {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }
}

impl LoadStreams {
    /// Opens a stream: a JSON line now, then one per engine step. `None` at the limit.
    pub(crate) fn open(&self, engine: &Engine) -> Option<Body> {
        let lines = Lines {
            progress: engine.watch_progress(),
            states: engine.watch(),
            last: None,
            _place: self.places.clone().try_acquire_owned().ok()?,
        };
        Some(Body::from_stream(unfold(lines, Lines::next)))
    }
}

/// The lines of one stream, rendered on demand: a slow reader gets fewer lines, each with the
/// latest state.
struct Lines {
    progress: watch::Receiver<Progress>,
    states: watch::Receiver<EngineState>,
    /// Time of the last line.
    last: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Lines {
    /// Waits for the next line; `None` after the engine has ended for good.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if let Some(last) = self.last {
            self.due(last).await?;
        }
        self.last = Some(Instant::now());
        let stats = self.progress.borrow_and_update().stats;
        let state = self.states.borrow().clone();
        let ready = state.ready().map(Arc::as_ref);
        let line = Line {
            step: stats.step,
            waiting: stats.waiting,
            running: stats.running,
            kv_use: f64::from(stats.blocks_used) / f64::from(stats.blocks_total.max(1)),
            kv_tokens: ready.map(kv_tokens),
        };
        // Plain numbers always serialise.
        let mut line = serde_json::to_vec(&line).unwrap_or_default();
        line.push(b'\n');
        Some((Ok(line.into()), self))
    }

    async fn due(&mut self, last: Instant) -> Option<()> {
        sleep_until(last + GAP).await;
        let ended = async {
            let ended = self.states.wait_for(has_ended).await;
            drop(ended);
        };
        tokio::select! {
            biased;
            () = ended => None,
            changed = self.progress.changed() => changed.ok(),
            () = sleep_until(last + HEARTBEAT) => Some(()),
        }
    }
}

fn has_ended(state: &EngineState) -> bool {
    match state {
        EngineState::Failed { .. } | EngineState::Unsupervised | EngineState::Stopped => true,
        EngineState::Starting | EngineState::Ready(_) | EngineState::Down { .. } => false,
    }
}

fn kv_tokens(ready: &Ready) -> u64 {
    u64::from(ready.block_size) * u64::from(ready.num_blocks)
}

/// Members of a line, documented in docs/api.md.
#[derive(Serialize)]
struct Line {
    step: u64,
    waiting: u32,
    running: u32,
    kv_use: f64,
    /// Absent while no engine is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::BodyExt;
    use penstock_wire::StepStats;

    use super::*;

    struct Rig {
        progress: watch::Sender<Progress>,
        states: watch::Sender<EngineState>,
        body: Body,
    }

    fn rig() -> Rig {
        let at = Instant::now();
        let stats = StepStats::default();
        let progress = watch::Sender::new(Progress { stats, at });
        let states = watch::Sender::new(EngineState::Starting);
        let lines = Lines {
            progress: progress.subscribe(),
            states: states.subscribe(),
            last: None,
            _place: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        };
        let body = Body::from_stream(unfold(lines, Lines::next));
        Rig {
            progress,
            states,
            body,
        }
    }

    impl Rig {
        fn step(&self, step: u64) {
            self.progress
                .send_modify(|progress| progress.stats.step = step);
        }

        async fn line(&mut self) -> Option<String> {
            let frame = self.body.frame().await?.unwrap();
            let line = frame.into_data().unwrap();
            Some(String::from_utf8(line.to_vec()).unwrap())
        }
    }

    fn line(step: u64) -> String {
        format!("{{\"step\":{step},\"waiting\":0,\"running\":0,\"kv_use\":0.0}}\n")
    }

    #[tokio::test]
    async fn a_reader_that_reads_nothing_misses_all_but_the_latest_state() {
        let mut rig = rig();
        for last in [100_000, 200_000] {
            (0..=last).for_each(|step| rig.step(step));
            assert_eq!(rig.line().await, Some(line(last)));
        }
        rig.step(200_001);
        assert_eq!(rig.line().await, Some(line(200_001)));
    }

    #[tokio::test]
    async fn steps_that_follow_closely_share_a_line() {
        let mut rig = rig();
        let began = Instant::now();
        let (mut lines, mut step) = (0, 0);
        while began.elapsed() < GAP * 10 {
            step += 1;
            rig.step(step);
            lines += usize::from(rig.line().await.is_some());
        }
        assert!(lines as f64 <= began.elapsed().as_secs_f64() / GAP.as_secs_f64() + 1.0);
        assert_eq!(step, lines as u64);
    }

    #[tokio::test]
    async fn a_stream_has_lines_while_nothing_happens_and_ends_with_the_engine() {
        let mut rig = rig();
        assert_eq!(rig.line().await, Some(line(0)));
        let began = Instant::now();
        assert_eq!(rig.line().await, Some(line(0)));
        assert!(began.elapsed() >= HEARTBEAT / 2);
        rig.states.send_replace(EngineState::Stopped);
        assert_eq!(rig.line().await, None);
    }
}
