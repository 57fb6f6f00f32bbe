use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_wire::{EngineFrame, Frame, FrameError, FrameReader, FrontFrame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    #[error("closed")]
    Closed,
    #[error("broke: {0}")]
    Broken(io::Error),
    #[error("malformed: {0}")]
    Malformed(#[from] FrameError),
}

/// Queue of outgoing frames.
pub type Outbox = UnboundedSender<OutgoingFrame>;

/// An encoded frame in the outgoing queue. Until it is written, the sender can withdraw it.
#[derive(Debug, Clone)]
pub struct OutgoingFrame {
    /// `None` once taken.
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl OutgoingFrame {
    pub fn new(bytes: Vec<u8>) -> Self {
        let bytes = Arc::new(Mutex::new(Some(bytes)));
        Self { bytes }
    }

    /// Takes the bytes, to write them or to withdraw them. Only the first call returns them.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.take()
    }
}

/// One end of the wire, which receives frames of type `F`. A separate task writes, so a peer that
/// does not read delays only its own frames.
pub struct Connection<F> {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    frames: FrameReader,
    outbox: Outbox,
    writer: JoinHandle<()>,
    received: PhantomData<fn() -> F>,
}

/// The API server's end of a connection.
pub(crate) type EngineConnection = Connection<EngineFrame>;

/// The engine's end of a connection, for engines written in Rust.
pub type FrontConnection = Connection<FrontFrame>;

/// Queued frames are coalesced into one write, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

impl<F: Frame> Connection<F> {
    /// A connection over `stream`. Must be called inside a tokio runtime.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(stream);
        let (outbox, waiting) = unbounded_channel();
        Self {
            stream: Box::new(read),
            frames: FrameReader::new(),
            outbox,
            writer: tokio::spawn(write_all(write, waiting)),
            received: PhantomData,
        }
    }

    /// Queue for encoded frames. Sends fail once the connection has ended.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Waits for a whole frame. Cancel safe.
    ///
    /// # Errors
    /// The connection has ended or the data is malformed.
    pub async fn next_frame(&mut self) -> Result<F, Disconnect> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(frame);
            }
            match self.stream.read_buf(self.frames.spare()).await {
                Ok(0) => return Err(Disconnect::Closed),
                Ok(_) => {}
                Err(error) => return Err(Disconnect::Broken(error)),
            }
        }
    }
}

impl FrontConnection {
    /// Closes the outbox and waits until all queued frames are written. Other clones of the outbox
    /// must have been dropped.
    pub async fn flush(&mut self) {
        self.outbox = unbounded_channel().0;
        // The writer ends when the channel is closed and empty, or when a write fails because the
        // API server has exited.
        let _ = (&mut self.writer).await;
    }

    /// Sends a frame. A frame that cannot be encoded is dropped; engines never produce one.
    pub fn send(outbox: &Outbox, frame: &EngineFrame) {
        let mut bytes = Vec::new();
        if frame.encode(&mut bytes).is_ok() {
            let _ = outbox.send(OutgoingFrame::new(bytes));
        }
    }
}

impl<F> Drop for Connection<F> {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Writes until the channel closes or a write fails; the reading side reports the failure.
async fn write_all(
    mut stream: impl AsyncWrite + Unpin,
    mut waiting: UnboundedReceiver<OutgoingFrame>,
) {
    while let Some(frame) = waiting.recv().await {
        let mut bytes = frame.take().unwrap_or_default();
        while bytes.len() < WRITE_BYTES
            && let Ok(more) = waiting.try_recv()
        {
            bytes.extend(more.take().unwrap_or_default());
        }
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
