//! Where a Redis is and who asks: the URL of `--kv-tier`.

use std::fmt;
use std::path::PathBuf;

/// A Redis URL taken apart.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Number of the database.
    pub(super) database: u32,
}

/// How to get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    /// TLS over TCP; authorities from a PEM file, else the platform's.
    Tls {
        host: String,
        port: u16,
        authorities: Option<PathBuf>,
    },
    Unix(PathBuf),
}

/// Without what must not be logged.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.database;
        match &self.place {
            Place::Tcp { host, port } => write!(f, "redis://{}:{port}/{database}", bracketed(host)),
            Place::Tls { host, port, .. } => {
                write!(f, "rediss://{}:{port}/{database}", bracketed(host))
            }
            Place::Unix(path) => write!(f, "unix://{}?db={database}", path.display()),
        }
    }
}

impl Address {
    /// `redis://[user][:password@]host[:port][/database]`, `rediss://` the same with TLS and
    /// `?ssl_ca_certs=FILE`, `unix://[user:password@]/path[?db=N]`. Valkey's and others' names for
    /// them too. User and password may be percent-encoded.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("no scheme such as redis://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let kind = match scheme {
            "redis" | "valkey" => Kind::Tcp,
            "rediss" | "valkeys" => Kind::Tls,
            "unix" | "redis+unix" | "valkey+unix" => Kind::Unix,
            _ => {
                return Err(format!(
                    "scheme {scheme:?} is none of redis, rediss, unix, valkey, valkeys"
                ));
            }
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (credentials, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = parse_credentials(credentials)?;
        let query = Query::parse(query)?;
        let database = query.database(if kind == Kind::Unix {
            ""
        } else {
            path.trim_start_matches('/')
        })?;
        let place = place(kind, host, path, query.authorities)?;
        Ok(Self {
            place,
            user,
            password,
            database,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Tls,
    Unix,
}

fn place(
    kind: Kind,
    host: &str,
    path: &str,
    authorities: Option<PathBuf>,
) -> Result<Place, String> {
    if kind == Kind::Unix {
        return match (host, path) {
            ("", path) if path.len() > 1 => Ok(Place::Unix(decode(path)?.into())),
            ("", _) => Err("no path of a socket: unix:///run/redis/redis.sock".into()),
            _ => Err(format!(
                "a socket has no host, and {host:?} stands where one would: unix:///path"
            )),
        };
    }
    let (host, port) = host_and_port(host)?;
    match (kind, authorities) {
        (Kind::Tls, authorities) => Ok(Place::Tls {
            host,
            port,
            authorities,
        }),
        (_, Some(_)) => Err("ssl_ca_certs goes with rediss://".into()),
        (_, None) => Ok(Place::Tcp { host, port }),
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None | Some("") => 6379,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
    };
    let host = if host.is_empty() { "localhost" } else { host };
    Ok((host.to_owned(), port))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

fn parse_credentials(text: &str) -> Result<(Option<String>, Option<String>), String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let some = |text: String| (!text.is_empty()).then_some(text);
    let (user, password) = (some(decode(user)?), some(decode(password)?));
    if user.is_some() && password.is_none() {
        return Err(
            "a user without a password; for a password alone put a colon \
             before it: redis://:PASSWORD@host"
                .into(),
        );
    }
    Ok((user, password))
}

#[derive(Default)]
struct Query {
    database: Option<String>,
    authorities: Option<PathBuf>,
}

impl Query {
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "db" => query.database = Some(value.to_owned()),
                "ssl_ca_certs" => query.authorities = Some(decode(value)?.into()),
                _ => {
                    return Err(format!(
                        "{name:?} is none of the parameters db, ssl_ca_certs"
                    ));
                }
            }
        }
        Ok(query)
    }

    fn database(&self, in_path: &str) -> Result<u32, String> {
        let text = match in_path {
            "" => self.database.as_deref().unwrap_or("0"),
            text => text,
        };
        text.parse()
            .map_err(|_| format!("{text:?} is no number of a database"))
    }
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String, String> {
    let bad =
        || "a percent sign is not followed by two hex digits, or they are no UTF-8".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(bad());
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn urls() {
        let of = |url: &str| Address::parse(url).unwrap();
        assert_eq!(of("redis://").place, tcp("localhost", 6379));
        assert_eq!(of("valkey://cache:7000/3").place, tcp("cache", 7000));
        assert_eq!(of("redis://cache:7000/3").database, 3);
        assert_eq!(of("redis://cache?db=4").database, 4);
        assert_eq!(of("redis://[::1]:7").place, tcp("::1", 7));
        assert_eq!(
            of("unix:///run/r.sock?db=2").place,
            Place::Unix("/run/r.sock".into())
        );
        assert_eq!(of("unix:///run/r.sock?db=2").database, 2);
        let full = of("rediss://me:p%40ss%2F@cache:1/0?ssl_ca_certs=/etc/ca.pem");
        assert_eq!(
            (full.user.as_deref(), full.password.as_deref()),
            (Some("me"), Some("p@ss/"))
        );
        let authorities = Some("/etc/ca.pem".into());
        assert_eq!(
            full.place,
            Place::Tls {
                host: "cache".into(),
                port: 1,
                authorities
            }
        );
        assert_eq!(of("redis://:secret@h").user, None);
    }

    #[test]
    fn a_password_is_not_shown() {
        for url in [
            "redis://u:hush@h:1/2",
            "rediss://:hush@h:1/2",
            "unix://u:hush@/h/1?db=2",
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
            ("cache:6379", "no scheme"),
            ("http://cache", "\"http\""),
            ("redis://cache:port", "\"port\""),
            ("redis://cache/one", "\"one\""),
            ("redis://cache?dp=1", "\"dp\""),
            ("redis://me@cache", "password"),
            ("redis://:a%4@cache", "percent"),
            ("redis://cache?ssl_ca_certs=/x", "rediss"),
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
        fn any_text_is_read_or_refused(url in "(redis|rediss|unix)://[ -~é]{0,40}") {
            let _ = Address::parse(&url);
        }
    }
}
