//! A cluster of Redis servers, and a master that sentinels watch.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penstock_kvstore::{PartKey, Redis, RedisLimits, Tier};

use crate::model::assert_like_a_dictionary;
use crate::parts::{Scratch, free_port, identity, key, load, payload, store, until};
use crate::redis::{chunk_name, open};
use crate::redis_faults::BRIEF;
use crate::redis_server::Server;

/// Slots of a cluster, over all masters.
const SLOTS: usize = 16384;
const CHUNKS: u8 = 40;

/// Masters that share the slots, and `replicas` of the first one.
struct Cluster(Vec<Server>);

impl Cluster {
    fn start(test: &str, masters: usize, replicas: usize) -> Option<Self> {
        let mut servers = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..masters + replicas {
            let bus = free_port().to_string();
            let words = ["--cluster-enabled", "yes", "--cluster-port", &bus];
            let more = ["--cluster-node-timeout", "2000"];
            servers.push(Server::start(test, &[&words[..], &more].concat())?);
            buses.push(bus);
        }
        for (at, server) in servers.iter().enumerate() {
            if at < masters {
                let from = (SLOTS * at / masters).to_string();
                let to = (SLOTS * (at + 1) / masters - 1).to_string();
                server
                    .cli(&["CLUSTER", "ADDSLOTSRANGE", &from, &to])
                    .unwrap();
            }
            if at > 0 {
                let port = servers[0].port.to_string();
                server
                    .cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &buses[0]])
                    .unwrap();
            }
        }
        let cluster = Self(servers);
        cluster.agree(masters + replicas);
        for replica in &cluster.0[masters..] {
            let master = cluster.id(0);
            until(|| replica.cli(&["CLUSTER", "REPLICATE", &master]));
        }
        Some(cluster)
    }

    /// Waits until all nodes know `count` nodes and all slots.
    fn agree(&self, count: usize) {
        for server in &self.0 {
            until(|| {
                let info = server.cli(&["CLUSTER", "INFO"])?;
                let known = format!("cluster_known_nodes:{count}\r\n");
                match info.contains("cluster_state:ok") && info.contains(&known) {
                    true => Ok(()),
                    false => Err(info),
                }
            });
        }
    }

    fn id(&self, at: usize) -> String {
        self.0[at].cli(&["CLUSTER", "MYID"]).unwrap()
    }

    fn url(&self) -> String {
        let mut url = "redis+cluster://".to_owned();
        for (at, server) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(url, "{comma}127.0.0.1:{}", server.port).unwrap();
        }
        url
    }
}

#[test]
fn a_cluster_does_what_a_dictionary_does() {
    let Some(cluster) = Cluster::start("redis_cluster::dictionary", 3, 0) else {
        return;
    };
    for ttl in [None, Some(Duration::from_secs(1000))] {
        assert_like_a_dictionary(16, |identity| {
            Redis::open(&cluster.url(), ttl, RedisLimits::default(), identity).unwrap()
        });
    }
}

#[test]
fn chunks_are_on_all_masters_and_cleared_there() {
    let Some(cluster) = Cluster::start("redis_cluster::cleared", 3, 0) else {
        return;
    };
    let one_node = format!("redis+cluster://127.0.0.1:{}", cluster.0[2].port);
    let tier = open(&one_node);
    let keys: Vec<PartKey> = (0..CHUNKS).map(|chunk| key(chunk, 0)).collect();
    for (chunk, key) in keys.iter().enumerate() {
        store(&tier, key, &payload(chunk as u64, 3, 10_000)).unwrap();
    }
    for (chunk, key) in keys.iter().enumerate() {
        let parts = payload(chunk as u64, 3, 10_000);
        assert_eq!(load(&tier, key, &parts).unwrap(), parts);
    }
    assert_eq!(tier.probe(&keys).unwrap(), [true; CHUNKS as usize]);
    let sizes = || {
        cluster
            .0
            .iter()
            .map(|server| server.cli(&["DBSIZE"]).unwrap())
    };
    assert!(sizes().all(|size| size != "0"));
    tier.clear(None).unwrap();
    assert!(sizes().all(|size| size == "0"));
    assert_eq!(tier.probe(&keys).unwrap(), [false; CHUNKS as usize]);
}

/// While a slot moves its old node answers ASK, then MOVED.
#[test]
fn a_slot_moves_to_another_node() {
    let Some(cluster) = Cluster::start("redis_cluster::a_slot_moves", 2, 0) else {
        return;
    };
    let tier = open(&cluster.url());
    let (key, parts, name) = (key(1, 0), payload(1, 3, 100_000), chunk_name(1));
    store(&tier, &key, &parts).unwrap();
    let slot = cluster.0[0].cli(&["CLUSTER", "KEYSLOT", &name]).unwrap();
    let old = usize::from(slot.parse::<usize>().unwrap() >= SLOTS / 2);
    let (from, to) = (&cluster.0[old], &cluster.0[1 - old]);
    let (from_id, to_id) = (cluster.id(old), cluster.id(1 - old));
    let set = |server: &Server, words: &[&str]| {
        let words = [&["CLUSTER", "SETSLOT", &slot], words].concat();
        server.cli(&words).unwrap();
    };
    set(to, &["IMPORTING", &from_id]);
    set(from, &["MIGRATING", &to_id]);
    let port = to.port.to_string();
    from.cli(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"])
        .unwrap();
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts, "ASK");
    let other = PartKey { head: 1, ..key };
    assert_eq!(tier.probe(&[key, other]).unwrap(), [true, false], "ASK");
    set(to, &["NODE", &to_id]);
    set(from, &["NODE", &to_id]);
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts, "MOVED");
    store(&tier, &other, &parts).unwrap();
    assert_eq!(to.cli(&["HLEN", &name]).unwrap(), "2");
    let error = open_error(&from.url());
    assert!(error.contains("redis+cluster://"), "{error}");
}

/// A write to one server of a cluster fails for most names.
fn open_error(url: &str) -> String {
    (0..100)
        .find_map(|name: u32| {
            let identity = identity(&name.to_string());
            let opened = Redis::open(url, None, RedisLimits::default(), &identity);
            opened.err().map(|error| error.to_string())
        })
        .unwrap()
}

/// Also for the first host of the URL, whether it refuses connections or hangs.
#[test]
fn a_replica_takes_over() {
    for hangs in [false, true] {
        let Some(mut cluster) = Cluster::start("redis_cluster::takes_over", 2, 1) else {
            return;
        };
        let tier = Redis::open(&cluster.url(), None, BRIEF, &identity("a")).unwrap();
        let parts = payload(1, 3, 10_000);
        let keys: Vec<PartKey> = (0..CHUNKS).map(|chunk| key(chunk, 0)).collect();
        for key in &keys {
            until(|| store(&tier, key, &parts));
        }
        // no replica serves a slot before it has its master's data
        let stored = cluster.0[0].cli(&["DBSIZE"]).unwrap();
        until(|| match cluster.0[2].cli(&["DBSIZE"])? {
            size if size == stored => Ok(()),
            size => Err(size),
        });
        match hangs {
            true => cluster.0[0].signal("STOP"),
            false => cluster.0[0].kill(),
        }
        for key in &keys[..4] {
            let start = Instant::now();
            let _ = load(&tier, key, &parts);
            assert!(start.elapsed() < Duration::from_secs(60), "{hangs}");
        }
        until(|| cluster.0[2].cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]));
        for key in &keys {
            until(|| load(&tier, key, &parts).map(|found| assert_eq!(found, parts)));
        }
        until(|| {
            tier.probe(&keys)
                .map(|found| assert_eq!(found, [true; CHUNKS as usize]))
        });
    }
}

/// A sentinel on a free port; killed when dropped.
struct Sentinel {
    process: Child,
    port: u16,
    _scratch: Scratch,
}

impl Sentinel {
    fn start(master: &Server) -> Self {
        let (scratch, port) = (Scratch::new(), free_port());
        let file = scratch.0.join("sentinel.conf");
        let directory = scratch.0.display();
        let watched = master.port;
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {directory}\n\
             sentinel monitor cache 127.0.0.1 {watched} 1\n\
             sentinel failover-timeout cache 2000\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let sentinel = Self {
            process,
            port,
            _scratch: scratch,
        };
        until(|| sentinel.ask(&["PING"]));
        sentinel
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(words);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match output.status.success() && !text.starts_with("NOGOODSLAVE") {
            true => Ok(text),
            false => Err(text),
        }
    }

    fn url(&self, service: &str) -> String {
        let away = free_port();
        format!(
            "redis+sentinel://127.0.0.1:{away},127.0.0.1:{}/{service}/2",
            self.port
        )
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sentinels_name_the_master_before_and_after_a_failover() {
    let test = "redis_cluster::sentinels";
    let Some(master) = Server::start(test, &[]) else {
        return;
    };
    let port = master.port.to_string();
    let replica = Server::start(test, &["--replicaof", "127.0.0.1", &port]).unwrap();
    let sentinel = Sentinel::start(&master);
    let tier = open(&sentinel.url("cache"));
    let (key, parts) = (key(1, 0), payload(1, 3, 100_000));
    store(&tier, &key, &parts).unwrap();
    assert_eq!(master.cli(&["-n", "2", "DBSIZE"]).unwrap(), "1");
    until(|| match replica.cli(&["-n", "2", "DBSIZE"])? {
        size if size == "1" => Ok(()),
        size => Err(size),
    });
    until(|| sentinel.ask(&["SENTINEL", "FAILOVER", "cache"]));
    until(|| match replica.cli(&["ROLE"])? {
        role if role.starts_with("master") => Ok(()),
        role => Err(role),
    });
    until(|| match master.cli(&["ROLE"])? {
        role if role.starts_with("slave") => Ok(()),
        role => Err(role),
    });
    let later = PartKey { head: 1, ..key };
    until(|| store(&tier, &later, &parts));
    assert_eq!(load(&tier, &later, &parts).unwrap(), parts);
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
    assert_eq!(
        replica.cli(&["-n", "2", "HLEN", &chunk_name(1)]).unwrap(),
        "2"
    );
    let limits = RedisLimits::default();
    let wrong = Redis::open(&sentinel.url("other"), None, limits, &identity("a"));
    let error = wrong.err().unwrap().to_string();
    assert!(error.contains("\"other\""), "{error}");
}
