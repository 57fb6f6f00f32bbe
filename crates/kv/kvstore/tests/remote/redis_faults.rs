//! A Redis that refuses, is full, goes, hangs or talks nonsense.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use penstock_kvstore::{Redis, RedisLimits, Tier, TierError};
use proptest::prelude::*;

use crate::parts::{DEADLINE, free_port, identity, key, load, payload, store, until};
use crate::redis::open;
use crate::redis_server::Server;

pub(crate) const BRIEF: RedisLimits = RedisLimits {
    connect: Duration::from_millis(300),
    answer: Duration::from_millis(600),
};

fn refused(url: &str) -> String {
    match Redis::open(url, None, BRIEF, &identity("a")) {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn killed_and_back() {
    let Some(mut server) = Server::start("redis_faults::killed_and_back", &[]) else {
        return;
    };
    let tier = open(&server.url());
    let (key, parts) = (key(1, 0), payload(1, 3, 100_000));
    for round in 0..3 {
        store(&tier, &key, &parts).unwrap();
        server.kill();
        for _ in 0..3 {
            let error = load(&tier, &key, &parts).unwrap_err();
            assert!(
                matches!(error, TierError::Failed(_)),
                "round {round}: {error}"
            );
            assert!(
                error.to_string().contains(&server.port.to_string()),
                "{error}"
            );
        }
        assert!(matches!(
            store(&tier, &key, &parts),
            Err(TierError::Failed(_))
        ));
        assert!(matches!(tier.probe(&[key]), Err(TierError::Failed(_))));
        server.restart();
        assert!(matches!(load(&tier, &key, &parts), Err(TierError::Missing)));
    }
}

/// No call was made while it was away, so the idle connection is found dead by the next call.
#[test]
fn a_restart_between_calls_is_not_noticed() {
    let Some(mut server) = Server::start("redis_faults::a_restart_between_calls", &[]) else {
        return;
    };
    let tier = open(&server.url());
    let (key, parts) = (key(1, 0), payload(1, 3, 1_000_000));
    for _ in 0..3 {
        server.kill();
        server.restart();
        store(&tier, &key, &parts).unwrap();
        assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
    }
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let test = "redis_faults::who_is_not_let_in_is_told_why";
    let Some(server) = Server::start(test, &["--requirepass", "s3cret@"]) else {
        return;
    };
    let at = |credentials: &str| format!("redis://{credentials}127.0.0.1:{}/0", server.port);
    assert!(refused(&at("")).contains("redis://:PASSWORD@host"));
    let wrong = refused(&at(":guess@"));
    assert!(
        wrong.contains("WRONGPASS") && !wrong.contains("guess"),
        "{wrong}"
    );
    assert!(refused(&at("stranger:s3cret@")).contains("WRONGPASS"));
    let tier = open(&at(":s3cret%40@"));
    assert!(!tier.name().contains("s3cret"));
    let admin = ["-a", "s3cret@", "ACL", "SETUSER"];
    let rights = [
        "kv",
        "on",
        ">pw",
        "~penstock-kv-*",
        "+hget",
        "+hset",
        "+hsetnx",
        "+hexists",
        "+hdel",
    ];
    let more = ["+unlink", "+expire", "+multi", "+exec", "+select"];
    server.cli(&[&admin[..], &rights, &more].concat()).unwrap();
    let limited = Redis::open(
        &at("kv:pw@"),
        Some(Duration::from_secs(60)),
        BRIEF,
        &identity("b"),
    )
    .unwrap();
    let parts = payload(1, 3, 1000);
    store(&limited, &key(1, 0), &parts).unwrap();
    assert_eq!(load(&limited, &key(1, 0), &parts).unwrap(), parts);
    limited.remove(&[1; 32]).unwrap();
    server
        .cli(&["-a", "s3cret@", "ACL", "SETUSER", "kv", "-hset"])
        .unwrap();
    let error = refused(&at("kv:pw@"));
    assert!(
        error.contains("NOPERM") && error.contains("+hset"),
        "{error}"
    );
}

#[test]
fn full_memory_is_full() {
    let test = "redis_faults::full_memory_is_full";
    let Some(server) = Server::start(
        test,
        &["--maxmemory", "40mb", "--maxmemory-policy", "noeviction"],
    ) else {
        return;
    };
    let limits = RedisLimits::default();
    let tier = open(&server.url());
    let lasting = Redis::open(
        &server.url(),
        Some(Duration::from_secs(900)),
        limits,
        &identity("b"),
    )
    .unwrap();
    let parts = payload(1, 8, 512 << 10);
    let fill = |tier: &Redis, from: u8| {
        (from..from + 30).find_map(|chunk| store(tier, &key(chunk, 0), &parts).err())
    };
    for tier in [&tier, &lasting] {
        let error = fill(tier, 0).unwrap();
        assert!(matches!(error, TierError::Full(_)), "{error}");
        assert!(error.to_string().contains("allkeys-lru"), "{error}");
    }
    assert_eq!(
        load(&tier, &key(0, 0), &parts).unwrap(),
        parts,
        "full, but it reads"
    );
    let configure = |name, value| server.cli(&["CONFIG", "SET", name, value]).unwrap();
    // Buffers of large requests count as used memory, and there is room once they are released.
    configure("maxmemory", "20mb");
    assert!(refused(&server.url()).contains("maxmemory"));
    configure("maxmemory", "40mb");
    configure("maxmemory-policy", "allkeys-lru");
    assert!(fill(&tier, 100).is_none());
    assert_eq!(load(&tier, &key(129, 0), &parts).unwrap(), parts);
    assert!(
        matches!(load(&tier, &key(0, 0), &parts), Err(TierError::Missing)),
        "the oldest went"
    );
}

#[test]
fn a_server_that_hangs_is_not_waited_for() {
    let Some(server) = Server::start("redis_faults::a_server_that_hangs", &[]) else {
        return;
    };
    let tier = Redis::open(&server.url(), None, BRIEF, &identity("a")).unwrap();
    let (key, parts) = (key(1, 0), payload(1, 8, 1 << 20));
    store(&tier, &key, &parts).unwrap();
    server.signal("STOP");
    for call in 0..3 {
        let start = Instant::now();
        let error = load(&tier, &key, &parts).unwrap_err();
        assert!(
            error.to_string().contains("did not answer within"),
            "{call}: {error}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{call}: {:?}",
            start.elapsed()
        );
    }
    server.signal("CONT");
    until(|| load(&tier, &key, &parts).map(|found| assert_eq!(found, parts)));
}

#[test]
fn nobody_there_is_refused_at_start() {
    let error = refused(&format!("redis://127.0.0.1:{}", free_port()));
    assert!(error.contains("refused"), "{error}");
    assert!(refused("redis://no-such-host.invalid").contains("no-such-host.invalid"));
    assert!(refused("unix:///no/such/socket").contains("/no/such/socket"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = refused(&format!("redis://{}", silent.local_addr().unwrap()));
    assert!(error.contains("did not answer within"), "{error}");
}

/// Lets a tier in, then answers everything with `nonsense`. Where that is cut short, one connection
/// hangs and the later ones end, because a time limit for each would take most of the test.
fn liar(nonsense: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for (at, stream) in listener.incoming().take(4).enumerate() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4096];
            let welcome = stream.read(&mut buffer).unwrap();
            let first = buffer[..welcome].windows(6).any(|word| word == b"UNLINK");
            let _ = stream.write_all(if first { b":1\r\n:1\r\n" } else { &nonsense });
            if at > 1 {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
            while let Ok(1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(&nonsense);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        }
    });
    port
}

/// Loads from a server that lets a tier in, then sends `start` and, after each pause, a piece.
fn load_from_endless(
    start: &'static [u8],
    (pause, piece): (Duration, Vec<u8>),
    answer: Duration,
) -> TierError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b":1\r\n:1\r\n").unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let mut sent = stream.write_all(start);
        while sent.is_ok() {
            thread::sleep(pause);
            sent = stream.write_all(&piece);
        }
    });
    let limits = RedisLimits { answer, ..BRIEF };
    let tier = Redis::open(&url, None, limits, &identity("a")).unwrap();
    load(&tier, &key(1, 0), &payload(1, 2, 64)).unwrap_err()
}

#[test]
fn a_reply_that_drips_is_not_waited_for() {
    let drop = (Duration::from_millis(100), vec![0]);
    let error = load_from_endless(b"$4224\r\n", drop, BRIEF.answer);
    assert!(error.to_string().contains("did not answer"), "{error}");
}

#[test]
fn a_reply_without_end_is_not_kept() {
    let flood = (Duration::ZERO, vec![0; 1 << 20]);
    let error = load_from_endless(b"$9999999999\r\n", flood, DEADLINE);
    assert!(error.to_string().contains("the reply is longer"), "{error}");
}

fn reply() -> impl Strategy<Value = Vec<u8>> {
    let line = (
        proptest::sample::select(b"+-:$*%!".to_vec()),
        "[0-9-]{0,20}[ -~]{0,20}",
    )
        .prop_map(|(kind, rest)| [&[kind], rest.as_bytes(), b"\r\n"].concat());
    let many = proptest::collection::vec(line, 0..6).prop_map(|lines| lines.concat());
    prop_oneof![
        many,
        proptest::collection::vec(any::<u8>(), 0..200),
        nested()
    ]
}

fn nested() -> impl Strategy<Value = Vec<u8>> {
    (1..100_000_usize).prop_map(|depth| b"*1\r\n".repeat(depth))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn nonsense_is_an_error(nonsense in reply()) {
        let port = liar(nonsense);
        let url = format!("redis://127.0.0.1:{port}");
        let tier = Redis::open(&url, None, BRIEF, &identity("a")).unwrap();
        let parts = payload(1, 2, 64);
        prop_assert!(load(&tier, &key(1, 0), &parts).is_err());
        let _ = tier.probe(&[key(1, 0), key(2, 0)]);
    }
}
