//! Communication between ranks: shared memory, and TCP streams between hosts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_collectives::{
    CommError, Fence as NativeFence, Group, Key, Reader, Star as NativeStar,
    Stream as NativeStream, StreamFence, StreamListener as NativeListener, Writer,
};
use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Interval at which a wait checks for Python signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

fn error(e: impl Into<CommError>) -> PyErr {
    match e.into() {
        CommError::Group(lost) => PyConnectionError::new_err(lost.to_string()),
        other => PyValueError::new_err(other.to_string()),
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Creates the shared memory file of a tensor-parallel group; ValueError on failure.
#[pyfunction]
pub(crate) fn create_group(path: PathBuf, ranks: usize, capacity: usize) -> PyResult<()> {
    Group::create(&path, ranks, capacity).map_err(error)
}

/// Creates the shared memory file of a ring, a queue of messages. `slots`, the number of messages
/// in flight, must be a power of two. ValueError on failure.
#[pyfunction]
pub(crate) fn create_ring(
    path: PathBuf,
    readers: usize,
    slots: usize,
    capacity: usize,
) -> PyResult<()> {
    if !slots.is_power_of_two() {
        let message = format!("{slots} slots: a ring has a power of two");
        return Err(PyValueError::new_err(message));
    }
    Writer::create(&path, readers, slots, capacity).map_err(error)
}

/// Ends all waits on a group or ring, also from a process that is not a member.
#[pyclass(frozen)]
pub(crate) struct AbortHandle {
    native: NativeFence,
}

#[pymethods]
impl AbortHandle {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let native = NativeFence::open(&path).map_err(error)?;
        Ok(Self { native })
    }

    /// Every wait raises ConnectionError with `reason`. Later calls do not change the reason.
    fn end(&self, reason: &str) {
        self.native.end(reason);
    }
}

/// The sending end of a ring.
#[pyclass(frozen)]
pub(crate) struct RingWriter {
    native: Mutex<Writer>,
}

#[pymethods]
impl RingWriter {
    #[new]
    fn new(
        path: PathBuf,
        readers: usize,
        slots: usize,
        capacity: usize,
        patience: f64,
    ) -> PyResult<Self> {
        let writer = Writer::open(&path, readers, slots, capacity, duration(patience));
        let native = Mutex::new(writer.map_err(error)?);
        Ok(Self { native })
    }

    /// Sends `message`; waits while the ring is full of messages that a reader has not read.
    /// ConnectionError if a reader is lost or too slow, ValueError if the message is too long.
    fn send(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        py.detach(|| {
            let mut writer = self.native.lock().unwrap_or_else(PoisonError::into_inner);
            writer.send(message)
        })
        .map_err(error)
    }
}

/// A receiving end of a ring.
#[pyclass(frozen)]
pub(crate) struct RingReader {
    native: Mutex<Reader>,
}

#[pymethods]
impl RingReader {
    #[new]
    fn new(
        path: PathBuf,
        reader: usize,
        readers: usize,
        slots: usize,
        capacity: usize,
    ) -> PyResult<Self> {
        if reader >= readers {
            return Err(PyValueError::new_err(format!(
                "reader {reader} of {readers}"
            )));
        }
        let native = Reader::open(&path, reader, readers, slots, capacity).map_err(error)?;
        let native = Mutex::new(native);
        Ok(Self { native })
    }

    /// The next message; None if none arrives within `timeout` seconds, ConnectionError if the ring
    /// has ended.
    fn receive<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (began, limit) = (Instant::now(), duration(timeout));
        loop {
            let left = limit.saturating_sub(began.elapsed()).min(SIGNAL_CHECK);
            let message = py.detach(|| {
                let mut reader = self.native.lock().unwrap_or_else(PoisonError::into_inner);
                reader.receive_with(left, <[u8]>::to_vec)
            });
            if let Some(message) = message.map_err(error)? {
                return Ok(Some(PyBytes::new(py, &message)));
            }
            py.check_signals()?;
            if began.elapsed() >= limit {
                return Ok(None);
            }
        }
    }

    /// Whether a message is available.
    fn ready(&self) -> bool {
        self.native
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ready()
    }
}

fn key(bytes: &[u8]) -> PyResult<Key> {
    let wrong = |_| PyValueError::new_err(format!("a key has 32 bytes, not {}", bytes.len()));
    bytes.try_into().map_err(wrong)
}

fn address(text: &str) -> PyResult<SocketAddr> {
    let wrong = |e| PyValueError::new_err(format!("{text:?} is not an address and port: {e}"));
    text.parse().map_err(wrong)
}

/// Listening end for streams from other hosts, authenticated by a shared key of 32 bytes.
#[pyclass(frozen)]
pub(crate) struct StreamListener {
    native: NativeListener,
}

#[pymethods]
impl StreamListener {
    /// Listens at `address` ("10.0.0.1:0" selects a free port).
    #[new]
    fn new(address: &str, key: &[u8]) -> PyResult<Self> {
        let native = NativeListener::bind(self::address(address)?, self::key(key)?);
        let native = native.map_err(error)?;
        Ok(Self { native })
    }

    /// Address and port on which it listens.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.native.address()?.to_string())
    }

    /// Accepts the next caller with the key; None if there is none within `wait` seconds.
    /// `patience` is the time-out of the stream itself, in seconds.
    fn accept_within(&self, py: Python<'_>, wait: f64, patience: f64) -> PyResult<Option<Stream>> {
        let (wait, patience) = (duration(wait), duration(patience));
        py.detach(|| self.native.accept_within(wait, patience))
            .map(Stream::new)
            .transpose()
    }

    /// Address of the last rejected caller since the previous call of this method.
    fn turned_away(&self) -> Option<String> {
        self.native
            .turned_away()
            .map(|address| address.ip().to_canonical().to_string())
    }

    /// Accepts the next caller with the key; ConnectionError if there is none within `timeout`
    /// seconds.
    fn accept(&self, py: Python<'_>, timeout: f64) -> PyResult<Stream> {
        Stream::new(
            py.detach(|| self.native.accept(duration(timeout)))
                .map_err(error)?,
        )
    }
}

/// A stream of messages to and from a rank on another host.
#[pyclass(frozen)]
pub(crate) struct Stream {
    sender: Arc<Mutex<NativeStream>>,
    receiver: Mutex<NativeStream>,
    fence: StreamFence,
}

impl Stream {
    fn new(native: NativeStream) -> PyResult<Self> {
        let fence = native.fence()?;
        let (sender, receiver) = native.split()?;
        let (sender, receiver) = (Arc::new(Mutex::new(sender)), Mutex::new(receiver));
        Ok(Self {
            sender,
            receiver,
            fence,
        })
    }
}

#[pymethods]
impl Stream {
    /// Connects to a listener, with retries for `patience` seconds. ValueError if none answers,
    /// ConnectionError if it does not have the key.
    #[staticmethod]
    fn connect(py: Python<'_>, address: &str, key: &[u8], patience: f64) -> PyResult<Self> {
        let (address, key) = (self::address(address)?, self::key(key)?);
        let native = py.detach(|| NativeStream::connect(address, &key, duration(patience)));
        Self::new(native.map_err(error)?)
    }

    /// Sends `message`; ConnectionError if the peer is lost.
    fn send(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        py.detach(|| {
            let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            sender.send(message)
        })
        .map_err(error)
    }

    /// The next message of at most `limit` bytes; None if none arrives within `timeout` seconds,
    /// ConnectionError if the peer is lost.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
        limit: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (began, patience) = (Instant::now(), duration(timeout));
        loop {
            let left = patience.saturating_sub(began.elapsed()).min(SIGNAL_CHECK);
            let message = py.detach(|| {
                let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
                receiver.receive(left, limit)
            });
            if let Some(message) = message.map_err(error)? {
                return Ok(Some(PyBytes::new(py, &message)));
            }
            // This may wait for the GIL; a message that arrived meanwhile is found by the final
            // check.
            py.check_signals()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Sends an empty message every `interval` seconds until the stream ends. Runs on a thread that
    /// does not need the GIL, because an import or a driver may hold the GIL for seconds. OSError
    /// if no thread can be started.
    fn beat(&self, interval: f64) -> PyResult<()> {
        let (sender, interval) = (Arc::downgrade(&self.sender), duration(interval));
        let beat = move || {
            while let Some(sender) = sender.upgrade() {
                let sent = sender
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .send(b"");
                drop(sender);
                if sent.is_err() {
                    break;
                }
                std::thread::sleep(interval);
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        thread.spawn(beat)?;
        Ok(())
    }

    /// Closes the stream, which ends every wait at both ends.
    fn end(&self) {
        self.fence.end();
    }
}

/// One rank's end of a tensor-parallel group over streams; rank 0 listens at `address`. Dropping it
/// closes the streams, which ends the waits of the other ranks.
#[pyclass(frozen)]
pub(crate) struct Star {
    native: Mutex<NativeStar>,
}

impl Star {
    fn lock(&self) -> MutexGuard<'_, NativeStar> {
        self.native.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Star {
    /// Messages have up to `capacity` bytes; ValueError if rank 0 cannot listen.
    #[new]
    fn new(
        address: &str,
        key: &[u8],
        rank: usize,
        ranks: usize,
        capacity: usize,
        patience: f64,
    ) -> PyResult<Self> {
        if rank >= ranks {
            return Err(PyValueError::new_err(format!("rank {rank} of {ranks}")));
        }
        let (address, key) = (self::address(address)?, self::key(key)?);
        let native = NativeStar::new(address, key, rank, ranks, capacity, duration(patience));
        let native = Mutex::new(native.map_err(error)?);
        Ok(Self { native })
    }

    /// Gather: sends `part` to rank 0, which gets the parts of ranks 1, 2, ...; None on other
    /// ranks. ConnectionError if a rank is lost.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        part: &[u8],
    ) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let parts = py.detach(|| self.lock().gather(part)).map_err(error)?;
        Ok(parts.map(|parts| parts.iter().map(|part| PyBytes::new(py, part)).collect()))
    }

    /// Broadcast: sends rank 0's `message` to the other ranks, which get it as the result (their
    /// own `message` is ignored); None on rank 0. ConnectionError if a rank is lost.
    fn share<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let shared = py.detach(|| self.lock().share(message)).map_err(error)?;
        Ok(shared.map(|message| PyBytes::new(py, &message)))
    }
}
