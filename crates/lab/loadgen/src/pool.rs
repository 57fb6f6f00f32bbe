//! Pool of idle connections, which later requests reuse.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connect::Connect;
use crate::stamps::Stamps;

/// Idle time after which a connection is not reused. Shorter than the 5 s of uvicorn (vLLM, SGLang)
/// and cpp-httplib (llama.cpp), so that the client closes first.
const KEPT: Duration = Duration::from_secs(4);

/// An open connection that carries no request.
pub(crate) struct Link<S> {
    pub(crate) stream: S,
    pub(crate) stamps: Rc<Stamps>,
    /// When the connection was established, in seconds since the start of the load.
    pub(crate) since: f64,
}

pub(crate) struct Pool<C: Connect> {
    /// Each connection, with the time when it became idle.
    idle: RefCell<Vec<(Instant, Link<C::Stream>)>>,
}

impl<C: Connect> Pool<C> {
    pub(crate) fn new() -> Self {
        Self {
            idle: RefCell::default(),
        }
    }

    pub(crate) fn put(&self, link: Link<C::Stream>) {
        self.idle.borrow_mut().push((Instant::now(), link));
    }

    /// The most recently used connection that has not been idle for too long and is not closed by
    /// the server. The server may still close it at the same time.
    pub(crate) fn take(&self) -> Option<Link<C::Stream>> {
        let mut idle = self.idle.borrow_mut();
        while let Some((since, mut link)) = idle.pop() {
            if since.elapsed() < KEPT && C::is_quiet(&mut link.stream) {
                return Some(link);
            }
        }
        None
    }
}
