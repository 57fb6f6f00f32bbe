//! Pool of idle connections.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connect::Connect;
use crate::stamps::Stamps;

/// How long an idle connection is kept: less than the 5 s after which uvicorn (vLLM, SGLang) and
/// cpp-httplib (llama.cpp) close theirs, so that this end closes first.
const KEPT: Duration = Duration::from_secs(4);

/// An open connection between requests.
pub(crate) struct Link<S> {
    pub(crate) stream: S,
    pub(crate) stamps: Rc<Stamps>,
    /// When it was established, seconds after the start.
    pub(crate) since: f64,
}

pub(crate) struct Pool<C: Connect> {
    /// With the time since when each has been idle.
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

    /// The connection used last that is not too old and that the server has not closed meanwhile.
    /// The server may close it in this moment still.
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
