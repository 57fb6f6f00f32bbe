//! gRPC framing. A frame is a flag byte, a length of four bytes, and a message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::status::{Code, Status};

const PREFIX: usize = 5;

/// Splits a byte stream into messages, independent of the division of the stream into chunks.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: BytesMut,
    /// Maximum size of a message in bytes.
    limit: usize,
}

impl Frames {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Number of buffered bytes, which belong to messages that have not been taken yet.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether no bytes are left, so that the stream may end here.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next message; `None` while it is incomplete.
    ///
    /// # Errors
    /// The message is too large, compressed, or malformed.
    pub(crate) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        if self.buffer.len() < PREFIX {
            return Ok(None);
        }
        let (flag, length) = (self.buffer[0], (&self.buffer[1..PREFIX]).get_u32() as usize);
        if flag != 0 {
            return Err(Status::new(Code::Unimplemented, "messages are compressed"));
        }
        if length > self.limit {
            let limit = self.limit;
            let text = format!("a message has {length} bytes, and at most {limit} are taken");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        let message = self.buffer.split_to(length).freeze();
        let decoded = M::decode(message);
        let decoded =
            decoded.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()));
        decoded.map(Some)
    }
}

/// A frame with `message`: its prefix and its bytes.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    message.encode_raw(&mut out);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::messages::HttpBody;

    fn body(size: usize) -> HttpBody {
        HttpBody {
            body: vec![b'x'; size].into(),
            end_of_stream: size.is_multiple_of(2),
        }
    }

    proptest! {
        #[test]
        fn messages_are_found_however_they_are_cut(
            sizes in prop::collection::vec(0usize..300, 0..6),
            cut in 1usize..400,
        ) {
            let sent: Vec<HttpBody> = sizes.into_iter().map(body).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(framed).collect();
            let mut frames = Frames::new(400);
            let mut found = Vec::new();
            for chunk in bytes.chunks(cut) {
                frames.push(chunk);
                while let Some(message) = frames.next::<HttpBody>().unwrap() {
                    found.push(message);
                }
            }
            prop_assert_eq!(found, sent);
            prop_assert!(frames.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let mut frames = Frames::new(100);
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next::<HttpBody>() {}
        }
    }

    #[test]
    fn what_is_too_large_compressed_or_malformed_is_refused() {
        let code = |bytes: &[u8]| {
            let mut frames = Frames::new(10);
            frames.push(bytes);
            frames.next::<HttpBody>().unwrap_err().code
        };
        assert_eq!(code(&[0, 0, 0, 0, 11]), Code::ResourceExhausted);
        assert_eq!(code(&[1, 0, 0, 0, 0]), Code::Unimplemented);
        assert_eq!(code(&[0, 0, 0, 0, 1, 0xff]), Code::InvalidArgument);
    }
}
