#![allow(clippy::unwrap_used)]
//! Publisher and follower over real sockets.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_kv_events::{
    BatchWriter, Endpoint, Event, Following, Publisher, PublisherSettings, Update, follow,
};
use tokio::task::JoinHandle;

/// Longer than anything takes.
const HANG: Duration = Duration::from_secs(300);

fn publisher(port: u16, replay: Option<u16>, buffer_steps: usize) -> Publisher {
    let endpoint = |port| Endpoint::parse(&format!("tcp://*:{port}")).unwrap();
    let settings = PublisherSettings {
        events: endpoint(port),
        replay: replay.map(endpoint),
        topic: "kv".to_owned(),
        buffer_steps,
        hwm: 1000,
    };
    let began = Instant::now();
    loop {
        // the port of one that has just ended may be taken for a moment
        match Publisher::start(settings.clone()) {
            Ok(publisher) => return publisher,
            Err(error) => assert!(began.elapsed() < HANG, "{error}"),
        }
    }
}

fn batch(hash: u64) -> Vec<u8> {
    let mut writer = BatchWriter::default();
    writer.stored(hash, None, &[hash as u32, 2], None);
    writer.finish(1.0).unwrap()
}

/// What a follower was told, in order: the first token of a stored block, or a word.
struct Seen {
    said: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn follow(ports: (u16, Option<u16>), topic: &str) -> Self {
        let endpoint = |port| Endpoint::parse(&format!("tcp://127.0.0.1:{port}")).unwrap();
        let from = Following {
            events: endpoint(ports.0),
            replay: ports.1.map(endpoint),
            topic: topic.to_owned(),
        };
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let own = said.clone();
        let task = tokio::spawn(async move {
            follow(&from, |update| {
                let word = match update {
                    Update::Connected => "connected".to_owned(),
                    Update::Reset => "reset".to_owned(),
                    Update::Gap => "gap".to_owned(),
                    Update::NoReplay(_) => "no replay".to_owned(),
                    Update::Lost(_) => "lost".to_owned(),
                    Update::Batch(number, batch) => match &batch.events[0] {
                        Event::Stored(stored) => format!("{number}:{}", stored.tokens[0]),
                        other => format!("{other:?}"),
                    },
                };
                own.lock().unwrap().push(word);
            })
            .await;
        });
        Self { said, task }
    }

    fn now(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Waits until `word` was said.
    async fn until(&self, word: &str) -> Vec<String> {
        let began = Instant::now();
        loop {
            let now = self.now();
            if now.iter().any(|one| one == word) {
                return now;
            }
            assert!(began.elapsed() < HANG, "{now:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_comes_late_gets_the_past_and_then_what_follows() {
    let source = publisher(0, Some(0), 100);
    (0..5).for_each(|hash| source.publish(batch(hash)));
    let seen = Seen::follow(source.ports(), "");
    seen.until("4:4").await;
    for hash in 5..200 {
        source.publish(batch(hash));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let all = seen.until("199:199").await;
    let batches: Vec<&String> = all.iter().filter(|one| one.contains(':')).collect();
    let wanted: Vec<String> = (0..200).map(|n| format!("{n}:{n}")).collect();
    assert_eq!(
        batches,
        wanted.iter().collect::<Vec<_>>(),
        "once each, in order"
    );
    assert_eq!(all.iter().filter(|one| *one == "reset").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replay_only_what_follows_is_known() {
    let source = publisher(0, None, 100);
    source.publish(batch(0));
    let seen = Seen::follow(source.ports(), "kv");
    let other = Seen::follow(source.ports(), "another topic");
    other.until("connected").await;
    seen.until("connected").await;
    let mut hash = 0;
    while !seen.now().iter().any(|one| one.contains(':')) {
        hash += 1;
        source.publish(batch(hash));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!seen.now().contains(&"0:0".to_owned()));
    assert!(
        other.now().iter().all(|one| !one.contains(':')),
        "its topic never came"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_past_that_is_too_short_voids_what_was_learned() {
    let source = publisher(0, Some(0), 10);
    (0..50).for_each(|hash| source.publish(batch(hash)));
    let seen = Seen::follow(source.ports(), "");
    let all = seen.until("49:49").await;
    assert_eq!(all[..3], ["reset", "connected", "40:40"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_begins_anew() {
    let source = publisher(0, Some(0), 100);
    let ports = source.ports();
    source.publish(batch(70));
    let seen = Seen::follow(ports, "");
    seen.until("0:70").await;
    drop(source);
    seen.until("lost").await;
    let source = publisher(ports.0, ports.1, 100);
    source.publish(batch(80));
    let all = seen.until("0:80").await;
    let lost = all.iter().position(|one| one == "lost").unwrap();
    assert!(all[lost..].contains(&"reset".to_owned()), "{all:?}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let source = publisher(0, None, 1);
    let settings = PublisherSettings {
        events: Endpoint::parse(&format!("tcp://*:{}", source.ports().0)).unwrap(),
        replay: None,
        topic: String::new(),
        buffer_steps: 1,
        hwm: 1,
    };
    let error = Publisher::start(settings).unwrap_err().to_string();
    assert!(error.contains(&source.ports().0.to_string()), "{error}");
}

/// A connection of a few lines: the handshake of a SUB, and what `sent` writes.
async fn spoken(port: u16, sent: &[u8]) -> tokio::net::TcpStream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .unwrap();
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.unwrap();
    stream
        .write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB")
        .await
        .unwrap();
    let mut theirs = [0; 64 + 27];
    stream.read_exact(&mut theirs).await.unwrap();
    // the peer may end the connection before all is written
    let _ = stream.write_all(sent).await;
    stream
}

/// Whether the publisher ends the connection.
async fn is_ended(stream: &mut tokio::net::TcpStream) -> bool {
    use tokio::io::AsyncReadExt;
    let mut bytes = [0; 64];
    let read = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut bytes));
    match read.await {
        Ok(Ok(bytes)) => bytes == 0,
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

/// What a subscriber asks for is kept for as long as it is connected, so there is a bound.
#[tokio::test]
async fn a_subscriber_that_asks_for_too_much_is_left() {
    let source = publisher(0, None, 1);
    let topic = |bytes: usize| {
        let head = ((bytes + 1) as u64).to_be_bytes();
        [&[2][..], &head[..], &[1][..], &vec![b'x'; bytes][..]].concat()
    };
    let port = source.ports().0;
    let mut modest = spoken(port, &topic(1000).repeat(8)).await;
    assert!(!is_ended(&mut modest).await);
    let mut large = spoken(port, &topic(5000)).await;
    assert!(is_ended(&mut large).await);
    let mut many = spoken(port, &topic(1000).repeat(30)).await;
    assert!(is_ended(&mut many).await);
    // announced, and never sent
    let mut announced = spoken(port, b"\x02\0\0\0\0\x03\xff\xff\xff").await;
    assert!(is_ended(&mut announced).await);
}

/// A publisher that asks again and again whether its follower is there, and never reads.
#[tokio::test]
async fn a_publisher_that_does_not_read_is_left() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let deaf = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await.unwrap();
        let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
        stream.write_all(ready).await.unwrap();
        let ping = [b"\x04\x17\x04PING\0\x0a".as_slice(), &[b'x'; 16]].concat();
        let pings = ping.repeat(1000);
        while stream.write_all(&pings).await.is_ok() {}
    });
    let seen = Seen::follow((port, None), "kv");
    seen.until("lost").await;
    deaf.await.unwrap();
}
