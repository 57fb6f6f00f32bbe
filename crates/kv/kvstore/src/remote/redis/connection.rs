//! Connections, to one server or to the nodes of a cluster.
//!
//! The client library implements the protocol and the routing in a cluster. Its own sockets are not
//! used, because they have no time-out for a whole call and no size limit for a reply.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConnection, Connect};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    Cmd, ConnectionAddr, ConnectionLike, ErrorKind, IntoConnectionInfo, Parser, Pipeline,
    RedisResult, Value, cmd,
};
use tokio_rustls::rustls::ClientConfig;

use super::address::{Address, Servers};
use super::limits::RedisLimits;
use super::socket::Socket;
use crate::format::HEADER_BYTES;
use crate::remote::slices::Filling;

/// Maximum bytes of a reply without a payload.
pub(super) const REPLY_BYTES: usize = 16 << 20;
/// Retries of a command in a cluster: redirections, and nodes that restart or lose their role.
const RETRIES: u32 = 3;

thread_local! {
    /// The current call of this thread. A thread-local, because the library itself opens the
    /// connections of a cluster and passes no context to the connection.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// Addresses, credentials and time-outs for connections.
pub(super) struct Access {
    pub(super) address: Address,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) limits: RedisLimits,
}

#[derive(Clone)]
struct Call {
    access: Arc<Access>,
    deadline: Instant,
    /// Maximum bytes of the call's replies.
    reply_bytes: usize,
}

/// Starts the time-out of a call on this thread.
pub(super) fn start_call(access: &Arc<Access>, reply_bytes: usize) {
    start(Arc::clone(access), access.limits.answer, reply_bytes);
}

fn start(access: Arc<Access>, time: Duration, reply_bytes: usize) {
    let deadline = Instant::now() + time;
    CALL.set(Some(Call {
        access,
        deadline,
        reply_bytes,
    }));
}

fn call() -> RedisResult<Call> {
    CALL.with_borrow(Clone::clone)
        .ok_or_else(|| (ErrorKind::Client, "no call was started on this thread").into())
}

/// A pooled connection.
pub(super) enum Link {
    Server(Connection),
    Cluster(Box<ClusterConnection<Connection>>),
}

impl Link {
    pub(super) fn open(access: &Arc<Access>) -> RedisResult<Self> {
        start_call(access, REPLY_BYTES);
        Ok(match &access.address.servers {
            Servers::One(server) => Self::Server(Connection::open(server, true)?),
            Servers::Sentinels(sentinels, service) => {
                let master = master(access, sentinels, service)?;
                Self::Server(Connection::open(&master, true)?)
            }
            Servers::Cluster(nodes) => {
                let client = ClusterClient::builder(nodes.iter().cloned())
                    .retries(RETRIES)
                    .min_retry_wait(10)
                    .max_retry_wait(500)
                    .build()?;
                Self::Cluster(Box::new(client.get_generic_connection()?))
            }
        })
    }

    pub(super) fn commands(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Self::Server(connection) => connection,
            Self::Cluster(connection) => &mut **connection,
        }
    }

    /// Sends commands for one key and returns their replies. If any reply is an error, returns the
    /// first error.
    pub(super) fn pipeline(&mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let packed = commands.get_packed_pipeline();
        let count = commands.len();
        let replies = match self.commands().req_packed_commands(&packed, 0, count) {
            // While a cluster moves a key's slot, its new node requires ASKING before each command.
            // Hence the commands are sent one by one.
            Err(error) if error.is_cluster_error() => commands
                .cmd_iter()
                .map(|command| self.commands().req_command(command))
                .collect(),
            replies => replies,
        };
        replies?.into_iter().map(Value::extract_error).collect()
    }

    /// Runs a command whose expected reply is a part of `bytes` bytes, header included, and
    /// receives the part into `filling`. Any other reply, or one from a cluster, is returned
    /// instead.
    pub(super) fn fetch(
        &mut self,
        command: &Cmd,
        bytes: usize,
        filling: &mut Filling<'_, '_>,
    ) -> RedisResult<Option<Value>> {
        let Self::Server(connection) = self else {
            return command.query(self.commands()).map(Some);
        };
        connection.send(&[&command.get_packed_command()])?;
        let fetched = connection.receive_part(bytes, filling);
        connection.broken = fetched.is_err();
        fetched?.map(Value::extract_error).transpose()
    }

    /// Sends the pieces of one command or of one transaction. In a transaction, `queued` replies
    /// precede the last one.
    pub(super) fn request(&mut self, pieces: [&[u8]; 3], queued: usize) -> RedisResult<()> {
        let replies = match self {
            Self::Server(connection) => connection.exchange(&pieces, queued, 1)?,
            Self::Cluster(cluster) => cluster.req_packed_commands(&pieces.concat(), queued, 1)?,
        };
        Value::Array(replies).extract_error().map(drop)
    }

    /// Routes that together reach all keys: one per master of a cluster, or `None` for a single
    /// server.
    pub(super) fn masters(&mut self) -> RedisResult<Vec<Option<RoutingInfo>>> {
        let Self::Cluster(cluster) = self else {
            return Ok(vec![None]);
        };
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let replies: HashMap<String, Value> =
            redis::from_redis_value(cluster.route_command(&cmd("PING"), all)?)?;
        let route = |name: String| {
            let (host, port) = name.rsplit_once(':')?;
            let (host, port) = (host.to_owned(), port.parse().ok()?);
            let node = SingleNodeRoutingInfo::ByAddress { host, port };
            Some(Some(RoutingInfo::SingleNode(node)))
        };
        Ok(replies.into_keys().filter_map(route).collect())
    }

    /// Runs a command on one of [`Self::masters`].
    pub(super) fn on(&mut self, route: Option<&RoutingInfo>, command: &Cmd) -> RedisResult<Value> {
        match (self, route) {
            (Self::Cluster(cluster), Some(route)) => cluster.route_command(command, route.clone()),
            (link, _) => command.query(link.commands()),
        }
    }
}

/// Queries the sentinels in turn for the address of the service's master.
fn master(
    access: &Arc<Access>,
    sentinels: &[ConnectionAddr],
    service: &str,
) -> RedisResult<ConnectionAddr> {
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let mut last = None;
    for sentinel in sentinels {
        start_call(access, REPLY_BYTES);
        let asked = Connection::open(sentinel, false).and_then(|mut connection| {
            let answer = question.query::<Option<(String, u16)>>(&mut connection);
            match answer {
                Err(error) if error.code() == Some("NOAUTH") => {
                    connection.authenticate(&access.address)?;
                    question.query(&mut connection)
                }
                answer => answer,
            }
        });
        match asked {
            Ok(Some((host, port))) => return Ok(ConnectionAddr::Tcp(host, port)),
            Ok(None) => {
                let detail = format!("the sentinel {sentinel} monitors no master {service:?}");
                last = Some((ErrorKind::Client, "wrong service", detail).into());
            }
            Err(error) => last = Some(error),
        }
    }
    start_call(access, REPLY_BYTES);
    Err(last.unwrap_or_else(|| (ErrorKind::Client, "no sentinel").into()))
}

/// A connection to one server.
pub(super) struct Connection {
    socket: Socket,
    parser: Parser,
    /// An error interrupted a request or reply, so the connection is unusable.
    broken: bool,
}

impl Connection {
    /// Connects, authenticates and selects the database, within the time-out of the thread's call.
    fn open(server: &ConnectionAddr, login: bool) -> RedisResult<Self> {
        let access = call()?.access;
        let address = &access.address;
        let mut connection = Self {
            socket: Socket::open(server, access.tls.as_ref(), &access.limits)?,
            parser: Parser::new(),
            broken: false,
        };
        if login {
            connection.authenticate(address)?;
            if address.database != 0 {
                cmd("SELECT").arg(address.database).exec(&mut connection)?;
            }
        }
        Ok(connection)
    }

    fn authenticate(&mut self, address: &Address) -> RedisResult<()> {
        match &address.password {
            Some(password) => cmd("AUTH").arg(&address.user).arg(password).exec(self),
            None => Ok(()),
        }
    }

    /// Sends commands and returns `count` replies. The `queued` replies before them must not be
    /// errors.
    fn exchange(
        &mut self,
        pieces: &[&[u8]],
        queued: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send(pieces)?;
        let mut replies = (0..queued + count)
            .map(|_| self.recv_response())
            .collect::<RedisResult<Vec<_>>>()?;
        let wanted = replies.split_off(queued);
        for reply in replies {
            reply.extract_error()?;
        }
        Ok(wanted)
    }

    /// Receives a part without a copy; the library would make two copies.
    fn receive_part(
        &mut self,
        bytes: usize,
        filling: &mut Filling<'_, '_>,
    ) -> RedisResult<Option<Value>> {
        let prefix = format!("${bytes}\r\n").into_bytes();
        let mut start = vec![0; prefix.len() + HEADER_BYTES];
        let mut count = 0;
        while count < prefix.len() && prefix.starts_with(&start[..count]) {
            count += self.socket.read_some(&mut start[count..])?;
        }
        let Some(first) = start[..count].strip_prefix(&prefix[..]) else {
            let reply = start[..count].chain(&mut self.socket);
            return self.parser.parse_value(reply).map(Some);
        };
        filling.copy(first);
        while !filling.room().is_empty() {
            let count = self.socket.read_some(filling.room())?;
            filling.advance(count);
        }
        let mut end = [0; 2];
        self.socket.read_exact(&mut end)?;
        match &end {
            b"\r\n" => Ok(None),
            _ => Err((ErrorKind::Parse, "the part has no end of a line").into()),
        }
    }

    fn send(&mut self, pieces: &[&[u8]]) -> RedisResult<()> {
        if self.broken {
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        let call = call()?;
        self.socket.limit(call.deadline, call.reply_bytes);
        let sent = pieces
            .iter()
            .try_for_each(|piece| self.socket.write_all(piece));
        let sent = sent.and_then(|()| self.socket.flush());
        self.broken = sent.is_err();
        Ok(sent?)
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, request: &[u8]) -> RedisResult<Value> {
        self.send(&[request])?;
        self.recv_response()
    }

    fn req_packed_commands(
        &mut self,
        request: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.exchange(&[request], offset, count)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.broken
    }
}

/// Connection to a node of a cluster.
impl Connect for Connection {
    fn connect<T: IntoConnectionInfo>(node: T, _timeout: Option<Duration>) -> RedisResult<Self> {
        // one node that hangs must not use up the time for the others
        let call = call()?;
        let time = call.access.limits.connect;
        start(call.access, time, call.reply_bytes);
        Self::open(node.into_connection_info()?.addr(), true)
    }

    fn send_packed_command(&mut self, request: &[u8]) -> RedisResult<()> {
        self.send(&[request])
    }

    /// No-op: the call's deadline applies.
    fn set_write_timeout(&self, _: Option<Duration>) -> RedisResult<()> {
        Ok(())
    }

    /// No-op: the call's deadline applies.
    fn set_read_timeout(&self, _: Option<Duration>) -> RedisResult<()> {
        Ok(())
    }

    fn recv_response(&mut self) -> RedisResult<Value> {
        let reply = self.parser.parse_value(&mut self.socket);
        self.broken = reply.is_err();
        reply
    }
}
