//! Polls of one replica: health checks, metrics, models. They run independently, so that a stalled
//! poll does not delay the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_http::Client;
use penstock_routing::ReplicaId;
use serde::Deserialize;
use tokio::time::sleep;
use tracing::warn;

use crate::checks::{Check, PATHS, verdict, verdict_of_none};
use crate::fetch::get;
use crate::load::Polled;
use crate::member::Member;
use crate::metrics::reported;
use crate::process::Process;
use crate::push::Push;
use crate::shared::FleetState;

const MAX_HEALTH_BYTES: usize = 1 << 20;
const MAX_METRICS_BYTES: usize = 8 << 20;
const MAX_MODELS_BYTES: usize = 1 << 20;
const MAX_MODELS: usize = 1024;
/// Paths of the metrics page, tried in turn; trtllm-serve uses the second one.
const METRICS_PATHS: [&str; 2] = ["/metrics", "/prometheus/metrics"];
/// Maximum pause after failed scrapes; each failure doubles the pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Factor by which scrapes are less frequent for a replica that pushes its load.
const SLOWER: u32 = 10;

/// One replica, with the state that its polling tasks need.
#[derive(Clone)]
pub(crate) struct Poller {
    pub shared: Arc<FleetState>,
    pub client: Client,
    pub id: ReplicaId,
    pub member: Arc<Member>,
}

impl Poller {
    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let push = Push::default();
        tokio::join!(
            self.check(),
            self.scrape(&push),
            self.follow(&push),
            self.look_at_models()
        );
    }

    async fn get(&self, path: &str, seconds: f64, max: usize) -> Result<(u16, Vec<u8>), String> {
        let url = format!("{}{path}", self.member.base);
        let answer = get(&self.client, &url, Duration::from_secs_f64(seconds), max).await;
        match answer {
            Ok(answer) => {
                self.member.with(|record| record.process.answered());
                Ok(answer)
            }
            Err(none) => {
                if none.refused {
                    self.member.saw_process(Process::refused);
                }
                Err(none.reason)
            }
        }
    }

    async fn check(&self) {
        let settings = &self.shared.settings;
        let period = Duration::from_secs_f64(settings.health.period_s);
        loop {
            let check = self.check_once().await;
            let now = self.shared.now();
            self.member.update(now, settings, |record| {
                if let Check::Failed(reason) = &check {
                    record.reason.clone_from(reason);
                    record.saw_error(&format!("health check: {reason}"), now);
                }
                record.standing.saw_check(&check, settings);
            });
            self.shared.checked.notify_waiters();
            tokio::select! {
                () = sleep(period) => {}
                // rate limit: one check per tenth of a period, however many connections fail
                () = async { self.member.doubt.notified().await; sleep(period / 10).await } => {}
            }
        }
    }

    /// Tries the paths in order until one exists.
    async fn check_once(&self) -> Check {
        let settings = &self.shared.settings.health;
        let named = settings.path.as_deref();
        let paths = named.as_slice();
        let paths = if paths.is_empty() { &PATHS } else { paths };
        let (mut not_ready, mut statuses) = (None, Vec::new());
        for path in paths {
            let answer = self.get(path, settings.timeout_s, MAX_HEALTH_BYTES).await;
            let found = match answer {
                Ok((status, _)) => {
                    statuses.push(status);
                    verdict(status)
                }
                Err(reason) => return Check::Failed(reason),
            };
            match found {
                // healthy on another path, but `/ready` fails: the replica is draining
                Some(Check::Healthy) if not_ready.is_some() => return Check::Draining,
                Some(Check::Failed(reason)) if *path == PATHS[0] => not_ready = Some(reason),
                Some(check) => return check,
                None => {}
            }
        }
        not_ready.map_or_else(|| verdict_of_none(&statuses), Check::Failed)
    }

    async fn scrape(&self, push: &Push) {
        let period = Duration::from_secs_f64(self.shared.settings.metrics.period_s);
        let (mut pause, mut at, mut said) = (period, 0, false);
        let began = self.shared.now();
        // jitter, so that replicas are not all polled at once
        sleep(period.mul_f64(f64::from(self.id.0 % 16) / 16.0)).await;
        loop {
            match self.scrape_once(at).await {
                Ok(stream) => {
                    push.offer(stream);
                    (pause, said) = (period, false);
                }
                Err(reason) => {
                    at += 1;
                    pause = (pause * 2).min(MAX_PAUSE).max(period);
                    let old = self.silent_since(began) > self.shared.stale();
                    if old && !std::mem::replace(&mut said, true) {
                        self.say_stale(&reason);
                    }
                }
            }
            self.pause(pause, push).await;
        }
    }

    /// Waits for the next scrape: for `pause`, or longer while the replica pushes its load.
    async fn pause(&self, pause: Duration, push: &Push) {
        let now = || self.shared.now();
        let longest = now() + (pause * SLOWER).min(MAX_PAUSE).max(pause);
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = push.scrape.notified() => return,
            }
            let pushed = self.member.pushed.load();
            let pushed = pushed.as_ref().map_or(Duration::ZERO, |pushed| pushed.at);
            // after half of the maximum age of a report, so that every view has a fresh report
            let quiet = now().saturating_sub(pushed) > self.shared.stale() / 2;
            if !push.live() || quiet || now() >= longest {
                return;
            }
        }
    }

    /// Time since the last report, or since `began` without a report.
    fn silent_since(&self, began: Duration) -> Duration {
        let snapshot = self.shared.snapshot();
        let entry = snapshot.entry(self.id);
        let at = entry.and_then(|entry| entry.with_latest(|report| report.map(|one| one.at)));
        self.shared.now().saturating_sub(at.unwrap_or(began))
    }

    fn say_stale(&self, reason: &str) {
        let base = &self.member.base;
        warn!("{base} reports no load; only this gateway's requests count: {reason}");
    }

    /// `at` selects one of the default paths. Returns the path of the replica's load stream, if it
    /// has one.
    async fn scrape_once(&self, at: usize) -> Result<Option<Arc<str>>, String> {
        let settings = &self.shared.settings.metrics;
        let usual = METRICS_PATHS[at % METRICS_PATHS.len()];
        let path = settings.path.as_deref().unwrap_or(usual);
        let before = self.member.live.own();
        let (status, body) = self
            .get(path, settings.timeout_s, MAX_METRICS_BYTES)
            .await?;
        if status != 200 {
            return Err(format!("{path} has status {status}"));
        }
        // Validating UTF-8 first is several times faster than lossy decoding.
        let page = String::from_utf8(body);
        let page = page.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        let found = reported(&page);
        let reported = found.ok_or_else(|| format!("{path} states no load"))?;
        let (start, work) = (reported.process_start, reported.work);
        let stream = reported.load_stream.clone();
        self.member
            .saw_process(|process| process.reported(start, work));
        let polled = Polled {
            reported,
            at: self.shared.now(),
            own: before.most(self.member.live.own()),
        };
        self.shared.saw_report(self.id, polled);
        self.member.live.polled();
        Ok(stream)
    }

    /// Logs that a server lists no models, with a remedy if it requires a key.
    fn warn_unlisted(&self, status: u16) {
        let remedy = match status {
            401 | 403 => "; does it want a key? --backend-api-key is sent to it",
            _ => "",
        };
        let base = &self.member.base;
        warn!(
            "{base} lists no models (/v1/models has status {status}), so it gets only \
                 requests for models that no other replica lists{remedy}"
        );
    }

    async fn look_at_models(&self) {
        let settings = &self.shared.settings;
        let period = Duration::from_secs_f64(settings.models_period_s);
        let mut warned = false;
        loop {
            let seconds = settings.health.timeout_s;
            let answer = self.get("/v1/models", seconds, MAX_MODELS_BYTES).await;
            let listed = answer.ok();
            let listed = listed.map(|(status, body)| (status, models(status, &body)));
            let wait = match listed {
                Some((_, Some(models))) => {
                    self.shared
                        .change_entry(self.id, |entry| entry.models = Some(models));
                    self.shared.checked.notify_waiters();
                    warned = false;
                    period
                }
                other => {
                    if let Some((status, _)) = other
                        && !std::mem::replace(&mut warned, true)
                    {
                        self.warn_unlisted(status);
                    }
                    period.min(Duration::from_secs_f64(settings.health.period_s))
                }
            };
            self.member.asked.store(true, Ordering::Relaxed);
            self.shared.checked.notify_waiters();
            tokio::select! {
                () = sleep(wait) => {}
                () = self.member.back.notified() => {}
            }
        }
    }
}

/// Model names from `/v1/models`.
fn models(status: u16, body: &[u8]) -> Option<Arc<[Arc<str>]>> {
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    if status != 200 {
        return None;
    }
    let models: Models = serde_json::from_slice(body).ok()?;
    let names = models.data.into_iter().take(MAX_MODELS);
    Some(names.map(|model| Arc::from(model.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_the_ids_of_the_list() {
        let page = br#"{"object": "list", "data": [{"id": "a", "owned_by": "x"}, {"id": "b"}]}"#;
        let names = models(200, page).unwrap();
        assert_eq!(
            names.iter().map(AsRef::as_ref).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert!(models(401, page).is_none());
        assert!(models(200, b"<html>").is_none());
    }
}
