//! Redis address and credentials, parsed from the URL of `--kv-tier`.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use redis::ConnectionAddr;
use url::Url;

/// A parsed Redis URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) servers: Servers,
    /// TLS over TCP.
    pub(super) tls: bool,
    /// PEM file with CA certificates; `None`: the platform's.
    pub(super) authorities: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Number of the database.
    pub(super) database: u32,
}

/// The servers, and how to find the server that has a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Servers {
    One(ConnectionAddr),
    /// Some nodes of a cluster, from which the other nodes are discovered.
    Cluster(Vec<ConnectionAddr>),
    /// Sentinels, from which the master of a service is discovered.
    Sentinels(Vec<ConnectionAddr>, String),
}

/// Omits secrets, for logs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, database) = (if self.tls { "rediss" } else { "redis" }, self.database);
        match &self.servers {
            Servers::One(ConnectionAddr::Unix(path)) => {
                write!(f, "unix://{}?db={database}", path.display())
            }
            Servers::One(server) => write!(f, "{scheme}://{}/{database}", shown(server)),
            Servers::Cluster(nodes) => write!(f, "{scheme}+cluster://{}", list(nodes)),
            Servers::Sentinels(nodes, service) => {
                let nodes = list(nodes);
                write!(f, "{scheme}+sentinel://{nodes}/{service}/{database}")
            }
        }
    }
}

fn list(servers: &[ConnectionAddr]) -> String {
    servers.iter().map(shown).collect::<Vec<_>>().join(",")
}

fn shown(server: &ConnectionAddr) -> String {
    match server {
        ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        _ => server.to_string(),
    }
}

impl Address {
    /// Parses `redis://[user][:password@]host[:port][/database]`, `rediss://` (the same with TLS
    /// and `?ssl_ca_certs=FILE`), `unix://[user:password@]/path[?db=N]`, and Valkey's aliases. User
    /// and password may be percent-encoded. `redis+cluster://` takes several hosts, separated by
    /// commas. `redis+sentinel://host[,host]/service[/database]` takes the hosts of sentinels.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (text, more) = split_hosts(text);
        // A Unix socket has no host, but URL syntax requires one after a password.
        let url = Url::parse(&text.replacen("@/", "@localhost/", 1));
        let url = url.map_err(|error| error.to_string())?;
        let (mut database, mut authorities) = (None, None);
        for (name, value) in url.query_pairs() {
            match &*name {
                "db" => database = Some(value.into_owned()),
                "ssl_ca_certs" => authorities = Some(PathBuf::from(value.into_owned())),
                _ => {
                    return Err(format!(
                        "{name:?} is none of the parameters db, ssl_ca_certs"
                    ));
                }
            }
        }
        let (base, kind) = url.scheme().split_once('+').unwrap_or((url.scheme(), ""));
        let tls = matches!(base, "rediss" | "valkeys");
        let mut path = url.path().trim_start_matches('/');
        let hosts = || hosts(&url, &more, if kind == "sentinel" { 26379 } else { 6379 });
        let servers = match (base, kind) {
            ("unix", "") | ("redis" | "valkey", "unix") => {
                path = "";
                Servers::One(socket(&url)?)
            }
            ("redis" | "rediss" | "valkey" | "valkeys", "cluster") => Servers::Cluster(hosts()?),
            ("redis" | "rediss" | "valkey" | "valkeys", "sentinel") => {
                let service;
                (service, path) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err("no name of a service: redis+sentinel://host/SERVICE".into());
                }
                Servers::Sentinels(hosts()?, decoded(service)?)
            }
            ("redis" | "rediss" | "valkey" | "valkeys", "") if more.is_empty() => {
                Servers::One(hosts()?.remove(0))
            }
            ("redis" | "rediss" | "valkey" | "valkeys", "") => {
                return Err("several hosts go with redis+cluster:// or redis+sentinel://".into());
            }
            _ => {
                let scheme = url.scheme();
                return Err(format!(
                    "scheme {scheme:?} is none of redis, rediss, unix, valkey, valkeys, \
                     redis+cluster, redis+sentinel"
                ));
            }
        };
        if authorities.is_some() && !tls {
            return Err("ssl_ca_certs goes with rediss://".into());
        }
        if !path.is_empty() {
            database = Some(path.to_owned());
        }
        let number = database.as_deref().unwrap_or("0");
        let database = number
            .parse()
            .map_err(|_| format!("{number:?} is no number of a database"))?;
        if database != 0 && kind == "cluster" {
            return Err(format!("a cluster has only the database 0, not {database}"));
        }
        let (user, password) = credentials(&url)?;
        Ok(Self {
            servers,
            tls,
            authorities,
            user,
            password,
            database,
        })
    }
}

/// Splits a URL into the URL with only its first host, and the other hosts.
fn split_hosts(text: &str) -> (String, Vec<&str>) {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?']);
    let end = end.map_or(text.len(), |at| start + at);
    let hosts_at = text[start..end]
        .rfind('@')
        .map_or(start, |at| start + at + 1);
    let mut hosts = text[hosts_at..end].split(',');
    let first = hosts.next().unwrap_or_default();
    let url = [&text[..hosts_at], first, &text[end..]].concat();
    (url, hosts.collect())
}

fn hosts(url: &Url, more: &[&str], port: u16) -> Result<Vec<ConnectionAddr>, String> {
    let mut servers = vec![server(url, port)];
    for host in more {
        let url = Url::parse(&format!("redis://{host}"));
        let url = url.map_err(|error| format!("host {host:?}: {error}"))?;
        servers.push(server(&url, port));
    }
    Ok(servers)
}

fn server(url: &Url, port: u16) -> ConnectionAddr {
    ConnectionAddr::Tcp(host(url), url.port().unwrap_or(port))
}

fn host(url: &Url) -> String {
    match url.host_str().unwrap_or_default() {
        "" => "localhost".into(),
        host => host.trim_matches(['[', ']']).into(),
    }
}

fn socket(url: &Url) -> Result<ConnectionAddr, String> {
    if url.host_str().is_some_and(|host| host != "localhost") {
        let host = host(url);
        return Err(format!(
            "a socket has no host, and {host:?} stands where one would: unix:///path"
        ));
    }
    match url.path() {
        "" | "/" => Err("no path of a socket: unix:///run/redis/redis.sock".into()),
        path => Ok(ConnectionAddr::Unix(decoded(path)?.into())),
    }
}

fn credentials(url: &Url) -> Result<(Option<String>, Option<String>), String> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    let user = some(decoded(url.username())?);
    let password = some(decoded(url.password().unwrap_or_default())?);
    if user.is_some() && password.is_none() {
        return Err(
            "a user without a password; for a password alone put a colon \
             before it: redis://:PASSWORD@host"
                .into(),
        );
    }
    Ok((user, password))
}

fn decoded(text: &str) -> Result<String, String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Into::into)
        .map_err(|_| "percent signs stand for what is no UTF-8".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> ConnectionAddr {
        ConnectionAddr::Tcp(host.into(), port)
    }

    #[test]
    fn urls() {
        let of = |url: &str| Address::parse(url).unwrap();
        assert_eq!(of("redis://").servers, Servers::One(tcp("localhost", 6379)));
        assert_eq!(
            of("valkey://cache:7000/3").servers,
            Servers::One(tcp("cache", 7000))
        );
        assert_eq!(of("redis://cache:7000/3").database, 3);
        assert_eq!(of("redis://cache?db=4").database, 4);
        assert_eq!(of("redis://[::1]:7").servers, Servers::One(tcp("::1", 7)));
        let socket = of("unix:///run/r.sock?db=2");
        assert_eq!(
            socket.servers,
            Servers::One(ConnectionAddr::Unix("/run/r.sock".into()))
        );
        assert_eq!(socket.database, 2);
        let full = of("rediss://me:p%40ss%2F@cache:1/0?ssl_ca_certs=/etc/ca.pem");
        assert_eq!(
            (full.user.as_deref(), full.password.as_deref()),
            (Some("me"), Some("p@ss/"))
        );
        assert_eq!(full.servers, Servers::One(tcp("cache", 1)));
        assert_eq!(
            (full.tls, full.authorities),
            (true, Some("/etc/ca.pem".into()))
        );
        assert_eq!(of("redis://:secret@h").user, None);
    }

    #[test]
    fn urls_of_clusters_and_sentinels() {
        let of = |url: &str| Address::parse(url).unwrap();
        let cluster = of("rediss+cluster://u:p,@a:1,b,[::1]:3?ssl_ca_certs=/ca.pem");
        let nodes = vec![tcp("a", 1), tcp("b", 6379), tcp("::1", 3)];
        assert_eq!(cluster.servers, Servers::Cluster(nodes));
        assert_eq!(
            (cluster.tls, cluster.password.as_deref()),
            (true, Some("p,"))
        );
        let sentinels = of("redis+sentinel://:p@a,b:1/my%20cache/3");
        let nodes = vec![tcp("a", 26379), tcp("b", 1)];
        assert_eq!(
            (sentinels.servers, sentinels.database),
            (Servers::Sentinels(nodes, "my cache".into()), 3)
        );
        assert_eq!(of("redis+sentinel://a/m?db=2").database, 2);
        for url in [
            "redis+cluster://a:1,[::1]:3",
            "rediss+sentinel://a:1,b:2/m/3",
        ] {
            assert_eq!(of(url).to_string(), url);
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for url in [
            "redis://u:hush@h:1/2",
            "rediss://:hush@h:1/2",
            "unix://u:hush@/h/1?db=2",
            "redis+cluster://u:hush@h:1,h:2",
            "redis+sentinel://u:hush@h:1,h:2/m",
        ] {
            let shown = Address::parse(url).unwrap().to_string();
            assert!(
                !shown.contains("hush") && shown.contains('h') && shown.contains('2'),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, says) in [
            ("cache:6379", "\"cache\""),
            ("cache", "relative URL"),
            ("http://cache", "\"http\""),
            ("redis+ring://cache", "\"redis+ring\""),
            ("redis://cache:port", "port"),
            ("redis://cache/one", "\"one\""),
            ("redis://cache?dp=1", "\"dp\""),
            ("redis://me@cache", "password"),
            ("redis://:a%ff@cache", "percent"),
            ("redis://cache?ssl_ca_certs=/x", "rediss"),
            ("redis://cache,other", "redis+cluster"),
            ("redis+cluster://cache,other:port", "\"other:port\""),
            ("redis+cluster://cache/1", "database 0"),
            ("redis+sentinel://cache", "SERVICE"),
            ("unix://", "socket"),
            ("unix://host/path", "\"host\""),
        ] {
            let Err(error) = Address::parse(url) else {
                panic!("{url}")
            };
            assert!(error.contains(says), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            url in "(redis|rediss|unix|redis[+]cluster|redis[+]sentinel)://[ -~é]{0,40}",
        ) {
            let _ = Address::parse(&url);
        }
    }
}
