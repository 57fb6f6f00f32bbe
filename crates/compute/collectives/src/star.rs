//! Messages between the ranks of a tensor-parallel group on several hosts: a star of streams
//! centred on rank 0.
//!
//! ```text
//! rank r -> rank 0     greeting, once: rank, ranks, capacity as u64
//! gather               rank r -> rank 0: a part
//! share                rank 0 -> rank r: a message
//! ```
//!
//! All ranks must call the same methods in the same order. The first call opens the streams. The
//! executor has sent the first plan to all ranks by then, so all ranks connect.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::error::{CommError, GroupError};
use crate::stream::{Key, Stream, StreamListener};

/// Time-out for the greeting of a connecting rank, measured from the opening of its stream.
const GREETING: Duration = Duration::from_secs(10);

/// One rank's end of the star.
pub struct Star {
    rank: usize,
    ranks: usize,
    capacity: usize,
    patience: Duration,
    opening: Opening,
    /// On rank 0, streams to ranks 1, 2, ...; on other ranks, the stream to rank 0. Empty before
    /// the first message.
    streams: Vec<Stream>,
}

enum Opening {
    Listen(StreamListener),
    Call(SocketAddr, Key),
    Open,
    Ended(String),
}

impl Star {
    /// Creates the end of `rank`. Rank 0 listens at `address`, and the other ranks connect to it.
    /// Messages have up to `capacity` bytes; a wait for another rank fails after `patience`.
    ///
    /// # Errors
    /// Rank 0 cannot listen at `address`.
    ///
    /// # Panics
    /// `rank` is not below `ranks`.
    pub fn new(
        address: SocketAddr,
        key: Key,
        rank: usize,
        ranks: usize,
        capacity: usize,
        patience: Duration,
    ) -> Result<Self, CommError> {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let opening = match rank {
            0 => Opening::Listen(StreamListener::bind(address, key)?),
            _ => Opening::Call(address, key),
        };
        Ok(Self {
            rank,
            ranks,
            capacity,
            patience,
            opening,
            streams: Vec::new(),
        })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Maximum bytes of a message.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Gather: sends `part` to rank 0. Rank 0 gets the parts of ranks 1, 2, ... in rank order,
    /// without its own; the other ranks get `None`.
    ///
    /// # Errors
    /// A rank is lost, was silent for longer than the patience, or does not belong to this group.
    /// The error ends the group, and thus the waits of the other ranks.
    pub fn gather(&mut self, part: &[u8]) -> Result<Option<Vec<Vec<u8>>>, GroupError> {
        let parts = self.try_gather(part);
        self.ended_by(parts)
    }

    fn try_gather(&mut self, part: &[u8]) -> Result<Option<Vec<Vec<u8>>>, GroupError> {
        self.open()?;
        if self.rank > 0 {
            self.streams[0].send(part).map_err(|e| of_rank(0, e))?;
            return Ok(None);
        }
        let (patience, capacity) = (self.patience, self.capacity);
        let ranks = self.streams.iter_mut().zip(1..);
        let parts = ranks.map(|(stream, rank)| receive(stream, rank, patience, capacity));
        Ok(Some(parts.collect::<Result<_, _>>()?))
    }

    /// Broadcast: sends rank 0's `message` to the other ranks, which get it as the result (their
    /// own `message` is ignored). `None` on rank 0.
    ///
    /// # Errors
    /// Same as for [`Self::gather`].
    pub fn share(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, GroupError> {
        let shared = self.try_share(message);
        self.ended_by(shared)
    }

    fn try_share(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, GroupError> {
        self.open()?;
        if self.rank > 0 {
            let stream = &mut self.streams[0];
            return receive(stream, 0, self.patience, self.capacity).map(Some);
        }
        for (stream, rank) in self.streams.iter_mut().zip(1..) {
            stream.send(message).map_err(|e| of_rank(rank, e))?;
        }
        Ok(None)
    }

    /// Ends the group: closes the streams, which also ends the peers' waits. The first reason is
    /// kept.
    pub fn end(&mut self, reason: &str) {
        self.streams.clear();
        if !matches!(self.opening, Opening::Ended(_)) {
            self.opening = Opening::Ended(reason.to_owned());
        }
    }

    fn ended_by<T>(&mut self, result: Result<T, GroupError>) -> Result<T, GroupError> {
        if let Err(lost) = &result {
            self.end(&lost.to_string());
        }
        result
    }

    fn open(&mut self) -> Result<(), GroupError> {
        self.streams = match &self.opening {
            Opening::Open => return Ok(()),
            Opening::Ended(reason) => return Err(GroupError::Ended(reason.clone())),
            Opening::Listen(listener) => self.accept(listener)?,
            Opening::Call(address, key) => vec![self.call(*address, key)?],
        };
        // Dropping the listener closes the port.
        self.opening = Opening::Open;
        Ok(())
    }

    fn call(&self, address: SocketAddr, key: &Key) -> Result<Stream, GroupError> {
        let stream = Stream::connect(address, key, self.patience);
        let mut stream = stream.map_err(|e| GroupError::Cut(format!("rank 0 at {e}")))?;
        stream.send(&greeting(self.rank, self.ranks, self.capacity))?;
        Ok(stream)
    }

    fn accept(&self, listener: &StreamListener) -> Result<Vec<Stream>, GroupError> {
        let began = Instant::now();
        let mut streams: Vec<Option<Stream>> = (1..self.ranks).map(|_| None).collect();
        while let Some(missing) = streams.iter().position(Option::is_none) {
            let left = self.patience.saturating_sub(began.elapsed());
            let Some(mut stream) = listener.accept_within(left, self.patience) else {
                return Err(silent(missing + 1, self.patience));
            };
            let said = receive(&mut stream, missing + 1, GREETING.min(self.patience), 24)?;
            let place = (1..self.ranks)
                .find(|&rank| said == greeting(rank, self.ranks, self.capacity))
                .and_then(|rank| streams.get_mut(rank - 1))
                .filter(|place| place.is_none());
            let Some(place) = place else {
                return Err(GroupError::Cut(
                    "a caller is not of this group of ranks".into(),
                ));
            };
            *place = Some(stream);
        }
        Ok(streams.into_iter().flatten().collect())
    }
}

fn greeting(rank: usize, ranks: usize, capacity: usize) -> Vec<u8> {
    let numbers = [rank, ranks, capacity].map(|n| (n as u64).to_le_bytes());
    numbers.concat()
}

fn receive(
    stream: &mut Stream,
    rank: usize,
    patience: Duration,
    limit: usize,
) -> Result<Vec<u8>, GroupError> {
    let message = stream
        .receive(patience, limit)
        .map_err(|e| of_rank(rank, e))?;
    message.ok_or_else(|| silent(rank, patience))
}

fn of_rank(rank: usize, lost: GroupError) -> GroupError {
    GroupError::Cut(format!("rank {rank} of the group: {lost}"))
}

fn silent(rank: usize, patience: Duration) -> GroupError {
    let seconds = patience.as_secs();
    GroupError::Silent { rank, seconds }
}
