//! Streams between hosts, on loopback.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use penstock_collectives::{GroupError, Key, Stream, StreamListener};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(300);
const KEY: Key = [7; 32];
const LIMIT: usize = 1 << 24;

fn pair() -> (Stream, Stream) {
    let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), KEY).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(move || Stream::connect(address, &KEY, PATIENCE).unwrap());
        let accepted = listener.accept(PATIENCE).unwrap();
        (accepted, caller.join().unwrap())
    })
}

#[test]
fn messages_of_every_size_come_in_order_both_ways() {
    let (mut a, mut b) = pair();
    let sizes = [0, 1, 7, 8, 4096, 65_536, 3 << 20];
    thread::scope(|scope| {
        scope.spawn(|| {
            for (n, &size) in sizes.iter().enumerate() {
                let got = b.receive(PATIENCE, LIMIT).unwrap().unwrap();
                assert_eq!(got, vec![n as u8; size]);
                b.send(&got).unwrap();
            }
        });
        for (n, &size) in sizes.iter().enumerate() {
            a.send(&vec![n as u8; size]).unwrap();
            assert_eq!(
                a.receive(PATIENCE, LIMIT).unwrap().unwrap(),
                vec![n as u8; size]
            );
        }
    });
    assert_eq!(a.receive(Duration::from_millis(60), LIMIT), Ok(None));
}

#[test]
fn whoever_lacks_the_key_is_turned_away() {
    let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), KEY).unwrap();
    let address = listener.address().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(move || listener.accept(PATIENCE).unwrap());
        let stranger = scope.spawn(move || Stream::connect(address, &[8; 32], PATIENCE).is_err());
        let noise = scope.spawn(move || {
            let mut socket = TcpStream::connect(address).unwrap();
            let _ = socket.write_all(&[9; 500]);
        });
        assert!(stranger.join().unwrap());
        noise.join().unwrap();
        let friend = scope.spawn(move || Stream::connect(address, &KEY, PATIENCE).unwrap());
        friend.join().unwrap().send(b"hello").unwrap();
        let mut accepted = accepting.join().unwrap();
        assert_eq!(
            accepted.receive(PATIENCE, LIMIT).unwrap().unwrap(),
            b"hello"
        );
    });
}

#[test]
fn callers_that_say_nothing_delay_no_others() {
    let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), KEY).unwrap();
    let address = listener.address().unwrap();
    let silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    thread::scope(|scope| {
        let friend = scope.spawn(move || Stream::connect(address, &KEY, PATIENCE).unwrap());
        // Less than the time-out of one handshake.
        let accepted = listener.accept_within(Duration::from_secs(8), PATIENCE);
        assert!(accepted.is_some());
        friend.join().unwrap();
    });
    drop(silent);
}

#[test]
fn a_caller_with_another_key_is_told_so_and_the_listener_knows_where_it_was() {
    let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), KEY).unwrap();
    let address = listener.address().unwrap();
    assert_eq!(listener.turned_away(), None);
    thread::scope(|scope| {
        let stranger = scope.spawn(move || Stream::connect(address, &[8; 32], PATIENCE).err());
        while !stranger.is_finished() {
            assert!(
                listener
                    .accept_within(Duration::from_millis(20), PATIENCE)
                    .is_none()
            );
        }
        let error = stranger.join().unwrap().unwrap().to_string();
        assert!(error.contains("does not hold the key"), "{error}");
    });
    assert!(listener.turned_away().unwrap().ip().is_loopback());
    assert_eq!(listener.turned_away(), None);
}

#[test]
fn the_end_of_one_side_ends_the_other() {
    let (mut a, b) = pair();
    drop(b);
    assert!(matches!(
        a.receive(PATIENCE, LIMIT),
        Err(GroupError::Cut(_))
    ));
    let (mut a, _b) = pair();
    let fence = a.fence().unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || a.receive(PATIENCE, LIMIT));
        thread::sleep(Duration::from_millis(50));
        fence.end();
        assert!(matches!(waiting.join().unwrap(), Err(GroupError::Cut(_))));
    });
    assert!(began.elapsed() < Duration::from_secs(20));
    let unused: SocketAddr = "127.0.0.1:1".parse().unwrap();
    assert!(Stream::connect(unused, &KEY, Duration::from_millis(200)).is_err());
    let (mut a, mut b) = pair();
    a.send(&[0; 100]).unwrap();
    assert!(
        matches!(b.receive(PATIENCE, 99), Err(GroupError::Cut(_))),
        "over the limit"
    );
}

/// A stream through a relay that may change bytes after the handshake.
fn relayed(change: impl Fn(&mut Vec<u8>) + Send) -> Result<Option<Vec<u8>>, GroupError> {
    let listener = StreamListener::bind("127.0.0.1:0".parse().unwrap(), KEY).unwrap();
    let target = listener.address().unwrap();
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = middle.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut near, _) = middle.accept().unwrap();
            let mut far = TcpStream::connect(target).unwrap();
            let mut pass = |from: bool, len: usize| {
                let (source, sink) = if from {
                    (&mut near, &mut far)
                } else {
                    (&mut far, &mut near)
                };
                let mut bytes = vec![0; len];
                source.read_exact(&mut bytes).unwrap();
                sink.write_all(&bytes).unwrap();
            };
            pass(false, 32);
            pass(true, 64);
            pass(false, 32);
            let mut bytes = vec![0; 8 + 5 + 32];
            near.read_exact(&mut bytes).unwrap();
            change(&mut bytes);
            far.write_all(&bytes).unwrap();
        });
        let caller = scope.spawn(move || {
            let mut stream = Stream::connect(address, &KEY, PATIENCE).unwrap();
            stream.send(b"hello").unwrap();
            stream
        });
        let mut accepted = listener.accept(PATIENCE).unwrap();
        let got = accepted.receive(PATIENCE, LIMIT);
        drop(caller.join().unwrap());
        got
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_changed_message_is_never_taken(at in 8usize..45, bit in 0u8..8) {
        let got = relayed(move |bytes| bytes[at] ^= 1 << bit);
        prop_assert!(matches!(got, Err(GroupError::Cut(_))), "{got:?}");
    }
}

#[test]
fn an_unchanged_message_passes_the_relay_once() {
    assert_eq!(relayed(|_| ()), Ok(Some(b"hello".to_vec())));
    let twice = relayed(|bytes| {
        let again = bytes.clone();
        bytes.extend(again);
    });
    assert_eq!(
        twice,
        Ok(Some(b"hello".to_vec())),
        "the second is refused when it is asked for"
    );
}
