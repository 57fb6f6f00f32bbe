//! Frames and messages between processes: what decodes encodes, and decodes to the same again. The
//! first byte is the type of a frame, or one of the messages below.

use crate::common::check_message;
use penstock_wire::{
    EngineFrame, Frame, FrameError, FrameReader, FrontFrame, StepPlan, StepResult, Transfer,
    TransferResult,
};

const PLAN: u8 = 0xf0;
const RESULT: u8 = 0xf1;
const TRANSFER: u8 = 0xf2;
const TRANSFER_RESULTS: u8 = 0xf3;

/// Decodes, encodes, decodes and encodes; compares bytes, because a float may be no number.
fn round_trip<T>(
    body: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, FrameError>,
    encode: impl Fn(&T) -> Result<Vec<u8>, FrameError>,
) {
    match decode(body) {
        Ok(read) => {
            let first = encode(&read).expect("a decoded message is in bounds");
            let again = decode(&first).expect("an encoded message is whole");
            assert_eq!(encode(&again).expect("as before"), first);
        }
        Err(error) => {
            assert!(error.offset <= body.len(), "{error}");
            check_message(&error);
        }
    }
}

/// A frame from one stream of bytes, after its length.
fn check_frame<F: Frame>(
    kind: u8,
    body: &[u8],
    encode: fn(&F, &mut Vec<u8>) -> Result<(), FrameError>,
) {
    let encode = |frame: &F| {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes).map(|()| bytes.split_off(5))
    };
    round_trip(body, |body| F::decode(kind, body), encode);
    let length = (1 + body.len() as u32).to_le_bytes();
    let stream = [&length[..], &[kind], body, &[0; 4]].concat();
    let mut reader = FrameReader::new();
    let mut first = None;
    for piece in stream.chunks(stream.len() / 3) {
        reader.spare().extend_from_slice(piece);
        first = first.or_else(|| reader.next_frame::<F>().transpose());
    }
    let (read, first) = (F::decode(kind, body), first.expect("a whole frame"));
    assert_eq!(first.as_ref().err(), read.as_ref().err());
}

fn encoded(
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::new();
    encode(&mut bytes).map(|()| bytes)
}

pub fn check(input: &[u8]) {
    let [kind, body @ ..] = input else {
        return;
    };
    match *kind {
        PLAN => round_trip(body, StepPlan::decode, |plan| {
            encoded(|out| plan.encode(out))
        }),
        RESULT => round_trip(body, StepResult::decode, |result| {
            encoded(|out| result.encode(out))
        }),
        TRANSFER => round_trip(body, Transfer::decode, |(transfer, after)| {
            encoded(|out| transfer.encode(*after, out))
        }),
        TRANSFER_RESULTS => round_trip(body, TransferResult::decode_all, |results| {
            TransferResult::encode_all(results, usize::MAX).map(|messages| messages.concat())
        }),
        kind => {
            check_frame(kind, body, EngineFrame::encode);
            check_frame(kind, body, FrontFrame::encode);
        }
    }
}
