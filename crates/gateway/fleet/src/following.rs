//! Reads the stream of load lines that a replica advertises in its metrics. While lines arrive, the
//! load is taken from them, and the metrics page is scraped only for other values.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use crate::load::{Polled, Reported};
use crate::polling::Poller;
use crate::push::Push;
use crate::pushed::{Line, Lines};

/// Initial and maximum pause between connection attempts. The pause doubles after each attempt; a
/// stream that lasted longer than the maximum pause resets it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Minimum timeout for a silent stream. An idle replica still sends a line every half second.
const LEAST_SILENCE: Duration = Duration::from_secs(1);

impl Poller {
    /// Runs until it is aborted.
    pub(crate) async fn follow(&self, push: &Push) {
        let mut pause = FIRST_PAUSE;
        loop {
            let path = push.offered().await;
            let began = Instant::now();
            let Err(reason) = self.read_stream(&path, push).await;
            if push.set_live(false) {
                let base = &self.member.base;
                let line = format!("{base}: load stream lost, polling its metrics: {reason}");
                info!("{line}");
                push.scrape.notify_one();
                self.member.doubt.notify_one();
            }
            if began.elapsed() > MAX_PAUSE {
                pause = FIRST_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Returns the reason why the stream ended or could not be opened.
    async fn read_stream(&self, path: &str, push: &Push) -> Result<Infallible, String> {
        let mut body = self.open_stream(path).await?;
        let silence = self.shared.stale().max(LEAST_SILENCE);
        let period = Duration::from_secs_f64(self.shared.settings.metrics.period_s);
        let (mut lines, mut last, mut sampled) = (Lines::default(), None, Instant::now());
        loop {
            let frame = timeout(silence, body.frame()).await;
            let frame = frame.map_err(|_| format!("nothing for {} s", silence.as_secs_f64()))?;
            let frame = frame.ok_or("the stream has ended")?;
            let frame = frame.map_err(|error| error.to_string())?;
            let data = frame.into_data().unwrap_or_default();
            if let Some(line) = lines.take(&data)? {
                let report = self.saw_line(line, last, push);
                last = Some(line);
                // sampled at the poll interval: with a sample per step, a busy second would
                // outweigh an idle minute
                if sampled.elapsed() >= period {
                    self.shared.count_others(&report);
                    sampled = Instant::now();
                }
            }
        }
    }

    async fn open_stream(&self, path: &str) -> Result<Incoming, String> {
        let request = Request::get(format!("{}{path}", self.member.base)).body(Bytes::new());
        let request = request.map_err(|error| error.to_string())?;
        let seconds = self.shared.settings.metrics.timeout_s;
        let answer = self.client.send(request);
        let answer = timeout(Duration::from_secs_f64(seconds), answer).await;
        let answer = answer.map_err(|_| format!("no answer in {seconds} s"))?;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 => Ok(answer.into_body()),
            status => Err(format!("{path} has status {status}")),
        }
    }

    /// Publishes the line as the replica's load. A line equal to the previous one is a keep-alive.
    /// It does not update the counts of this gateway's requests in flight.
    fn saw_line(&self, line: Line, last: Option<Line>, push: &Push) -> Arc<Polled> {
        let live = &self.member.live;
        let before = self.member.pushed.load();
        let same = before.as_ref().filter(|_| last == Some(line));
        let pushed = Polled {
            at: self.shared.now(),
            own: same.map_or_else(|| live.own(), |before| before.own),
            reported: line.over(&self.polled()),
        };
        let same = same.is_some();
        drop(before);
        let pushed = Arc::new(pushed);
        self.member.pushed.store(Some(pushed.clone()));
        if !same {
            live.polled();
        }
        if last.is_some_and(|last| line.step < last.step) {
            push.scrape.notify_one();
        }
        if !push.set_live(true) {
            info!("{} pushes its load", self.member.base);
        }
        pushed
    }

    /// The last scraped report.
    fn polled(&self) -> Reported {
        let snapshot = self.shared.snapshot();
        let polled = snapshot
            .entry(self.id)
            .and_then(|entry| entry.polled.as_ref());
        polled.map_or_else(Reported::default, |polled| polled.reported.clone())
    }
}
