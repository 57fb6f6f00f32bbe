//! Pool of idle connections.

use std::cell::RefCell;
use std::rc::Rc;

use crate::connect::Connect;
use crate::stamps::Stamps;

/// An open connection between requests.
pub(crate) struct Link<S> {
    pub(crate) stream: S,
    pub(crate) stamps: Rc<Stamps>,
    /// When it was established, seconds after the start.
    pub(crate) since: f64,
}

pub(crate) struct Pool<C: Connect> {
    idle: RefCell<Vec<Link<C::Stream>>>,
}

impl<C: Connect> Pool<C> {
    pub(crate) fn new() -> Self {
        Self {
            idle: RefCell::default(),
        }
    }

    pub(crate) fn put(&self, link: Link<C::Stream>) {
        self.idle.borrow_mut().push(link);
    }

    /// The connection used last that the server has not closed meanwhile.
    pub(crate) fn take(&self) -> Option<Link<C::Stream>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut link) = idle.pop() {
            if C::is_quiet(&mut link.stream) {
                return Some(link);
            }
        }
        None
    }
}
