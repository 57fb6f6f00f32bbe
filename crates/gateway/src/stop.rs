//! The moment at which what is still open is ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::watch;

/// Begins the end; dropped without it, there is none.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<bool>);

/// A wait for it.
pub(crate) struct Stop(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Stopper {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn wait(&self) -> Stop {
        let mut stopped = self.0.subscribe();
        Stop(Box::pin(async move {
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                std::future::pending().await
            }
        }))
    }
}

impl Stop {
    /// Whether it has come.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        matches!(self.0.as_mut().poll(cx), Poll::Ready(()))
    }

    /// Ready when it has come.
    pub(crate) async fn come(self) {
        self.0.await
    }
}
