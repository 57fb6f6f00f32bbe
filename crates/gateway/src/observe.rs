//! What fleet, pool, metrics and the caller's account learn from an answer while it passes.

use std::sync::Arc;
use std::time::Instant;

use penstock_fleet::Outcome;
use penstock_http::Caller;

use crate::gateway::Gateway;
use crate::pool::{Pool, Routed};
use crate::usage::{UsageReader, events};

/// An answer under way, whichever door it leaves by. It ends once.
#[derive(Debug)]
pub(crate) struct Observed {
    gateway: Arc<Gateway>,
    pool: Arc<Pool>,
    /// The key's bearer, who pays for tokens.
    caller: Option<Arc<Caller>>,
    prompt_bytes: usize,
    /// The replica, until it has ended its part.
    routed: Option<Routed>,
    arrived: Instant,
    /// The answer comes event by event.
    is_stream: bool,
    first: bool,
    usage: UsageReader,
    ended: bool,
}

impl Observed {
    /// The answer to a request that `arrived` then, from the replica that was picked.
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        pool: Arc<Pool>,
        caller: Option<Arc<Caller>>,
        prompt_bytes: usize,
        routed: Routed,
        arrived: Instant,
    ) -> Self {
        Self {
            gateway,
            pool,
            caller,
            prompt_bytes,
            routed: Some(routed),
            arrived,
            is_stream: false,
            first: true,
            usage: UsageReader::default(),
            ended: false,
        }
    }

    /// The header says whether events follow.
    pub(crate) fn began(&mut self, is_stream: bool) {
        self.is_stream = is_stream;
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Where the answer comes from; `None` while another replica is looked for.
    pub(crate) fn routed(&self) -> Option<&Routed> {
        self.routed.as_ref()
    }

    /// The replica did not finish it: its reservation ends, the answer may go on elsewhere.
    pub(crate) fn lost(&mut self, outcome: Outcome) {
        if let Some(routed) = self.routed.take() {
            self.gateway.metrics.lost();
            routed.in_flight.end(outcome);
        }
    }

    /// Another replica has taken over.
    pub(crate) fn moved_to(&mut self, routed: Routed) {
        self.routed = Some(routed);
    }

    /// Bytes of the answer have come.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.usage.see(bytes);
        if self.is_stream
            && !bytes.is_empty()
            && let Some(routed) = &mut self.routed
        {
            if std::mem::take(&mut self.first) {
                self.gateway.metrics.first_token(self.arrived.elapsed());
            }
            routed.in_flight.first_token();
            routed.in_flight.tokens(events(bytes));
        }
    }

    /// The answer is over. Only the first call counts, and says so.
    pub(crate) fn end(&mut self, outcome: Outcome) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return false;
        }
        if let Some(usage) = self.usage.usage() {
            self.pool.learn(self.prompt_bytes, usage.prompt_tokens);
            if let Some(caller) = &self.caller {
                let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
                caller.usage.spend(tokens);
            }
        }
        self.gateway.metrics.ended(&self.pool.name, outcome);
        if let Some(routed) = self.routed.take() {
            routed.in_flight.end(outcome);
        }
        true
    }
}
