//! Messages between ranks on different hosts: a TCP stream with mutual authentication by a shared
//! key.
//!
//! ```text
//! listener -> caller   nonce (32 bytes)
//! caller -> listener   nonce, tag("caller", both nonces)
//! listener -> caller   tag("listener", both nonces)
//! then, each way       u64 length, body, tag(direction, number, length, body)
//! ```
//!
//! Tags are keyed BLAKE3 hashes. The handshake uses the shared key; messages use the stream's key,
//! which is derived from the shared key and both nonces. `number` counts the messages in one
//! direction, so a message that was changed, repeated or dropped ends the stream. Nothing is
//! encrypted: activations and token ids are readable in transit.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{CommError, GroupError};

const TAG: usize = 32;
/// Interval at which a wait checks its deadline.
const LOOK: Duration = Duration::from_millis(50);
/// Poll interval for new connections.
const PAUSE: Duration = Duration::from_millis(1);
/// Time-out of the listener for each read and write during the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum concurrent handshakes; further connections are rejected. Each handshake has its own
/// thread, so that a silent caller does not delay others.
const MOST_CALLERS: usize = 64;

/// A secret shared by all ranks.
pub type Key = [u8; 32];

/// The listening end of a stream.
pub struct StreamListener {
    listener: TcpListener,
    key: Key,
    /// Address of the last rejected caller.
    turned_away: Arc<Mutex<Option<SocketAddr>>>,
    callers: Arc<AtomicUsize>,
    welcome: Sender<Stream>,
    welcomed: Mutex<Receiver<Stream>>,
}

impl StreamListener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// Listening at the address failed.
    pub fn bind(address: SocketAddr, key: Key) -> Result<Self, CommError> {
        let fail = |source| CommError::Address { address, source };
        let listener = TcpListener::bind(address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let (welcome, welcomed) = channel();
        Ok(Self {
            listener,
            key,
            turned_away: Arc::default(),
            callers: Arc::default(),
            welcome,
            welcomed: Mutex::new(welcomed),
        })
    }

    /// The listening address.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts the next caller with the key. Other callers are rejected and do not restart
    /// `patience`.
    ///
    /// # Errors
    /// No caller with the key connected within `patience`.
    pub fn accept(&self, patience: Duration) -> Result<Stream, GroupError> {
        let seconds = patience.as_secs();
        self.accept_within(patience, patience)
            .ok_or_else(|| GroupError::Cut(format!("no caller within {seconds} s")))
    }

    /// Like [`Self::accept`], but returns `None` if no caller with the key connects within `wait`.
    /// `patience` is the time-out of the stream itself.
    pub fn accept_within(&self, wait: Duration, patience: Duration) -> Option<Stream> {
        let began = Instant::now();
        loop {
            let welcomed = lock(&self.welcomed).try_recv();
            if let Ok(stream) = welcomed {
                return Some(stream);
            }
            match self.listener.accept() {
                Ok((socket, caller)) => self.shake_hands(socket, caller, patience),
                Err(_) => std::thread::sleep(PAUSE.min(wait)),
            }
            if began.elapsed() >= wait {
                return None;
            }
        }
    }

    /// Performs the handshake on a new thread. If [`MOST_CALLERS`] handshakes are in progress or no
    /// thread can be started, closes the connection.
    fn shake_hands(&self, socket: TcpStream, caller: SocketAddr, patience: Duration) {
        let turned_away = self.turned_away.clone();
        if self.callers.fetch_add(1, Ordering::AcqRel) >= MOST_CALLERS {
            self.callers.fetch_sub(1, Ordering::AcqRel);
            *lock(&turned_away) = Some(caller);
            return;
        }
        let (key, welcome, callers) = (self.key, self.welcome.clone(), self.callers.clone());
        let shake = move || {
            match Stream::welcome(socket, &key, patience) {
                // Sending fails only if the listener was dropped; the stream is then closed.
                Ok(stream) => drop(welcome.send(stream)),
                Err(_) => *lock(&turned_away) = Some(caller),
            }
            callers.fetch_sub(1, Ordering::AcqRel);
        };
        let thread = std::thread::Builder::new().name("handshake".to_owned());
        if thread.spawn(shake).is_err() {
            self.callers.fetch_sub(1, Ordering::AcqRel);
            *lock(&self.turned_away) = Some(caller);
        }
    }

    /// Address of the last caller rejected since the previous call.
    pub fn turned_away(&self) -> Option<SocketAddr> {
        lock(&self.turned_away).take()
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a stream.
pub struct Stream {
    socket: TcpStream,
    key: Key,
    caller: bool,
    sent: u64,
    received: u64,
    patience: Duration,
    /// Bytes of the next message received so far.
    partial: Vec<u8>,
}

/// Ends a [`Stream`] from another thread.
pub struct StreamFence {
    socket: TcpStream,
}

impl StreamFence {
    /// Fails every pending wait at both ends.
    pub fn end(&self) {
        // An error means that the socket is already closed.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Stream {
    /// Connects to the listener at `address`, with retries until it is available.
    ///
    /// # Errors
    /// No listener within `patience`, or a listener without the key.
    pub fn connect(address: SocketAddr, key: &Key, patience: Duration) -> Result<Self, CommError> {
        let began = Instant::now();
        loop {
            let left = patience.saturating_sub(began.elapsed()).max(LOOK);
            match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => return Ok(Self::call(socket, key, patience)?),
                Err(source) if began.elapsed() >= patience => {
                    return Err(CommError::Address { address, source });
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn call(socket: TcpStream, key: &Key, patience: Duration) -> Result<Self, GroupError> {
        let mut stream = Self::new(socket, true, patience)?;
        let mut theirs = [0; 32];
        stream.read_exact(&mut theirs)?;
        let ours = nonce();
        let nonces = [theirs, ours].concat();
        stream.write_all(&[ours, tag(key, "caller", &[&nonces])].concat())?;
        let mut proof = [0; TAG];
        stream.read_exact(&mut proof)?;
        stream.check(proof, tag(key, "listener", &[&nonces]))?;
        stream.key = tag(key, "stream", &[&nonces]);
        Ok(stream)
    }

    fn welcome(socket: TcpStream, key: &Key, patience: Duration) -> Result<Self, GroupError> {
        let mut stream = Self::new(socket, false, patience.min(HANDSHAKE))?;
        let ours = nonce();
        stream.write_all(&ours)?;
        let mut theirs = [0; 32];
        stream.read_exact(&mut theirs)?;
        let mut proof = [0; TAG];
        stream.read_exact(&mut proof)?;
        let nonces = [ours, theirs].concat();
        let expected = tag(key, "caller", &[&nonces]);
        if !equal(proof, expected) {
            // An all-zero proof, so that a caller with a different key can report the reason.
            stream.write_all(&[0; TAG])?;
        }
        stream.check(proof, expected)?;
        stream.write_all(&tag(key, "listener", &[&nonces]))?;
        stream.key = tag(key, "stream", &[&nonces]);
        stream.set_patience(patience)?;
        Ok(stream)
    }

    fn new(socket: TcpStream, caller: bool, patience: Duration) -> Result<Self, GroupError> {
        socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_nodelay(true))
            .and_then(|()| socket.set_read_timeout(Some(LOOK)))
            .map_err(|e| broken(&e))?;
        let mut stream = Self {
            socket,
            key: [0; 32],
            caller,
            sent: 0,
            received: 0,
            patience,
            partial: Vec::new(),
        };
        stream.set_patience(patience)?;
        Ok(stream)
    }

    /// Sets the time-out of sends and receives.
    fn set_patience(&mut self, patience: Duration) -> Result<(), GroupError> {
        let timeout = Some(patience.max(LOOK));
        let set = self.socket.set_write_timeout(timeout);
        set.map_err(|e| broken(&e))?;
        self.patience = patience;
        Ok(())
    }

    /// A handle that can end this stream from another thread.
    ///
    /// # Errors
    /// No free file descriptors.
    pub fn fence(&self) -> std::io::Result<StreamFence> {
        let socket = self.socket.try_clone()?;
        Ok(StreamFence { socket })
    }

    /// Splits into the sending and the receiving half, for two threads. The receiving half keeps a
    /// partially received message.
    ///
    /// # Errors
    /// No free file descriptors.
    pub fn split(self) -> std::io::Result<(Self, Self)> {
        let sender = Self {
            socket: self.socket.try_clone()?,
            partial: Vec::new(),
            ..self
        };
        Ok((sender, self))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The peer is lost, or accepted no data for longer than the patience.
    pub fn send(&mut self, message: &[u8]) -> Result<(), GroupError> {
        let length = (message.len() as u64).to_le_bytes();
        let tag = self.message_tag(self.caller, self.sent, &length, message);
        self.sent += 1;
        self.write_all(&[&length, message, &tag].concat())
    }

    /// Waits for the next message, of at most `limit` bytes. Returns `None` if no more bytes arrive
    /// within `patience` and the message is incomplete. The bytes received so far are kept, so the
    /// call can be repeated.
    ///
    /// # Errors
    /// The peer is lost, or a message was changed or is longer than `limit`.
    pub fn receive(
        &mut self,
        patience: Duration,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, GroupError> {
        let began = Instant::now();
        loop {
            if let Some(message) = self.complete(limit)? {
                return Ok(Some(message));
            }
            if !self.read_some()? && began.elapsed() >= patience {
                return Ok(None);
            }
        }
    }

    /// The next message, if it is completely received.
    fn complete(&mut self, limit: usize) -> Result<Option<Vec<u8>>, GroupError> {
        let Some((length, rest)) = self.partial.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let len = u64::from_le_bytes(*length);
        let Some(len) = usize::try_from(len).ok().filter(|&len| len <= limit) else {
            return Err(GroupError::Cut(format!(
                "a message of {len} bytes, {limit} are allowed"
            )));
        };
        if rest.len() < len + TAG {
            return Ok(None);
        }
        let (body, proof) = rest[..len + TAG].split_at(len);
        let expected = self.message_tag(!self.caller, self.received, length, body);
        let mut found = [0; TAG];
        found.copy_from_slice(proof);
        let body = body.to_vec();
        self.check(found, expected)?;
        self.received += 1;
        self.partial.drain(..8 + len + TAG);
        Ok(Some(body))
    }

    /// Reads available bytes. Returns true if any arrived within one [`LOOK`].
    fn read_some(&mut self) -> Result<bool, GroupError> {
        let before = self.partial.len();
        self.partial.resize(before + (64 << 10), 0);
        let read = self.socket.read(&mut self.partial[before..]);
        self.partial.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(GroupError::Cut("the other end closed the stream".into())),
            Ok(_) => Ok(true),
            Err(e) if is_pause(&e) => Ok(false),
            Err(e) => Err(broken(&e)),
        }
    }

    fn message_tag(&self, from_caller: bool, number: u64, length: &[u8], body: &[u8]) -> Key {
        let direction: &[u8] = if from_caller { b"1" } else { b"2" };
        tag(
            &self.key,
            "message",
            &[direction, &number.to_le_bytes(), length, body],
        )
    }

    fn check(&self, found: Key, expected: Key) -> Result<(), GroupError> {
        if equal(found, expected) {
            Ok(())
        } else {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
            Err(GroupError::Cut(
                "the other end does not hold the key, or a message was changed".into(),
            ))
        }
    }

    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), GroupError> {
        let (began, mut filled) = (Instant::now(), 0);
        while filled < out.len() {
            match self.socket.read(&mut out[filled..]) {
                Ok(0) => return Err(GroupError::Cut("the other end closed the stream".into())),
                Ok(n) => filled += n,
                Err(e) if is_pause(&e) && began.elapsed() < self.patience => {}
                Err(e) => return Err(broken(&e)),
            }
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), GroupError> {
        self.socket.write_all(bytes).map_err(|e| broken(&e))
    }
}

fn equal(one: Key, other: Key) -> bool {
    // `Hash` compares in constant time.
    blake3::Hash::from_bytes(one) == blake3::Hash::from_bytes(other)
}

fn is_pause(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn broken(e: &std::io::Error) -> GroupError {
    GroupError::Cut(format!("the stream to another rank broke: {e}"))
}

fn tag(key: &Key, purpose: &str, parts: &[&[u8]]) -> Key {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(purpose.as_bytes()).update(&[0]);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// 32 unpredictable bytes.
fn nonce() -> [u8; 32] {
    let mut bytes = [0; 32];
    // The system's generator fails only if it does not exist. A repeated nonce would allow a
    // replay, so panic instead of continuing.
    if let Err(e) = getrandom::fill(&mut bytes) {
        panic!("the system gives no random bytes: {e}");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handshake's shorter time-out must not apply to later reads.
    #[test]
    fn sends_of_both_ends_have_the_stream_s_time_out() {
        let (key, patience) = ([7; 32], HANDSHAKE * 3);
        let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), key).unwrap();
        let address = listener.address().unwrap();
        let caller = std::thread::spawn(move || Stream::connect(address, &key, patience).unwrap());
        let ends = [listener.accept(patience).unwrap(), caller.join().unwrap()];
        for end in ends {
            assert_eq!(end.socket.write_timeout().unwrap(), Some(patience));
        }
    }
}
