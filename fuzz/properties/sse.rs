//! Event streams: read in pieces as at once, by the standard's algorithm, without losing a byte,
//! and in bounded memory. The first byte is the size of the pieces, the second the limit of an
//! event.

use bytes::Bytes;
use penstock_api_types::sse_reader::EventReader;

type Event = (Vec<u8>, Vec<u8>);

/// What a reader gave until an event was too large.
#[derive(Default, PartialEq, Debug)]
struct Reading {
    events: Vec<Event>,
    /// All bytes of events, and what is left.
    bytes: Vec<u8>,
    too_large: bool,
}

impl Reading {
    fn of(stream: &[u8], size: usize, limit: usize) -> Self {
        let (mut reader, mut reading) = (EventReader::new(limit), Self::default());
        for piece in stream.chunks(size) {
            reader.push(Bytes::copy_from_slice(piece));
            reading.take(&mut reader);
            reading.too_large = reader.check().is_err();
            if reading.too_large {
                return reading;
            }
            assert!(reader.held() <= limit);
        }
        let rest = reader.rest();
        reading.bytes.extend_from_slice(&rest);
        if rest.ends_with(b"\r") {
            // half of a CR LF, or the end of a line: the next byte shows which
            reader.push([&rest, &b":"[..]].concat().into());
            let all = reading.bytes.len();
            reading.take(&mut reader);
            reading.bytes.truncate(all);
        }
        reading
    }

    fn take(&mut self, reader: &mut EventReader) {
        for event in reader {
            self.bytes.extend_from_slice(event.bytes());
            if let Some(data) = event.data() {
                self.events.push((event.name().to_vec(), data.into_owned()));
            }
        }
    }
}

/// The algorithm of the HTML standard on the whole stream.
fn reference(stream: &[u8]) -> Vec<Event> {
    let text: String = stream.iter().map(|&byte| byte as char).collect();
    let text = text.strip_prefix("\u{ef}\u{bb}\u{bf}").unwrap_or(&text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let bytes = |text: &str| text.chars().map(|c| c as u8).collect::<Vec<_>>();
    let (mut events, mut name, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    for line in whole.split_terminator('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" if line.is_empty() => {
                if !lines.is_empty() {
                    events.push((name, bytes(&lines.join("\n"))));
                }
                (name, lines) = (Vec::new(), Vec::new());
            }
            "data" => lines.push(value.to_owned()),
            "event" => name = bytes(value),
            _ => {}
        }
    }
    events
}

pub fn check(input: &[u8]) {
    let [size, limit, stream @ ..] = input else {
        return;
    };
    let size = usize::from(*size).max(1);
    let expected = Reading {
        events: reference(stream),
        bytes: stream.to_vec(),
        too_large: false,
    };
    let unlimited = stream.len() + 1;
    assert_eq!(Reading::of(stream, size, unlimited), expected);
    assert_eq!(Reading::of(stream, unlimited, unlimited), expected);

    let limit = usize::from(*limit);
    let limited = Reading::of(stream, size, limit);
    assert!(expected.events.starts_with(&limited.events));
    assert!(expected.bytes.starts_with(&limited.bytes));
    assert!(limited.too_large || limited == expected);
    let largest = limited.events.iter().map(|(_, data)| data.len()).max();
    assert!(largest.unwrap_or(0) <= limit + size);
}
