//! A watch of objects of one kind, which runs as a task.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::api::Api;
use crate::follow::{Follower, Timing};
use crate::objects::Objects;
use crate::watched::Watched;

/// Handle of a watch; a drop ends its task.
#[derive(Debug)]
pub struct Watching<T> {
    published: watch::Receiver<Option<Arc<Objects<T>>>>,
    task: AbortHandle,
}

impl<T> Drop for Watching<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: DeserializeOwned + Clone + PartialEq + Send + Sync + 'static> Watching<T> {
    /// Starts the watch on the current tokio runtime. `changed` is notified at each change of the
    /// objects.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(api: &Api, watched: Watched, timing: Timing, changed: &Arc<Notify>) -> Self {
        let (publisher, published) = watch::channel(None);
        let follower = Follower {
            api: api.clone(),
            watched,
            timing,
            published: publisher,
            changed: changed.clone(),
            failing: AtomicBool::new(false),
        };
        Self {
            published,
            task: tokio::spawn(follower.run()).abort_handle(),
        }
    }

    /// The known objects; `None` before the first list. If the API server does not know the kind,
    /// they are empty.
    pub fn objects(&self) -> Option<Arc<Objects<T>>> {
        self.published.borrow().clone()
    }
}
