//! Endpoints in ZeroMQ syntax: `tcp://host:port`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Address on which a socket listens, or to which it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `*`: all addresses.
    pub host: String,
    pub port: u16,
}

/// An invalid endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no endpoint; tcp://10.0.0.1:5557 is one, and to listen tcp://*:5557")]
pub struct EndpointError(pub String);

impl Endpoint {
    /// # Errors
    /// [`EndpointError`], also for other transports such as `ipc`.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let parts = text
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'));
        let wrong = || EndpointError(text.to_owned());
        let (host, port) = parts.ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().map_err(|_| wrong())?;
        match host.is_empty() || host.contains('/') {
            true => Err(wrong()),
            false => Ok(Self {
                host: host.to_owned(),
                port,
            }),
        }
    }

    /// Whether a publisher listens on this endpoint, by vLLM's rule; otherwise the publisher
    /// connects.
    pub fn listens(&self) -> bool {
        self.host == "*" || self.host.contains("::")
    }

    /// Candidate addresses to listen on, in order. `*` is all addresses: an IPv6 socket covers IPv4
    /// as well.
    pub(crate) fn to_bind(&self) -> io::Result<Vec<SocketAddr>> {
        let every = [
            (Ipv6Addr::UNSPECIFIED, self.port).into(),
            (Ipv4Addr::UNSPECIFIED, self.port).into(),
        ];
        match self.host.as_str() {
            "*" => Ok(every.into()),
            host => Ok((host, self.port).to_socket_addrs()?.collect()),
        }
    }

    pub(crate) fn to_connect(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_and_ports() {
        let parsed = |text| Endpoint::parse(text).map(|one| (one.host, one.port));
        assert_eq!(parsed("tcp://*:5557"), Ok(("*".to_owned(), 5557)));
        assert_eq!(parsed("tcp://[::1]:1"), Ok(("::1".to_owned(), 1)));
        let bound = |text| Endpoint::parse(text).unwrap().to_bind().unwrap();
        let both = ["[::]:5557", "0.0.0.0:5557"].map(|one| one.parse().unwrap());
        assert_eq!(bound("tcp://*:5557"), both);
        assert_eq!(bound("tcp://[::1]:1"), ["[::1]:1".parse().unwrap()]);
        assert!(Endpoint::parse("tcp://*:1").unwrap().listens());
        assert!(!Endpoint::parse("tcp://gateway:1").unwrap().listens());
        for wrong in [
            "ipc:///run/x",
            "tcp://a",
            "tcp://:1",
            "tcp://a:b",
            "a:1",
            "tcp://a/b:1",
        ] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
