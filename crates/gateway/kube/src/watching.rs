//! A watch of objects of one kind, run as a task.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::api::Api;
use crate::follow::{Follower, Published, Timing};
use crate::objects::Objects;
use crate::watched::Watched;

/// A watch; a drop ends its task.
#[derive(Debug)]
pub struct Watching<T> {
    published: Published<T>,
    task: AbortHandle,
}

impl<T> Drop for Watching<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: DeserializeOwned + Clone + PartialEq + Send + Sync + 'static> Watching<T> {
    /// Starts the watch on the current tokio runtime. `changed` is notified at each change.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(api: &Api, watched: Watched, timing: Timing, changed: &Arc<Notify>) -> Self {
        let published = Published::default();
        let follower = Follower {
            api: api.clone(),
            watched,
            timing,
            published: published.clone(),
            changed: changed.clone(),
            failing: AtomicBool::new(false),
        };
        Self {
            published,
            task: tokio::spawn(follower.run()).abort_handle(),
        }
    }

    /// The known objects; `None` before the first list. Empty for a kind unknown to the API server.
    pub fn objects(&self) -> Option<Arc<Objects<T>>> {
        let published = self.published.lock();
        published.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
