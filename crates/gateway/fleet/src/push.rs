//! What the two that watch one replica's load tell each other: scrapes of its metrics, and the
//! reader of the stream that it pushes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// The state of a replica's stream.
#[derive(Debug, Default)]
pub(crate) struct Push {
    /// The path of the stream.
    offered: watch::Sender<Option<Arc<str>>>,
    /// Lines come.
    live: AtomicBool,
    /// A scrape is due: the stream has broken off, or comes from another engine.
    pub(crate) scrape: Notify,
}

impl Push {
    /// Notes what the metrics page says.
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

    /// Returns what was set before.
    pub(crate) fn set_live(&self, live: bool) -> bool {
        self.live.swap(live, Ordering::Relaxed)
    }

    /// Waits until there is a stream; its path.
    pub(crate) async fn offered(&self) -> Arc<str> {
        let mut offers = self.offered.subscribe();
        let offer = offers.wait_for(Option::is_some).await;
        let path = offer.ok().and_then(|path| path.clone());
        path.unwrap_or_default()
    }
}
