//! State shared by the two sources of a replica's load: the scrapes of its metrics, and the reader
//! of its load stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// State of a replica's load stream.
#[derive(Debug, Default)]
pub(crate) struct Push {
    /// Path of the stream; `None`: the replica advertises none.
    offered: watch::Sender<Option<Arc<str>>>,
    /// Whether lines are arriving.
    live: AtomicBool,
    /// Triggers a scrape: the stream broke off, or the engine was replaced.
    pub(crate) scrape: Notify,
}

impl Push {
    /// Sets the path advertised in the metrics.
    pub(crate) fn offer(&self, path: Option<Arc<str>>) {
        self.offered.send_if_modified(|before| {
            let changed = *before != path;
            *before = path;
            changed
        });
    }

    pub(crate) fn live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns whether lines were arriving before.
    pub(crate) fn set_live(&self, live: bool) -> bool {
        self.live.swap(live, Ordering::Relaxed)
    }

    /// Waits for a stream to be advertised; returns its path.
    pub(crate) async fn offered(&self) -> Arc<str> {
        let mut offers = self.offered.subscribe();
        let offer = offers.wait_for(Option::is_some).await;
        let path = offer.ok().and_then(|path| path.clone());
        path.unwrap_or_default()
    }
}
