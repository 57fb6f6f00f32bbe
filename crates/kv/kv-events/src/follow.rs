//! Follows the events of one engine: connects, keeps the order, and fills gaps.
//!
//! Batches are numbered. After connecting, and at a gap, missed batches are requested from the
//! replay endpoint. Without one, or if the batches are no longer available, all earlier state is
//! invalid: a missed removal would leave a block in the index forever.

use std::io::Error;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::batch::Batch;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::msgpack::Malformed;
use crate::zmtp::message;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MOST_PAUSE: Duration = Duration::from_secs(5);
/// Time-out for each replayed batch.
const REPLAY_PATIENCE: Duration = Duration::from_secs(5);
/// Sequence number that marks the end of a replay.
const END: u64 = u64::MAX;

/// An engine's event endpoints, and the topic to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following {
    pub events: Endpoint,
    pub replay: Option<Endpoint>,
    /// Topic prefix; empty: all topics.
    pub topic: String,
}

/// An update for the consumer.
#[derive(Debug, PartialEq)]
pub enum Update {
    /// Connected; further updates are valid.
    Connected,
    /// All earlier state is invalid.
    Reset,
    /// Batches were missed; a replay or a [`Self::Reset`] follows.
    Gap,
    /// A batch and its number, counted from 0 by the publisher.
    Batch(u64, Batch),
    /// The replay failed, with the reason.
    NoReplay(String),
    /// The connection ended or failed, with the reason; it will be retried.
    Lost(String),
}

/// Follows an engine's events until the future is dropped; `tell` gets the updates.
pub async fn follow(from: &Following, mut tell: impl FnMut(Update)) {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut stream = Stream {
            from,
            next: None,
            tell: &mut tell,
        };
        let ended = stream.run().await;
        if stream.next.is_some() {
            pause = FIRST_PAUSE;
        }
        tell(Update::Lost(ended.to_string()));
        sleep(pause).await;
        pause = (pause * 2).min(MOST_PAUSE);
    }
}

struct Stream<'a, Tell> {
    from: &'a Following,
    /// Number of the next batch; `None` before the first.
    next: Option<u64>,
    tell: &'a mut Tell,
}

impl<Tell: FnMut(Update)> Stream<'_, Tell> {
    /// Follows the events over one connection; returns the error that ended it.
    async fn run(&mut self) -> Error {
        match self.listen().await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn listen(&mut self) -> Result<std::convert::Infallible, Error> {
        let mut connection = Connection::open(&self.from.events, "SUB").await?;
        let topic = [b"\x01", self.from.topic.as_bytes()].concat();
        connection.send(&message(&[&topic])).await?;
        (self.tell)(Update::Reset);
        (self.tell)(Update::Connected);
        // the connection buffers batches that are published during the replay
        self.replay(0).await;
        loop {
            let frames = connection.message().await?;
            let [_, number, payload] = frames.as_slice() else {
                return Err(Malformed("a message has three frames").into());
            };
            let number = sequence(number)?;
            match self.next {
                Some(next) if number < next => continue,
                Some(next) if number > next => self.fill(next, number).await,
                _ => {}
            }
            if self.next.is_none_or(|next| number >= next) {
                self.take(number, payload);
            }
        }
    }

    /// Requests a replay of the missed batches, from `next` up to the received batch `number`.
    async fn fill(&mut self, next: u64, number: u64) {
        (self.tell)(Update::Gap);
        self.replay(next).await;
        if self.next.is_none_or(|next| next < number) {
            (self.tell)(Update::Reset);
        }
    }

    /// Replays past batches from `first` on, as far as they are available.
    async fn replay(&mut self, first: u64) {
        if let Some(endpoint) = &self.from.replay
            && let Err(error) = self.replay_from(endpoint, first).await
        {
            (self.tell)(Update::NoReplay(error.to_string()));
        }
    }

    async fn replay_from(&mut self, endpoint: &Endpoint, first: u64) -> Result<(), Error> {
        let mut connection = Connection::open(endpoint, "DEALER").await?;
        let request = message(&[b"", &first.to_be_bytes()]);
        connection.send(&request).await?;
        loop {
            let frames = timeout(REPLAY_PATIENCE, connection.message()).await??;
            let [_, number, payload] = frames.as_slice() else {
                return Err(Malformed("a replayed message has three frames").into());
            };
            match sequence(number)? {
                END => return Ok(()),
                number if self.next.is_some_and(|next| number < next) => {}
                number => {
                    if self.next.is_some_and(|next| number > next) {
                        (self.tell)(Update::Reset);
                    }
                    self.take(number, payload);
                }
            }
        }
    }

    fn take(&mut self, number: u64, payload: &[u8]) {
        self.next = Some(number.saturating_add(1));
        (self.tell)(match Batch::decode(payload) {
            Ok(batch) => Update::Batch(number, batch),
            // the changes in the malformed batch are lost, so all earlier state is invalid
            Err(_) => Update::Reset,
        });
    }
}

fn sequence(bytes: &[u8]) -> Result<u64, Malformed> {
    let bytes = bytes.try_into();
    let wrong = |_| Malformed("a number has eight bytes");
    bytes.map(u64::from_be_bytes).map_err(wrong)
}
