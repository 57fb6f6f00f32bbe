//! Opens a rank's connections to other ranks, as configured by the executor.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use penstock_collectives::{
    CommError, Group, GroupError, Key, Reader, Star, Stream, StreamListener, Writer,
};
use serde::Deserialize;

use crate::collectives::{After, Before, Joined};
use crate::le_bytes::{copy_in, copy_out};
use crate::peers::{Distant, Peers};

/// Connections of one rank to other ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    /// The tensor-parallel group; null if the stage has one rank.
    pub group: Option<GroupWiring>,
    /// Connection from the same rank of the previous stage; null in the first stage.
    pub before: Option<Pipe>,
    /// Connection to the same rank of the next stage; null in the last stage.
    pub after: Option<Pipe>,
    /// Timeout of a wait for another rank, in seconds.
    pub patience_s: f64,
}

/// A tensor-parallel group.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum GroupWiring {
    /// Shared memory, on one host.
    Memory {
        path: PathBuf,
        rank: usize,
        ranks: usize,
        /// Maximum f32 numbers that a rank contributes to one exchange.
        capacity: usize,
    },
    /// Streams between hosts; the other ranks connect to rank 0.
    Stream {
        /// Listening address of rank 0.
        address: SocketAddr,
        /// The shared key, 64 hexadecimal digits.
        key: String,
        rank: usize,
        ranks: usize,
        /// Maximum f32 numbers that a rank contributes to one exchange.
        capacity: usize,
    },
}

/// A connection between two stages.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Pipe {
    /// A ring in shared memory, with one reader.
    Ring {
        /// The file.
        path: PathBuf,
        /// Maximum messages in flight.
        slots: usize,
        /// Maximum bytes per message.
        capacity: usize,
    },
    /// A stream between hosts; the next stage connects to the previous one.
    Stream {
        /// Listening address of the previous stage.
        address: SocketAddr,
        /// The shared key, 64 hexadecimal digits.
        key: String,
        /// Maximum bytes per message.
        capacity: usize,
    },
    /// The caller transports the messages: [`Carried`].
    Carried,
}

/// Channel ends for a caller that transports the residual stream between stages. A step consumes
/// one message from `before` and produces one in `after`.
#[derive(Default)]
pub struct Carried {
    /// The caller sends the output of the previous stage here; `None` unless `before` is
    /// [`Pipe::Carried`].
    pub before: Option<Sender<Vec<f32>>>,
    /// The caller receives this stage's output here; `None` unless `after` is [`Pipe::Carried`].
    pub after: Option<Receiver<Vec<f32>>>,
}

/// Opens a rank's connections. Also returns the caller's ends of the channels of [`Pipe::Carried`].
///
/// # Errors
/// A file is missing or has a different shape, a stream cannot be opened, or its key is invalid.
pub fn join(wiring: &Wiring) -> Result<(Joined, Carried), CommError> {
    let patience = Duration::try_from_secs_f64(wiring.patience_s).unwrap_or(Duration::MAX);
    let group = |group: &GroupWiring| open_group(group, patience);
    let mut carried = Carried::default();
    // Open the listening end to the next stage first, because the next stage waits for it.
    let after = wiring
        .after
        .as_ref()
        .map(|pipe| open_after(pipe, patience, &mut carried))
        .transpose()?;
    let before = wiring
        .before
        .as_ref()
        .map(|pipe| open_before(pipe, patience, &mut carried))
        .transpose()?;
    let group = wiring.group.as_ref().map(group).transpose()?;
    let joined = Joined {
        group,
        before,
        after,
    };
    Ok((joined, carried))
}

fn open_group(group: &GroupWiring, patience: Duration) -> Result<Box<dyn Peers>, CommError> {
    Ok(match group {
        GroupWiring::Memory {
            path,
            rank,
            ranks,
            capacity,
        } => Box::new(Group::join(path, *rank, *ranks, *capacity, patience)?),
        GroupWiring::Stream {
            address,
            key,
            rank,
            ranks,
            capacity,
        } => {
            let (key, bytes) = (parse_key(key)?, *capacity * 4);
            let star = Star::new(*address, key, *rank, *ranks, bytes, patience)?;
            Box::new(Distant::new(star))
        }
    })
}

fn open_before(
    pipe: &Pipe,
    patience: Duration,
    carried: &mut Carried,
) -> Result<Box<dyn Before>, CommError> {
    Ok(match pipe {
        Pipe::Ring {
            path,
            slots,
            capacity,
        } => Box::new(RingBefore {
            ring: Reader::open(path, 0, 1, *slots, *capacity)?,
            patience,
        }),
        Pipe::Stream {
            address,
            key,
            capacity,
        } => Box::new(StreamBefore {
            address: *address,
            key: parse_key(key)?,
            stream: None,
            patience,
            capacity: *capacity,
        }),
        Pipe::Carried => {
            let (sender, receiver) = channel();
            carried.before = Some(sender);
            Box::new(CarriedBefore { receiver, patience })
        }
    })
}

fn open_after(
    pipe: &Pipe,
    patience: Duration,
    carried: &mut Carried,
) -> Result<Box<dyn After>, CommError> {
    Ok(match pipe {
        Pipe::Ring {
            path,
            slots,
            capacity,
        } => Box::new(Writer::open(path, 1, *slots, *capacity, patience)?),
        Pipe::Stream { address, key, .. } => Box::new(StreamAfter {
            listener: StreamListener::bind(*address, parse_key(key)?)?,
            stream: None,
            patience,
        }),
        Pipe::Carried => {
            let (sender, receiver) = channel();
            carried.after = Some(receiver);
            Box::new(sender)
        }
    })
}

fn parse_key(text: &str) -> Result<[u8; 32], CommError> {
    let digits = text.as_bytes();
    let mut key = [0; 32];
    let valid = digits.len() == 64
        && key
            .iter_mut()
            .zip(digits.chunks_exact(2))
            .all(|(byte, pair)| {
                let pair = std::str::from_utf8(pair).unwrap_or_default();
                u8::from_str_radix(pair, 16)
                    .map(|value| *byte = value)
                    .is_ok()
            });
    valid.then_some(key).ok_or(CommError::Key)
}

struct RingBefore {
    ring: Reader,
    patience: Duration,
}

impl Before for RingBefore {
    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError> {
        let copied = self
            .ring
            .receive_with(self.patience, |bytes| copy_in(bytes, x))?;
        match copied {
            Some(fits) => fits.ok_or_else(other_step),
            None => Err(silent(self.patience)),
        }
    }

    fn end(&mut self, reason: &str) {
        self.ring.end(reason);
    }
}

impl After for Writer {
    fn send(&mut self, x: &[f32]) -> Result<(), GroupError> {
        self.send_with(|slot| {
            copy_out(x, slot);
            x.len() * 4
        })
    }

    fn end(&mut self, reason: &str) {
        Writer::end(self, reason);
    }
}

/// Receives over a stream. Connects at the first receive, because by then the previous stage has
/// received its first plan and listens.
struct StreamBefore {
    address: SocketAddr,
    key: Key,
    stream: Option<Stream>,
    patience: Duration,
    capacity: usize,
}

impl Before for StreamBefore {
    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => {
                let stream = Stream::connect(self.address, &self.key, self.patience);
                empty.insert(stream.map_err(|e| GroupError::Cut(e.to_string()))?)
            }
        };
        match stream.receive(self.patience, self.capacity)? {
            Some(bytes) => copy_in(&bytes, x).ok_or_else(other_step),
            None => Err(silent(self.patience)),
        }
    }

    fn end(&mut self, _: &str) {
        self.stream = None;
    }
}

/// Sends over a stream. Accepts the connection at the first send.
struct StreamAfter {
    listener: StreamListener,
    stream: Option<Stream>,
    patience: Duration,
}

impl After for StreamAfter {
    fn send(&mut self, x: &[f32]) -> Result<(), GroupError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => empty.insert(self.listener.accept(self.patience)?),
        };
        let mut bytes = vec![0; x.len() * 4];
        copy_out(x, &mut bytes);
        stream.send(&bytes)
    }

    fn end(&mut self, _: &str) {
        self.stream = None;
    }
}

struct CarriedBefore {
    receiver: Receiver<Vec<f32>>,
    patience: Duration,
}

impl Before for CarriedBefore {
    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError> {
        match self.receiver.recv_timeout(self.patience) {
            Ok(carried) if carried.len() == x.len() => {
                x.copy_from_slice(&carried);
                Ok(())
            }
            Ok(_) => Err(other_step()),
            Err(_) => Err(silent(self.patience)),
        }
    }

    fn end(&mut self, _: &str) {}
}

impl After for Sender<Vec<f32>> {
    fn send(&mut self, x: &[f32]) -> Result<(), GroupError> {
        let gone = |_| GroupError::Ended("the caller dropped its end to the stage after".into());
        Sender::send(self, x.to_vec()).map_err(gone)
    }

    fn end(&mut self, _: &str) {}
}

fn other_step() -> GroupError {
    GroupError::Ended("the stage before computed another step".into())
}

fn silent(patience: Duration) -> GroupError {
    let seconds = patience.as_secs();
    GroupError::Ended(format!("the stage before said nothing for {seconds} s"))
}
