//! The list-and-watch loop, which keeps the known objects of one kind up to date.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::api::Api;
use crate::api_error::ApiError;
use crate::backoff::{Backoff, chance};
use crate::event::{Page, malformed};
use crate::lines::{Lines, TooLong};
use crate::objects::{Objects, Snapshot, head};
use crate::watched::Watched;

/// Number of objects in a page of a list.
const PAGE: usize = 500;
/// Maximum size of a watch event in bytes; etcd limits objects to 1.5 MiB.
const EVENT_BYTES: usize = 8 << 20;
/// Maximum number of objects of one kind; a list with more counts as malformed.
const MOST_OBJECTS: usize = 100_000;
/// Maximum number of pages in a list that bring no new object.
const MOST_EMPTY: usize = 20;
/// A watch that ends within this time and without an event counts as failed.
const SHORT: Duration = Duration::from_secs(1);
/// A list or watch that lasted longer than this resets the backoff.
const LONG: Duration = Duration::from_secs(10);

/// Timeouts and pauses of a list or watch.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Initial and maximum pause between attempts.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// How long to wait for a page of a list, and for the response header of a watch.
    pub patience: Duration,
    /// Lifetime of a watch that is requested from the server; jitter adds up to half of it.
    pub watch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(30),
            patience: Duration::from_secs(30),
            watch: Duration::from_secs(240),
        }
    }
}

pub(crate) struct Follower<T> {
    pub(crate) api: Api,
    pub(crate) watched: Watched,
    pub(crate) timing: Timing,
    /// The known objects; `None` before the first list.
    pub(crate) published: watch::Sender<Option<Arc<Objects<T>>>>,
    pub(crate) changed: Arc<Notify>,
    /// Whether the current failure has been logged.
    pub(crate) failing: AtomicBool,
}

impl<T: DeserializeOwned + Clone + PartialEq> Follower<T> {
    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let mut known = Snapshot::nothing();
        let mut backoff = Backoff::new(self.timing.first_pause, self.timing.longest_pause);
        loop {
            let began = Instant::now();
            let ended = match known.version.clone() {
                None => self.list(&mut known).await,
                Some(version) => self.watch(&mut known, &version, &mut backoff).await,
            };
            if began.elapsed() >= LONG {
                backoff.reset();
            }
            let Err(trouble) = ended else { continue };
            if trouble.needs_list() {
                known.version = None;
            }
            if !trouble.is_usual() && !self.failing.swap(true, Ordering::Relaxed) {
                let place = self.place();
                warn!("{place}: {trouble}; what was known stays");
            }
            let mut pause = backoff.pause();
            if trouble.is_unknown_kind() {
                // The kind counts as empty, unless objects were listed before.
                if self.published.borrow().is_none() {
                    self.publish(Arc::default());
                }
                pause = backoff.long_pause();
            }
            sleep(pause).await;
        }
    }

    /// Records that the server accepted a watch, and logs it after a failure.
    fn works(&self) {
        if self.failing.swap(false, Ordering::Relaxed) {
            info!("{}: works again", self.place());
        }
    }

    fn place(&self) -> String {
        format!("{}: {}", self.api.server(), self.watched.said())
    }

    fn publish(&self, objects: Arc<Objects<T>>) {
        self.published.send_replace(Some(objects));
        self.changed.notify_one();
    }

    /// Lists all objects page by page.
    async fn list(&self, known: &mut Snapshot<T>) -> Result<(), ApiError> {
        let mut objects = Objects::new();
        let (mut place, mut empty) = (String::new(), 0);
        let version = loop {
            let mut query = self.watched.query();
            query.push(("limit", PAGE.to_string()));
            if !place.is_empty() {
                query.push(("continue", std::mem::take(&mut place)));
            }
            let url = self.api.url(&self.watched.path(), &query)?;
            let page = self.api.get(&url, self.timing.patience).await?;
            let page: Page<'_> = serde_json::from_slice(&page).map_err(malformed)?;
            let before = objects.len();
            for raw in page.items.into_iter().flatten() {
                let name = head(raw)?.name;
                if let Ok(object) = serde_json::from_str(raw.get()) {
                    objects.insert(name, object);
                }
            }
            if objects.len() > MOST_OBJECTS {
                return Err(ApiError::Malformed(format!("over {MOST_OBJECTS} objects")));
            }
            if page.metadata.r#continue.is_empty() {
                break page.metadata.resource_version;
            }
            place = page.metadata.r#continue;
            // a page may be empty if all of its objects were filtered out
            if objects.len() == before {
                empty += 1;
                if empty > MOST_EMPTY {
                    let text = format!("over {MOST_EMPTY} pages without a new object");
                    return Err(ApiError::Malformed(text));
                }
                sleep(self.timing.first_pause).await;
            }
        };
        if version.is_empty() {
            return Err(ApiError::Malformed("a list without a version".to_owned()));
        }
        if known.replace(objects, version) || self.published.borrow().is_none() {
            self.publish(known.objects.clone());
        }
        Ok(())
    }

    /// Watches for changes after `version`, until the server ends the watch.
    async fn watch(
        &self,
        known: &mut Snapshot<T>,
        version: &str,
        backoff: &mut Backoff,
    ) -> Result<(), ApiError> {
        let began = Instant::now();
        let length = self.timing.watch.mul_f64(1.0 + 0.5 * chance());
        let mut query = self.watched.query();
        query.extend([
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("resourceVersion", version.to_owned()),
            ("timeoutSeconds", length.as_secs().max(1).to_string()),
        ]);
        let url = self.api.url(&self.watched.path(), &query)?;
        let answer = self.api.open(&url, self.timing.patience).await?;
        self.works();
        let mut body = answer.into_body();
        let mut lines = Lines::new(EVENT_BYTES);
        // Ends a watch whose connection broke without notice.
        let deadline = began + length + self.timing.patience;
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sleep_until(deadline) => return Ok(()),
            };
            let data = match frame {
                None if began.elapsed() < SHORT => {
                    return Err(ApiError::Cut("it ended at once".to_owned()));
                }
                None => return Ok(()),
                Some(Err(error)) => return Err(ApiError::Cut(error.to_string())),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            let mut changed = false;
            let applied = lines.push(&data, |line| {
                changed |= known.apply(line)?;
                backoff.reset();
                Ok::<(), ApiError>(())
            });
            if changed {
                self.publish(known.objects.clone());
            }
            applied?;
        }
    }
}

impl From<TooLong> for ApiError {
    fn from(_: TooLong) -> Self {
        Self::Malformed(format!("an event of more than {EVENT_BYTES} bytes"))
    }
}
