//! Parts in a Redis or Valkey server.
//!
//! A chunk is a hash with its parts as fields: so the server's eviction (`maxmemory-policy
//! allkeys-lru`) removes whole chunks, a time to live applies to the chunk, and a removal is a
//! single `UNLINK`. Clusters are not supported.

mod address;
mod connection;
mod limits;
mod socket;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_rustls::rustls::ClientConfig;

use self::address::{Address, Place};
use self::connection::{Connection, Reply, Trouble};
pub use self::limits::RedisLimits;
use super::names::Names;
use super::slices::Filling;
use super::tls;
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{StartError, Tier, TierError};

/// Maximum number of pooled idle connections.
const IDLE: usize = 16;

/// A tier in a Redis or Valkey server.
pub struct Redis {
    name: String,
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    limits: RedisLimits,
    /// Time to live of a chunk in seconds, renewed by each store to it.
    ttl: Option<String>,
    names: Names,
    idle: Mutex<Vec<Connection>>,
}

impl Redis {
    /// Connects to `url` and stores something small to see that it may.
    ///
    /// `redis://[[user]:password@]host[:port][/database]`; `rediss://` is the same with TLS, its
    /// authorities those of the platform or of `?ssl_ca_certs=FILE`;
    /// `unix://[[user]:password@]/path[?db=N]`. With `ttl` (whole seconds) a chunk disappears that
    /// long after something was stored to it, and no sooner by itself without.
    ///
    /// # Errors
    /// The URL is wrong, or the server is unreachable, refuses the login or the write: which, and
    /// the remedy.
    pub fn open(
        url: &str,
        ttl: Option<Duration>,
        limits: RedisLimits,
        identity: &StoreIdentity,
    ) -> Result<Self, StartError> {
        let address = Address::parse(url)
            .map_err(|error| StartError(format!("KV tier: not the URL of a Redis: {error}")))?;
        let name = address.to_string();
        let start = |error: String| StartError(format!("KV tier {name}: {error}"));
        let tls = match &address.place {
            Place::Tls { authorities, .. } => Some(Arc::new(
                tls::client(authorities.as_deref()).map_err(start)?,
            )),
            _ => None,
        };
        let tier = Self {
            name: name.clone(),
            address,
            tls,
            limits,
            ttl: ttl.map(|ttl| ttl.as_secs().max(1).to_string()),
            names: Names::new(identity),
            idle: Mutex::default(),
        };
        let trial = tier.names.trial();
        let commands: [&[&[u8]]; 2] = [
            &[b"HSET", trial.as_bytes(), b"part", b"x"],
            &[b"UNLINK", trial.as_bytes()],
        ];
        tier.with(|connection| connection.ask(&commands))
            .map_err(|error| StartError(format!("KV tier {error}")))?;
        Ok(tier)
    }

    /// Calls with a pooled connection. If the server has closed it meanwhile, retries with a new
    /// one.
    fn with<T>(
        &self,
        mut call: impl FnMut(&mut Connection) -> Result<T, Trouble>,
    ) -> Result<T, TierError> {
        let idle = self.idle().pop();
        if let Some(mut connection) = idle {
            match call(&mut connection) {
                // the server has likely closed the other idle connections as well
                Err(Trouble::Io(error)) if closed(&error) => self.idle().clear(),
                done => return self.done(connection, done),
            }
        }
        let opened = Connection::open(&self.address, self.tls.as_ref(), self.limits);
        let mut connection = opened.map_err(|trouble| self.failed(trouble))?;
        let done = call(&mut connection);
        self.done(connection, done)
    }

    /// Returns the connection to the pool if it is still usable.
    fn done<T>(&self, connection: Connection, done: Result<T, Trouble>) -> Result<T, TierError> {
        if matches!(done, Ok(_) | Err(Trouble::Said(_))) {
            let mut idle = self.idle();
            if idle.len() < IDLE {
                idle.push(connection);
            }
        }
        done.map_err(|trouble| self.failed(trouble))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, trouble: Trouble) -> TierError {
        let name = &self.name;
        match trouble {
            Trouble::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                let (connect, answer) = (self.limits.connect, self.limits.answer);
                TierError::Failed(format!(
                    "{name} did not answer within {connect:?} (to connect) and {answer:?}"
                ))
            }
            Trouble::Io(error) => TierError::Failed(format!("{name}: {error}")),
            Trouble::Damaged(what) => TierError::Damaged(format!("{name}: {what}")),
            Trouble::Said(said) if full(&said) => TierError::Full(format!(
                "{name}: {said} Give it more maxmemory, or let it evict: maxmemory-policy \
                 allkeys-lru"
            )),
            Trouble::Said(said) => TierError::Failed(format!("{name}: {said}{}", remedy(&said))),
        }
    }

    /// Whether the part exists; if so, renews the time to live of its chunk.
    fn touch(&self, chunk: &str, part: &str) -> Result<bool, TierError> {
        let (chunk, part) = (chunk.as_bytes(), part.as_bytes());
        let exists: &[&[u8]] = &[b"HEXISTS", chunk, part];
        let replies = match &self.ttl {
            None => self.with(|connection| connection.ask(&[exists]))?,
            Some(ttl) => {
                let expire: &[&[u8]] = &[b"EXPIRE", chunk, ttl.as_bytes()];
                self.with(|connection| connection.ask(&[exists, expire]))?
            }
        };
        Ok(replies.first() == Some(&Reply::Number(1)))
    }

    /// Deletes a damaged part, so that it is not found again.
    fn drop_damaged(&self, chunk: &str, part: &str) {
        let command: &[&[u8]] = &[b"HDEL", chunk.as_bytes(), part.as_bytes()];
        // best effort: if it fails, the part is found damaged and deleted at the next load
        let _ = self.with(|connection| connection.ask(&[command]));
    }
}

impl Tier for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let (chunk, part) = (self.names.chunk(&key.digest), key.name_in_chunk());
        let bytes = into.iter().map(|slice| slice.len()).sum();
        let words: &[&[u8]] = &[b"HGET", chunk.as_bytes(), part.as_bytes()];
        let found = self.with(|connection| {
            let mut filling = Filling::new(into);
            let found = connection.fetch(words, bytes, &mut filling)?;
            let checked = if found {
                filling.verify(&self.names, key)
            } else {
                Ok(())
            };
            checked.map(|()| found).map_err(Trouble::Damaged)
        });
        match found {
            Ok(true) => Ok(()),
            Ok(false) => Err(TierError::Missing),
            Err(error) => {
                if matches!(error, TierError::Damaged(_)) {
                    self.drop_damaged(&chunk, &part);
                }
                Err(error)
            }
        }
    }

    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError> {
        let (chunk, part) = (self.names.chunk(&key.digest), key.name_in_chunk());
        if self.touch(&chunk, &part)? {
            return Ok(());
        }
        let header = self.names.header(key, from, parent);
        let words: &[&[u8]] = &[b"HSETNX", chunk.as_bytes(), part.as_bytes()];
        match &self.ttl {
            None => self
                .with(|connection| connection.ask_with_payload(&[], words, (&header, from), &[]))?,
            // atomic: a crash in between must not leave a chunk without expiry
            Some(ttl) => self.with(|connection| {
                let after: [&[&[u8]]; 2] =
                    [&[b"EXPIRE", chunk.as_bytes(), ttl.as_bytes()], &[b"EXEC"]];
                connection.ask_with_payload(&[&[b"MULTI"]], words, (&header, from), &after)
            })?,
        };
        Ok(())
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<(String, String)> = keys
            .iter()
            .map(|key| (self.names.chunk(&key.digest), key.name_in_chunk()))
            .collect();
        let commands: Vec<[&[u8]; 3]> = names
            .iter()
            .map(|(chunk, part)| [&b"HEXISTS"[..], chunk.as_bytes(), part.as_bytes()])
            .collect();
        let commands: Vec<&[&[u8]]> = commands.iter().map(|words| &words[..]).collect();
        let replies = self.with(|connection| connection.ask(&commands))?;
        Ok(replies
            .iter()
            .map(|reply| *reply == Reply::Number(1))
            .collect())
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        let chunk = self.names.chunk(digest);
        let command: &[&[u8]] = &[b"UNLINK", chunk.as_bytes()];
        self.with(|connection| connection.ask(&[command])).map(drop)
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let pattern = self.names.pattern(group);
        self.with(|connection| {
            let mut cursor = "0".to_owned();
            loop {
                let words: &[&[u8]] = &[
                    b"SCAN",
                    cursor.as_bytes(),
                    b"MATCH",
                    pattern.as_bytes(),
                    b"COUNT",
                    b"1000",
                ];
                let replies = connection.ask(&[words])?;
                let Some((next, keys)) = scanned(&replies) else {
                    return Err(Trouble::Said("SCAN was not answered with keys".into()));
                };
                if !keys.is_empty() {
                    let mut words: Vec<&[u8]> = vec![b"UNLINK"];
                    words.extend(keys.iter().map(|key| key.as_bytes()));
                    connection.ask(&[&words])?;
                }
                if next == "0" {
                    return Ok(());
                }
                cursor = next.to_owned();
            }
        })
    }
}

/// The next cursor and the keys of a SCAN.
fn scanned(replies: &[Reply]) -> Option<(&str, Vec<&str>)> {
    let [Reply::Many(parts)] = replies else {
        return None;
    };
    let [Reply::Text(cursor), Reply::Many(keys)] = parts.as_slice() else {
        return None;
    };
    let keys = keys.iter().map(|key| match key {
        Reply::Text(key) => Some(key.as_str()),
        _ => None,
    });
    Some((cursor, keys.collect::<Option<_>>()?))
}

/// Whether the server had closed the connection, so that the call may be retried.
fn closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

fn full(said: &str) -> bool {
    said.starts_with("OOM ") || (said.starts_with("EXECABORT") && said.contains("OOM"))
}

fn remedy(said: &str) -> &'static str {
    match said.split(' ').next() {
        Some("NOAUTH") => {
            ". It wants a password: redis://:PASSWORD@host or redis://USER:PASSWORD@host"
        }
        Some("WRONGPASS") => {
            ". User or password in the URL are wrong; what is special in a URL must be \
             percent-encoded"
        }
        Some("NOPERM") => {
            ". The user needs +hget +hset +hsetnx +hexists +hdel +unlink +expire +multi +exec \
             +select on ~penstock-kv-*"
        }
        Some("MOVED") => {
            ". It is part of a cluster, which Penstock does not speak to; give it a server or a \
             proxy"
        }
        _ => "",
    }
}
