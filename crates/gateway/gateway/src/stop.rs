//! The signal that ends streams that are still open after the drain.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::watch;

/// Sends the signal at most once. A drop does not send it.
#[derive(Debug)]
pub(crate) struct ShutdownSignal(watch::Sender<bool>);

/// A wait for the [`ShutdownSignal`].
pub(crate) struct ShutdownWait(Pin<Box<dyn Future<Output = ()> + Send>>);

impl ShutdownSignal {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn wait(&self) -> ShutdownWait {
        let mut stopped = self.0.subscribe();
        ShutdownWait(Box::pin(async move {
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                std::future::pending().await
            }
        }))
    }
}

impl ShutdownWait {
    /// Whether the signal has been sent.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        matches!(self.0.as_mut().poll(cx), Poll::Ready(()))
    }

    /// Completes when the signal has been sent.
    pub(crate) async fn come(self) {
        self.0.await
    }
}
