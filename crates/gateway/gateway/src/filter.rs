//! Stages through which a response body passes on its way to the client.

use axum::body::Bytes;
use bytes::BytesMut;
use penstock_api_types::sse_reader::Event;

/// A stage. It processes each event of a stream once, or each chunk of a body that is not a stream.
pub(crate) trait BodyFilter {
    /// Processes the next events, in order. A stage may change or remove events, or hold some back
    /// and release them before later ones.
    fn events(&mut self, events: &mut Vec<Event>);

    /// Appends the events that the stage still holds back at the end of a stream.
    fn release(&mut self, _events: &mut Vec<Event>) {}

    /// Processes the next chunk of a body that is not a stream.
    fn part(&mut self, part: Bytes) -> Bytes {
        part
    }
}

/// The bytes of `events`. Copies them only if there are several events that are not adjacent in
/// `chunk`.
pub(crate) fn joined(events: &[Event], chunk: &Bytes) -> Bytes {
    let address = |event: &Event| event.bytes().as_ptr() as usize;
    let (first, others) = match events {
        [] => return Bytes::new(),
        [one] => return one.bytes().clone(),
        [first, others @ ..] => (first, others),
    };
    let (start, mut end) = (address(first), address(first) + first.bytes().len());
    let is_next = |event: &Event| {
        let is_next = address(event) == end;
        end += event.bytes().len();
        is_next
    };
    if others.iter().all(is_next)
        && let Some(at) = start.checked_sub(chunk.as_ptr() as usize)
        && at + (end - start) <= chunk.len()
    {
        return chunk.slice(at..at + (end - start));
    }
    let mut out = BytesMut::with_capacity(events.iter().map(|event| event.bytes().len()).sum());
    events
        .iter()
        .for_each(|event| out.extend_from_slice(event.bytes()));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::reader;

    #[test]
    fn events_that_are_a_piece_of_the_chunk_are_not_copied() {
        let chunk = Bytes::from_static(b"data: 1\n\n: mark\n\ndata: 2\n\ndata: 3\n\n");
        let mut events = reader();
        events.push(chunk.clone());
        let mut events: Vec<Event> = events.collect();
        assert_eq!(joined(&events, &chunk).as_ptr(), chunk.as_ptr());
        let last = joined(&events[2..], &chunk);
        assert_eq!(last.as_ptr(), events[2].bytes().as_ptr());
        assert_eq!(last, "data: 2\n\ndata: 3\n\n");
        assert_eq!(joined(&events[1..2], &Bytes::new()), ": mark\n\n");
        assert_eq!(joined(&events[2..], &Bytes::new()), last);
        events.remove(1);
        assert_eq!(joined(&events, &chunk), "data: 1\n\ndata: 2\n\ndata: 3\n\n");
        assert!(joined(&[], &chunk).is_empty());
    }
}
