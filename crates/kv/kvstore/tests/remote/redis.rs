//! What a Redis keeps.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use penstock_kvstore::{PartKey, Redis, RedisLimits, Tier, TierError};

use crate::model::assert_like_a_dictionary;
use crate::parts::{Scratch, assert_damage_is_noticed, identity, key, load, payload, store, until};
use crate::redis_server::Server;

pub(crate) fn open(url: &str) -> Redis {
    Redis::open(url, None, RedisLimits::default(), &identity("a")).unwrap()
}

/// The hash of chunk `chunk` under the identity of [`open`].
pub(crate) fn chunk_name(chunk: u8) -> String {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    format!(
        "penstock-kv-1/{}/{}",
        hex(&identity("a").digest()),
        hex(&[chunk; 32])
    )
}

#[test]
fn does_what_a_dictionary_does() {
    let Some(server) = Server::start("redis::does_what_a_dictionary_does", &[]) else {
        return;
    };
    let limits = RedisLimits::default();
    assert_like_a_dictionary(64, |identity| {
        Redis::open(&server.url(), None, limits, identity).unwrap()
    });
    let ttl = Some(Duration::from_secs(1000));
    assert_like_a_dictionary(32, |identity| {
        Redis::open(&server.url(), ttl, limits, identity).unwrap()
    });
}

#[test]
fn parts_of_all_sizes_under_their_documented_names() {
    let Some(server) = Server::start("redis::parts_of_all_sizes", &[]) else {
        return;
    };
    let tier = open(&server.url());
    for (chunk, blocks, bytes) in [(1, 1, 1), (2, 3, 5000), (3, 8, 256 << 10), (4, 16, 2 << 20)] {
        let parts = payload(chunk, blocks, bytes);
        let key = PartKey {
            digest: [chunk as u8; 32],
            blocks: blocks as u16,
            head: 5,
            layers: (2, 9),
        };
        store(&tier, &key, &parts).unwrap();
        assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
        assert_eq!(load(&open(&server.url()), &key, &parts).unwrap(), parts);
        let length = server.cli(&[
            "HSTRLEN",
            &chunk_name(chunk as u8),
            &format!("{blocks}.h5.l2-9"),
        ]);
        assert_eq!(length.unwrap(), (4096 + blocks * bytes).to_string());
    }
    assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "4");
    assert!(matches!(
        load(&tier, &key(9, 0), &payload(0, 1, 1)),
        Err(TierError::Missing)
    ));
}

#[test]
fn over_a_unix_socket_and_in_another_database() {
    let Some(server) = Server::start("redis::over_a_unix_socket", &[]) else {
        return;
    };
    let parts = payload(1, 3, 100_000);
    let tier = open(&format!("unix://{}?db=3", server.socket().display()));
    store(&tier, &key(1, 0), &parts).unwrap();
    assert_eq!(load(&tier, &key(1, 0), &parts).unwrap(), parts);
    assert!(matches!(
        load(&open(&server.url()), &key(1, 0), &parts),
        Err(TierError::Missing)
    ));
    assert_eq!(server.cli(&["-n", "3", "DBSIZE"]).unwrap(), "1");
}

#[test]
fn over_tls_with_an_authority_of_our_own() {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.0.join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let (cert, key_file, port) = (at("cert.pem"), at("key.pem"), crate::parts::free_port());
    let port_text = port.to_string();
    let options = [
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key_file,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ];
    let Some(_server) = Server::start_in("redis::over_tls", scratch, &options) else {
        return;
    };
    let tier = open(&format!("rediss://localhost:{port}/0?ssl_ca_certs={cert}"));
    let parts = payload(1, 8, 300_000);
    store(&tier, &key(1, 0), &parts).unwrap();
    assert_eq!(load(&tier, &key(1, 0), &parts).unwrap(), parts);
    let stranger = Redis::open(
        &format!("rediss://localhost:{port}"),
        None,
        RedisLimits::default(),
        &identity("a"),
    );
    assert!(stranger.err().unwrap().to_string().contains("certificate"));
}

#[test]
fn many_threads_at_once() {
    let Some(server) = Server::start("redis::many_threads_at_once", &[]) else {
        return;
    };
    let tier = Arc::new(open(&server.url()));
    let threads: Vec<_> = (0..24_u8)
        .map(|at| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || {
                for round in 0..10 {
                    let (key, parts) = (
                        key(at % 8, u16::from(at / 8)),
                        payload(u64::from(at), 3, 40_000),
                    );
                    store(&*tier, &key, &parts).unwrap();
                    assert_eq!(load(&*tier, &key, &parts).unwrap(), parts, "round {round}");
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_time_to_live_is_the_chunks() {
    let Some(server) = Server::start("redis::a_time_to_live_is_the_chunks", &[]) else {
        return;
    };
    let with = |seconds| {
        let ttl = Some(Duration::from_secs(seconds));
        Redis::open(&server.url(), ttl, RedisLimits::default(), &identity("a")).unwrap()
    };
    let parts = payload(1, 3, 1000);
    store(&with(100), &key(1, 0), &parts).unwrap();
    let left = || {
        server
            .cli(&["TTL", &chunk_name(1)])
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    assert!((1..=100).contains(&left()));
    store(&with(10_000), &key(1, 0), &parts).unwrap();
    assert!(left() > 100, "what is stored again is kept longer");
    let brief = with(1);
    store(&brief, &key(2, 0), &parts).unwrap();
    until(|| {
        if brief.probe(&[key(2, 0)]).unwrap()[0] {
            Err("still there")
        } else {
            Ok(())
        }
    });
    assert!(matches!(
        load(&brief, &key(2, 0), &parts),
        Err(TierError::Missing)
    ));
}

/// Applies a Lua expression to the value `v` of a field.
fn change(server: &Server, key: &PartKey, expression: &str) {
    let field = format!(
        "{}.h{}.l{}-{}",
        key.blocks, key.head, key.layers.0, key.layers.1
    );
    let script = format!(
        "local v = redis.call('HGET', KEYS[1], ARGV[1]); return redis.call('HSET', KEYS[1], \
         ARGV[1], {expression})"
    );
    assert_eq!(
        server
            .cli(&["EVAL", &script, "1", &chunk_name(key.digest[0]), &field])
            .unwrap(),
        "0"
    );
}

#[test]
fn damage_is_noticed() {
    let Some(server) = Server::start("redis::damage_is_noticed", &[]) else {
        return;
    };
    let tier = open(&server.url());
    let (key, parts) = (key(1, 0), payload(2, 3, 30_000));
    let length = 4096 + 3 * 30_000;
    store(&tier, &key, &parts).unwrap();
    for at in [1, 10, 51, 91, 101, 201, 4091, 4097, 50_000, length] {
        let (before, after) = (at - 1, at + 1);
        let flipped = format!(
            "string.sub(v, 1, {before}) .. string.char(bit.bxor(string.byte(v, {at}), 4)) .. \
             string.sub(v, {after})"
        );
        change(&server, &key, &flipped);
        assert_damage_is_noticed(&tier, &key, &parts, &format!("byte {at}"));
    }
    for to in [0, 1, 4095, 4096, length - 1] {
        change(&server, &key, &format!("string.sub(v, 1, {to})"));
        assert_damage_is_noticed(&tier, &key, &parts, &format!("{to} bytes"));
    }
    change(&server, &key, "v .. 'x'");
    assert_damage_is_noticed(&tier, &key, &parts, "a byte more");
    change(&server, &key, "string.rep('x', string.len(v))");
    assert_damage_is_noticed(&tier, &key, &parts, "no part at all");
}
