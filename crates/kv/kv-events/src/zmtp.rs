//! ZMTP 3.0, the protocol of ZeroMQ: greeting, commands and frames as bytes, without I/O.
//!
//! ```text
//!  greeting   ff 0*8 7f | version 3 0 | "NULL" 0*16 | as-server 0 | 0*31          64 bytes
//!  frame      flags (1 more, 2 long, 4 command) | size, 1 byte or 8 | body
//!  READY      a command: 5 "READY", then pairs: name of 1 + n bytes, value of 4 + n
//! ```

use bytes::{Buf, Bytes, BytesMut};

use crate::msgpack::Malformed;

pub(crate) const GREETING: usize = 64;
/// Maximum size in bytes of a frame, and of a message's frames together.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;
/// Like `MAX_MESSAGE`, for peers that only subscribe or request replays.
pub(crate) const MAX_WISH: usize = 4 << 10;
const MAX_FRAMES: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The greeting, sent first by every peer.
pub(crate) fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// # Errors
/// The peer uses another protocol, or requires credentials.
pub(crate) fn check_greeting(bytes: &[u8; GREETING]) -> Result<(), Malformed> {
    if bytes[0] != 0xff || bytes[9] & 1 == 0 || bytes[10] < 3 {
        return Err(Malformed("the peer does not speak ZMTP 3"));
    }
    match &bytes[12..32] {
        [b'N', b'U', b'L', b'L', rest @ ..] if rest.iter().all(|byte| *byte == 0) => Ok(()),
        _ => Err(Malformed("the peer demands a mechanism other than NULL")),
    }
}

/// The READY command, which ends a handshake.
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    if socket_type != "PUB" && socket_type != "SUB" {
        body.extend_from_slice(b"\x08Identity\0\0\0\0");
    }
    let mut out = Vec::new();
    frame(&mut out, COMMAND, &body);
    out
}

fn frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(size) => out.extend([flags, size]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// Encodes a message of these frames.
pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.iter().map(|body| body.len() + 9).sum());
    for (at, body) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        frame(&mut out, more, body);
    }
    out
}

/// Encodes the reply to a PING.
pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, COMMAND, &[b"\x04PONG", context].concat());
    out
}

/// A command or a message from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Traffic {
    Ready,
    /// A PING, with the context that the reply repeats.
    Ping(Bytes),
    Subscribe(Bytes),
    Cancel(Bytes),
    Message(Vec<Bytes>),
    /// A command without effect.
    Other,
}

/// Reassembles frames from received bytes.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Maximum size in bytes of a frame, and of a message's frames together.
    most: usize,
    pub(crate) bytes: BytesMut,
    message: Vec<Bytes>,
    size: usize,
}

impl Frames {
    pub(crate) fn of_at_most(most: usize) -> Self {
        Self {
            most,
            bytes: BytesMut::new(),
            message: Vec::new(),
            size: 0,
        }
    }

    /// The next whole command or message; `None` if incomplete.
    ///
    /// # Errors
    /// [`Malformed`]: the connection is unusable.
    pub(crate) fn next(&mut self) -> Result<Option<Traffic>, Malformed> {
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND != 0 {
                return command(&body).map(Some);
            }
            self.size += body.len();
            self.message.push(body);
            if self.size > self.most || self.message.len() > MAX_FRAMES {
                return Err(Malformed("a message is too large"));
            }
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Traffic::Message(std::mem::take(&mut self.message))));
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, Malformed> {
        let Some(flags) = self.bytes.first().copied() else {
            return Ok(None);
        };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(Malformed("a frame has unknown flags"));
        }
        let head = if flags & LONG != 0 { 9 } else { 2 };
        let Some(size) = self.bytes.get(1..head) else {
            return Ok(None);
        };
        let size = size
            .iter()
            .fold(0u64, |size, byte| size << 8 | u64::from(*byte));
        if size > self.most as u64 {
            return Err(Malformed("a frame is too large"));
        }
        let size = size as usize;
        if self.bytes.len() < head + size {
            return Ok(None);
        }
        self.bytes.advance(head);
        Ok(Some((flags, self.bytes.split_to(size).freeze())))
    }
}

fn command(body: &Bytes) -> Result<Traffic, Malformed> {
    let named = body.first().map(|length| usize::from(*length));
    let name = named.and_then(|length| body.get(1..=length));
    let name = name.ok_or(Malformed("a command has no name"))?;
    let rest = body.slice(1 + name.len()..);
    Ok(match name {
        b"READY" => Traffic::Ready,
        // the context follows a two-byte time to live
        b"PING" => Traffic::Ping(rest.slice(rest.len().min(2)..)),
        b"SUBSCRIBE" => Traffic::Subscribe(rest),
        b"CANCEL" => Traffic::Cancel(rest),
        b"ERROR" => return Err(Malformed("the peer refuses the connection")),
        _ => Traffic::Other,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn greetings_of_others_are_checked() {
        let own = greeting();
        assert_eq!(check_greeting(&own), Ok(()));
        let with = |at: usize, byte: u8| {
            let mut other = own;
            other[at] = byte;
            check_greeting(&other)
        };
        assert_eq!(with(11, 1), Ok(()), "ZMTP 3.1");
        assert!(with(10, 1).is_err(), "ZMTP 1");
        assert!(with(12, b'P').is_err(), "PLAIN");
        assert!(with(0, b'H').is_err(), "HTTP");
    }

    #[test]
    fn commands_are_told_apart() {
        let read = |bytes: &[u8]| {
            let mut frames = Frames::of_at_most(MAX_MESSAGE);
            frames.bytes.extend_from_slice(bytes);
            frames.next()
        };
        assert_eq!(read(&ready("SUB")), Ok(Some(Traffic::Ready)));
        let ping = read(b"\x04\x09\x04PING\x00\x0axy");
        assert_eq!(ping, Ok(Some(Traffic::Ping(Bytes::from_static(b"xy")))));
        let subscribe = read(b"\x04\x0c\x09SUBSCRIBEkv");
        assert_eq!(
            subscribe,
            Ok(Some(Traffic::Subscribe(Bytes::from_static(b"kv"))))
        );
        assert!(read(b"\x04\x06\x05ERROR").is_err());
        assert!(read(b"\x04\x01\x05").is_err());
        assert!(read(b"\x08\x00").is_err());
        assert!(read(&[2, 255, 255, 255, 255, 0, 0, 0, 0]).is_err());
        assert_eq!(read(b"\x00\x05abc"), Ok(None));
    }

    proptest! {
        #[test]
        fn messages_come_through_in_any_pieces(
            messages in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4), 1..5),
            piece in 1usize..64,
        ) {
            let mut bytes = Vec::new();
            for one in &messages {
                let parts: Vec<&[u8]> = one.iter().map(Vec::as_slice).collect();
                bytes.extend(message(&parts));
            }
            let (mut frames, mut found) = (Frames::of_at_most(MAX_MESSAGE), Vec::new());
            for part in bytes.chunks(piece) {
                frames.bytes.extend_from_slice(part);
                while let Some(Traffic::Message(parts)) = frames.next().unwrap() {
                    found.push(parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut frames = Frames::of_at_most(MAX_MESSAGE);
            frames.bytes.extend_from_slice(&bytes);
            while let Ok(Some(_)) = frames.next() {}
            prop_assert!(frames.bytes.len() <= bytes.len());
        }
    }
}
