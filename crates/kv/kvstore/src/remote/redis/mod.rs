//! Parts in a Redis or Valkey server, in a cluster, or in the master of a Sentinel service.
//!
//! A chunk is a hash with its parts as fields. The server's eviction (`maxmemory-policy
//! allkeys-lru`) therefore removes whole chunks, a time to live applies to the chunk, a removal is
//! a single `UNLINK`, and all parts of a chunk are on one node of a cluster.

mod address;
mod connection;
mod limits;
mod socket;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value, cmd, pipe};

use self::address::Address;
use self::connection::{Access, Link, REPLY_BYTES, start_call};
pub use self::limits::RedisLimits;
use super::names::Names;
use super::slices::Filling;
use super::tls;
use crate::format::{HEADER_BYTES, HeaderPage};
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{StartError, Tier, TierError};

/// Maximum number of pooled idle connections.
const IDLE: usize = 16;
/// Keys for each step of a listing.
const LISTED: usize = 1000;

/// A tier in Redis or Valkey.
pub struct Redis {
    name: String,
    access: Arc<Access>,
    /// Time to live of a chunk in seconds, renewed by each store to it.
    ttl: Option<u64>,
    names: Names,
    idle: Mutex<Vec<Link>>,
}

/// Why a call failed.
enum Trouble {
    Redis(RedisError),
    /// The value is not the requested part.
    Damaged(String),
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl Redis {
    /// Connects to `url` and stores a small test value, to verify the permissions.
    ///
    /// URLs: `redis://[[user]:password@]host[:port][/database]`; `rediss://`, the same with TLS and
    /// the certificate authorities of the platform or of `?ssl_ca_certs=FILE`;
    /// `unix://[[user]:password@]/path[?db=N]`; `redis+cluster://host[:port][,host...]`;
    /// `redis+sentinel://host[:port][,host...]/service[/database]`. With `ttl` (whole seconds) a
    /// chunk expires that long after the last store to it; without, it does not expire.
    ///
    /// # Errors
    /// The URL is invalid, the server is unreachable, or it rejects the login or the write. The
    /// error text names the cause and the remedy.
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
        let tls = match address.tls {
            true => Some(tls::client(address.authorities.as_deref()).map_err(start)?),
            false => None,
        };
        let tier = Self {
            access: Arc::new(Access {
                address,
                tls: tls.map(Arc::new),
                limits,
            }),
            name,
            ttl: ttl.map(|ttl| ttl.as_secs().max(1)),
            names: Names::new(identity),
            idle: Mutex::default(),
        };
        let trial = tier.names.trial();
        let mut commands = pipe();
        commands.cmd("HSET").arg(&trial).arg("part").arg("x");
        commands.cmd("UNLINK").arg(&trial);
        tier.with(REPLY_BYTES, |link| Ok(link.pipeline(&commands)?))
            .map_err(|error| StartError(format!("KV tier {error}")))?;
        Ok(tier)
    }

    /// Runs `call` with a pooled connection. If the server has closed the connection, or is no
    /// longer a master, retries with a new connection.
    fn with<T>(
        &self,
        reply_bytes: usize,
        mut call: impl FnMut(&mut Link) -> Result<T, Trouble>,
    ) -> Result<T, TierError> {
        let idle = self.idle().pop();
        if let Some(mut link) = idle {
            start_call(&self.access, reply_bytes);
            match call(&mut link) {
                // the other idle connections are probably stale too
                Err(Trouble::Redis(error)) if stale(&error) => self.idle().clear(),
                done => return self.done(link, done),
            }
        }
        let mut link = Link::open(&self.access).map_err(|error| self.failed(error.into()))?;
        start_call(&self.access, reply_bytes);
        let done = call(&mut link);
        self.done(link, done)
    }

    /// Returns the connection to the pool if it is still usable.
    fn done<T>(&self, link: Link, done: Result<T, Trouble>) -> Result<T, TierError> {
        let usable = match &done {
            Err(Trouble::Redis(error)) => error.code().is_some() && !stale(error),
            _ => true,
        };
        if usable {
            let mut idle = self.idle();
            if idle.len() < IDLE {
                idle.push(link);
            }
        }
        done.map_err(|trouble| self.failed(trouble))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, trouble: Trouble) -> TierError {
        let name = &self.name;
        let error = match trouble {
            Trouble::Redis(error) => error,
            Trouble::Damaged(what) => return TierError::Damaged(format!("{name}: {what}")),
        };
        if error.is_timeout() {
            let RedisLimits { connect, answer } = self.access.limits;
            return TierError::Failed(format!(
                "{name} did not answer within {connect:?} (to connect) and {answer:?}"
            ));
        }
        let said = match error.code() {
            Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
            None => error.to_string(),
        };
        if said.starts_with("OOM ") {
            return TierError::Full(format!(
                "{name}: {said} Give it more maxmemory, or let it evict: maxmemory-policy \
                 allkeys-lru"
            ));
        }
        TierError::Failed(format!("{name}: {said}{}", remedy(&said)))
    }

    /// Whether the part exists; if so, renews the time to live of its chunk.
    fn touch(&self, chunk: &str, part: &str) -> Result<bool, TierError> {
        let mut commands = pipe();
        commands.cmd("HEXISTS").arg(chunk).arg(part);
        if let Some(ttl) = self.ttl {
            commands.cmd("EXPIRE").arg(chunk).arg(ttl);
        }
        let replies = self.with(REPLY_BYTES, |link| Ok(link.pipeline(&commands)?))?;
        Ok(replies.first() == Some(&Value::Int(1)))
    }

    /// Deletes a damaged part, so that it is not found again.
    fn drop_damaged(&self, chunk: &str, part: &str) {
        // best effort: if it fails, the part is found damaged and deleted at the next load
        let _ = self.run(cmd("HDEL").arg(chunk).arg(part));
    }

    fn run(&self, command: &Cmd) -> Result<(), TierError> {
        self.with(REPLY_BYTES, |link| Ok(command.exec(link.commands())?))
    }
}

impl Tier for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let (chunk, part) = (self.names.chunk(&key.digest), key.name_in_chunk());
        let wanted = HEADER_BYTES + into.iter().map(|slice| slice.len()).sum::<usize>();
        let mut command = cmd("HGET");
        command.arg(&chunk).arg(&part);
        // larger than a part, so that a longer value is reported as damaged
        let found = self.with(wanted + REPLY_BYTES, |link| {
            let mut filling = Filling::new(into);
            match link.fetch(&command, wanted, &mut filling)? {
                None => {}
                Some(Value::Nil) => return Ok(false),
                Some(Value::BulkString(value)) if value.len() == wanted => {
                    filling.copy(&value);
                }
                Some(Value::BulkString(value)) => {
                    let bytes = value.len();
                    let what = format!("{bytes} bytes instead of {wanted}");
                    return Err(Trouble::Damaged(what));
                }
                Some(other) => return Err(unexpected(&other).into()),
            }
            let checked = filling.verify(&self.names, key);
            checked.map(|()| true).map_err(Trouble::Damaged)
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
        let (mut head, mut tail, mut queued) = (Vec::new(), b"\r\n".to_vec(), 0);
        if let Some(ttl) = self.ttl {
            // atomic: a crash in between must not leave a chunk without expiry
            head = cmd("MULTI").get_packed_command();
            let expire = cmd("EXPIRE").arg(&chunk).arg(ttl).get_packed_command();
            tail = [tail, expire, cmd("EXEC").get_packed_command()].concat();
            queued = 3;
        }
        head.extend(set_if_absent(&chunk, &part, &header, from.len()));
        let request = [&head, from, &tail];
        self.with(REPLY_BYTES, |link| Ok(link.request(request, queued)?))
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.with(REPLY_BYTES, |link| {
            let mut found = Vec::with_capacity(keys.len());
            let together = matches!(link, Link::Server(_));
            for keys in keys.chunk_by(|a, b| together || a.digest == b.digest) {
                let mut commands = Pipeline::with_capacity(keys.len());
                for key in keys {
                    let (chunk, part) = (self.names.chunk(&key.digest), key.name_in_chunk());
                    commands.cmd("HEXISTS").arg(chunk).arg(part);
                }
                let replies = link.pipeline(&commands)?;
                found.extend(replies.iter().map(|reply| *reply == Value::Int(1)));
            }
            Ok(found)
        })
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        self.run(cmd("UNLINK").arg(self.names.chunk(digest)))
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let pattern = self.names.pattern(group);
        self.with(REPLY_BYTES, |link| {
            for node in link.masters()? {
                let mut cursor = 0_u64;
                loop {
                    start_call(&self.access, REPLY_BYTES);
                    let mut list = cmd("SCAN");
                    list.arg(cursor).arg("MATCH").arg(&pattern);
                    list.arg("COUNT").arg(LISTED);
                    let (next, keys): (u64, Vec<String>) =
                        redis::from_redis_value(link.on(node.as_ref(), &list)?)
                            .map_err(RedisError::from)?;
                    // keys of a cluster are in different slots
                    let most = if node.is_none() { LISTED } else { 1 };
                    for keys in keys.chunks(most) {
                        start_call(&self.access, REPLY_BYTES);
                        cmd("UNLINK").arg(keys).exec(link.commands())?;
                    }
                    if next == 0 {
                        break;
                    }
                    cursor = next;
                }
            }
            Ok(())
        })
    }
}

/// The command that stores a part, without its payload: the library would copy the payload twice.
fn set_if_absent(chunk: &str, part: &str, header: &HeaderPage, payload_bytes: usize) -> Vec<u8> {
    let (chunk_bytes, part_bytes) = (chunk.len(), part.len());
    let bytes = header.len() + payload_bytes;
    let head = format!(
        "*4\r\n$6\r\nHSETNX\r\n${chunk_bytes}\r\n{chunk}\r\n${part_bytes}\r\n{part}\r\n${bytes}\r\n"
    );
    [head.as_bytes(), header].concat()
}

fn unexpected(reply: &Value) -> RedisError {
    let reply: String = format!("{reply:?}").chars().take(60).collect();
    (
        ErrorKind::UnexpectedReturnType,
        "no reply of a Redis to this",
        reply,
    )
        .into()
}

/// Whether another connection may succeed: the server closed this one, or has become a replica.
fn stale(error: &RedisError) -> bool {
    error.is_connection_dropped() || error.code() == Some("READONLY")
}

fn remedy(said: &str) -> &'static str {
    let has = |code| said.contains(code);
    if has("NOAUTH") {
        ". It wants a password: redis://:PASSWORD@host or redis://USER:PASSWORD@host"
    } else if has("WRONGPASS") {
        ". User or password in the URL are wrong; what is special in a URL must be percent-encoded"
    } else if has("NOPERM") {
        ". The user needs +hget +hset +hsetnx +hexists +hdel +unlink +expire +multi +exec +select \
         on ~penstock-kv-*, and in a cluster +ping +asking +cluster|slots"
    } else if has("MOVED") || has("CROSSSLOT") {
        ". It is part of a cluster: redis+cluster://host:port"
    } else {
        ""
    }
}
