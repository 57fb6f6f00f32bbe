//! The event reader against the standard's own examples, and cut at any byte against read at once.
use bytes::Bytes;
use penstock_api_types::sse_reader::{Event, EventReader, EventTooLarge};
use proptest::prelude::*;

type Read = (String, String);

fn shown(event: &Event) -> Option<Read> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(event.name()), text(&event.data()?)))
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Read> {
    let mut reader = EventReader::new(1 << 20);
    let mut events = Vec::new();
    for piece in pieces {
        reader.push(Bytes::copy_from_slice(piece));
        events.extend(reader.by_ref().filter_map(|event| shown(&event)));
    }
    // an event that no empty line ends is discarded; a CR at the end may be half of a line end
    let rest = reader.rest();
    if rest.ends_with(b"\r") {
        reader.push([&rest, &b":"[..]].concat().into());
        events.extend(reader.by_ref().filter_map(|event| shown(&event)));
    }
    events
}

fn data(bytes: &[u8]) -> Vec<String> {
    read([bytes]).into_iter().map(|(_, data)| data).collect()
}

#[test]
fn examples_of_the_standard() {
    assert_eq!(
        data(b"data: YHOO\ndata: +2\ndata: 10\n\n"),
        ["YHOO\n+2\n10"]
    );
    let four = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  \
     third event\n";
    assert_eq!(data(four), ["first event", "second event"]);
    assert_eq!(data(b"data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
    assert_eq!(data(b"data:test\n\ndata: test\n\n"), ["test", "test"]);
}

#[test]
fn line_ends_names_and_comments() {
    assert_eq!(
        data(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n"),
        ["a", "b", "c"]
    );
    assert_eq!(data(b": keep-alive\n\n: again\r\n\r\n"), [""; 0]);
    assert_eq!(data("\u{feff}data: a\n\n".as_bytes()), ["a"]);
    let named = read([b"event: error\ndata: {}\n\ndata: x\n\n".as_slice()]);
    assert_eq!(
        named,
        [("error".into(), "{}".into()), (String::new(), "x".into())]
    );
    assert_eq!(data(b"event: nothing\n\ndatas: x\n\nDATA: y\n\n"), [""; 0]);
}

#[test]
fn a_line_end_cut_between_cr_and_lf_is_one() {
    let pieces: [&[u8]; 4] = [b"data: a\r", b"\n\r", b"\n", b"data: b\n\n"];
    assert_eq!(read(pieces).len(), 2);
}

#[test]
fn what_is_too_large_is_refused() {
    let limit = EventTooLarge { limit: 10 };
    for endless in [
        b"data: 12345678".as_slice(),
        b"data: 1234\ndata: 5678\ndata: 90123\n",
    ] {
        let mut reader = EventReader::new(10);
        let (first, second) = endless.split_at(9);
        reader.push(Bytes::from_static(first));
        assert!(reader.next().is_none() && reader.check().is_ok());
        reader.push(Bytes::from_static(second));
        assert!(reader.next().is_none());
        assert_eq!(reader.check(), Err(limit));
    }
}

#[test]
fn an_endless_event_costs_a_look_at_each_byte() {
    const LIMIT: usize = 4 << 20;
    let began = std::time::Instant::now();
    let mut reader = EventReader::new(LIMIT);
    let part = Bytes::from([&[b'x'; 4000][..], b"\n: y"].concat());
    while reader.check().is_ok() {
        reader.push(part.clone());
        assert!(reader.next().is_none());
    }
    assert!(reader.held() <= LIMIT + part.len());
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[test]
fn whole_events_share_the_memory_of_their_chunk() {
    let chunk = Bytes::from_static(b": mark\n\ndata: 1\n\ndata: 2\r\n\r\ndata");
    let mut reader = EventReader::new(100);
    reader.push(chunk.clone());
    let events: Vec<Event> = reader.by_ref().collect();
    let mut at = chunk.as_ptr();
    for event in &events {
        assert_eq!(event.bytes().as_ptr(), at);
        at = event.bytes().as_ptr_range().end;
    }
    assert_eq!(events.len(), 3);
    assert_eq!(reader.held(), 4);
}

/// The standard's algorithm with no regard to pieces or copies.
fn reference(bytes: &[u8]) -> Vec<Read> {
    let text: String = bytes.iter().map(|&byte| byte as char).collect();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut name, mut lines) = (Vec::new(), String::new(), Vec::new());
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" if line.is_empty() => {
                if !lines.is_empty() {
                    events.push((name.clone(), lines.join("\n")));
                }
                name.clear();
                lines.clear();
            }
            "data" => lines.push(value.to_owned()),
            "event" => name = value.to_owned(),
            _ => {}
        }
    }
    events
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just("data: ".to_owned()),
        Just("data:".to_owned()),
        Just("data".to_owned()),
        Just("event: error".to_owned()),
        Just(": comment".to_owned()),
        Just("\n".to_owned()),
        Just("\n\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("\r".to_owned()),
        "[ -~]{0,12}",
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat().into_bytes())
}

proptest! {
    #[test]
    fn no_byte_of_a_stream_is_lost(bytes in stream(), size in 1usize..40) {
        let (mut reader, mut out) = (EventReader::new(1 << 20), Vec::new());
        for piece in bytes.chunks(size) {
            reader.push(Bytes::copy_from_slice(piece));
            reader.by_ref().for_each(|event| out.extend_from_slice(event.bytes()));
        }
        out.extend_from_slice(&reader.rest());
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn cut_anywhere_reads_as_at_once(
        bytes in stream(),
        cuts in prop::collection::vec(0usize..400, 0..40),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]);
        prop_assert_eq!(read(pieces), reference(&bytes));
        prop_assert_eq!(read(bytes.chunks(1)), reference(&bytes));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        size in 1usize..40,
    ) {
        prop_assert_eq!(read(bytes.chunks(size)).len(), read([bytes.as_slice()]).len());
    }
}
