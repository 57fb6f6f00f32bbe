//! The queue of waiting requests. A higher priority always comes first; within a priority, tenants
//! get equal shares; within a tenant, requests are in order of arrival. Pure.
//!
//! The shares come from self-clocked fair queueing (Golestani, 1994). The first request of each
//! tenant has a tag: its cost plus the clock of its priority (band) at the time when it became the
//! tenant's first. The request with the lowest tag is next and sets the clock to its tag. While two
//! tenants both wait, the costs served to them differ by at most one request of each; new tenants
//! cannot starve old ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Maximum number of requests of one priority, and maximum total bytes of their bodies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    priority: i32,
    tenant: Arc<str>,
    number: u64,
}

/// A queued request.
#[derive(Debug)]
pub(crate) struct Item<T> {
    pub(crate) value: T,
    /// Size of its body in bytes.
    pub(crate) bytes: usize,
    /// Cost that counts against the tenant's share.
    pub(crate) cost: u64,
}

/// Queued requests by priority.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    bands: BTreeMap<Reverse<i32>, Band<T>>,
    len: usize,
    /// Number of the next ticket, and number of the last ticket issued for a place ahead of all
    /// regular tickets.
    next: u64,
    early: u64,
}

/// Number of the first regular ticket; lower numbers are for requests that are put back.
const FIRST: u64 = 1 << 62;

/// Requests of one priority.
#[derive(Debug)]
struct Band<T> {
    /// Tenants that have queued requests, by name.
    tenants: HashMap<Arc<str>, Tenant<T>>,
    /// For the first request of each tenant: its tag, its ticket's number, and the tenant's name.
    order: BTreeSet<(u64, u64, Arc<str>)>,
    clock: u64,
    len: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Tenant<T> {
    /// Requests by ticket number, in rising order.
    waiting: VecDeque<(u64, Item<T>)>,
    /// The band's clock at the time when the front request became the first.
    start: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            bands: BTreeMap::new(),
            len: 0,
            next: FIRST,
            early: 0,
        }
    }
}

impl<T> Default for Band<T> {
    fn default() -> Self {
        Self {
            tenants: HashMap::new(),
            order: BTreeSet::new(),
            clock: 0,
            len: 0,
            bytes: 0,
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Priority, number of requests and their bytes in each band, highest priority first.
    pub(crate) fn bands(&self) -> impl Iterator<Item = (i32, usize, usize)> {
        let bands = self.bands.iter();
        bands.map(|(priority, band)| (priority.0, band.len, band.bytes))
    }

    /// Number of tenants in a priority.
    #[cfg(test)]
    pub(crate) fn tenants(&self, priority: i32) -> usize {
        let band = self.bands.get(&Reverse(priority));
        band.map_or(0, |band| band.tenants.len())
    }

    /// Appends a request of `tenant` to the queue of its priority.
    ///
    /// # Errors
    /// The queue of this priority is full; the item is returned.
    pub(crate) fn push(
        &mut self,
        priority: i32,
        tenant: &Arc<str>,
        item: Item<T>,
        bounds: Bounds,
    ) -> Result<Ticket, Item<T>> {
        let (len, bytes) = self
            .bands
            .get(&Reverse(priority))
            .map_or((0, 0), |band| (band.len, band.bytes));
        if len >= bounds.requests || bytes.saturating_add(item.bytes) > bounds.bytes {
            return Err(item);
        }
        let number = self.next;
        self.next += 1;
        let band = self.bands.entry(Reverse(priority)).or_default();
        band.push(tenant, number, item);
        self.len += 1;
        Ok(Ticket {
            priority,
            tenant: tenant.clone(),
            number,
        })
    }

    /// Puts back a request that was popped and then refused. It returns to the place of its ticket
    /// `before`, or, without one, ahead of all queued requests. Bounds are not checked, because the
    /// request was within them before.
    pub(crate) fn put_back(
        &mut self,
        before: Option<Ticket>,
        priority: i32,
        tenant: &Arc<str>,
        item: Item<T>,
    ) -> Ticket {
        let (band, credit) = (self.bands.entry(Reverse(priority)).or_default(), item.cost);
        let number = match &before {
            Some(ticket) => ticket.number,
            None => {
                self.early += 1;
                self.early
            }
        };
        band.push(tenant, number, item);
        if before.is_some() {
            band.give_back(tenant, credit);
        }
        self.len += 1;
        Ticket {
            priority,
            tenant: tenant.clone(),
            number,
        }
    }

    /// Removes and returns the next request.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let mut band = self.bands.first_entry()?;
        let item = band.get_mut().pop()?;
        if band.get().len == 0 {
            band.remove();
        }
        self.len -= 1;
        Some(item.value)
    }

    /// Removes a request that no longer waits; `None` if it has been popped.
    pub(crate) fn remove(&mut self, ticket: &Ticket) -> Option<T> {
        let key = Reverse(ticket.priority);
        let band = self.bands.get_mut(&key)?;
        let item = band.remove(&ticket.tenant, ticket.number)?;
        if band.len == 0 {
            self.bands.remove(&key);
        }
        self.len -= 1;
        Some(item.value)
    }
}

impl<T> Band<T> {
    fn push(&mut self, name: &Arc<str>, number: u64, item: Item<T>) {
        self.len += 1;
        self.bytes += item.bytes;
        let clock = self.clock;
        let tenant = self.tenants.entry(name.clone());
        let tenant = tenant.or_insert_with(|| Tenant {
            waiting: VecDeque::new(),
            start: clock,
        });
        let at = tenant.waiting.partition_point(|(one, _)| *one < number);
        if at == 0 {
            if let Some(before) = tenant.place(name) {
                self.order.remove(&before);
            }
            tenant.waiting.push_front((number, item));
            self.order.extend(tenant.place(name));
        } else {
            tenant.waiting.insert(at, (number, item));
        }
    }

    /// Refunds the cost of a request that is put back to its tenant's share.
    fn give_back(&mut self, name: &Arc<str>, cost: u64) {
        let Some(tenant) = self.tenants.get_mut(name) else {
            return;
        };
        if let Some(before) = tenant.place(name) {
            self.order.remove(&before);
        }
        tenant.start = tenant.start.saturating_sub(cost.max(1));
        self.order.extend(tenant.place(name));
    }

    fn pop(&mut self) -> Option<Item<T>> {
        let (tag, number, name) = self.order.first()?.clone();
        self.clock = tag;
        self.take(&name, number, tag)
    }

    fn remove(&mut self, name: &Arc<str>, number: u64) -> Option<Item<T>> {
        let start = self.tenants.get(name)?.start;
        self.take(name, number, start)
    }

    /// Removes a request. If it was the first of its tenant, the tenant's next request starts at
    /// clock `start`.
    fn take(&mut self, name: &Arc<str>, number: u64, start: u64) -> Option<Item<T>> {
        let tenant = self.tenants.get_mut(name)?;
        let before = tenant.place(name)?;
        let numbers = &tenant.waiting;
        let at = numbers.binary_search_by_key(&number, |(one, _)| *one);
        let (_, item) = tenant.waiting.remove(at.ok()?)?;
        if at == Ok(0) {
            tenant.start = start;
            self.order.remove(&before);
            self.order.extend(tenant.place(name));
        }
        if tenant.waiting.is_empty() {
            self.tenants.remove(name);
        }
        self.len -= 1;
        self.bytes -= item.bytes;
        Some(item)
    }
}

impl<T> Tenant<T> {
    /// The tenant's key in the order of its band; `None` if it has no queued requests.
    fn place(&self, name: &Arc<str>) -> Option<(u64, u64, Arc<str>)> {
        let (number, item) = self.waiting.front()?;
        let tag = self.start.saturating_add(item.cost.max(1));
        Some((tag, *number, name.clone()))
    }
}
