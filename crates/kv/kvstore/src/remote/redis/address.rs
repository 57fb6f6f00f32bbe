//! Redis address and credentials, parsed from the URL of `--kv-tier`.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

/// A parsed Redis URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Number of the database.
    pub(super) database: u32,
}

/// Transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    /// TLS over TCP; CA certificates from a PEM file, else the platform's.
    Tls {
        host: String,
        port: u16,
        authorities: Option<PathBuf>,
    },
    Unix(PathBuf),
}

/// Omits secrets, for logs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.database;
        let (scheme, host, port) = match &self.place {
            Place::Tcp { host, port } => ("redis", host, port),
            Place::Tls { host, port, .. } => ("rediss", host, port),
            Place::Unix(path) => return write!(f, "unix://{}?db={database}", path.display()),
        };
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}/{database}"),
            false => write!(f, "{scheme}://{host}:{port}/{database}"),
        }
    }
}

impl Address {
    /// `redis://[user][:password@]host[:port][/database]`, `rediss://` the same with TLS and
    /// `?ssl_ca_certs=FILE`, `unix://[user:password@]/path[?db=N]`, and Valkey's aliases. User and
    /// password may be percent-encoded.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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
        let (host, port) = (host(&url), url.port().unwrap_or(6379));
        let place = match (url.scheme(), authorities) {
            ("rediss" | "valkeys", authorities) => Place::Tls {
                host,
                port,
                authorities,
            },
            ("redis" | "valkey", None) => Place::Tcp { host, port },
            ("unix" | "redis+unix" | "valkey+unix", None) => socket(&url)?,
            ("redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix", Some(_)) => {
                return Err("ssl_ca_certs goes with rediss://".into());
            }
            (scheme, _) => {
                return Err(format!(
                    "scheme {scheme:?} is none of redis, rediss, unix, valkey, valkeys"
                ));
            }
        };
        let in_path = url.path().trim_start_matches('/');
        if !matches!(place, Place::Unix(_)) && !in_path.is_empty() {
            database = Some(in_path.to_owned());
        }
        let number = database.as_deref().unwrap_or("0");
        let (user, password) = credentials(&url)?;
        Ok(Self {
            place,
            user,
            password,
            database: number
                .parse()
                .map_err(|_| format!("{number:?} is no number of a database"))?,
        })
    }
}

fn host(url: &Url) -> String {
    match url.host_str().unwrap_or_default() {
        "" => "localhost".into(),
        host => host.trim_matches(['[', ']']).into(),
    }
}

fn socket(url: &Url) -> Result<Place, String> {
    if url.host_str().is_some_and(|host| host != "localhost") {
        let host = host(url);
        return Err(format!(
            "a socket has no host, and {host:?} stands where one would: unix:///path"
        ));
    }
    match url.path() {
        "" | "/" => Err("no path of a socket: unix:///run/redis/redis.sock".into()),
        path => Ok(Place::Unix(decoded(path)?.into())),
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
            ("cache:6379", "\"cache\""),
            ("cache", "relative URL"),
            ("http://cache", "\"http\""),
            ("redis://cache:port", "port"),
            ("redis://cache/one", "\"one\""),
            ("redis://cache?dp=1", "\"dp\""),
            ("redis://me@cache", "password"),
            ("redis://:a%ff@cache", "percent"),
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
