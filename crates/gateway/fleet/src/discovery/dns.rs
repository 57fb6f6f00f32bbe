//! Backends from DNS: one for each address of a host name.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::warn;

use super::Found;
use crate::backend::{Backend, Target, targets};

const PATIENCE: Duration = Duration::from_secs(5);

/// A host name, with the result of the last lookup.
#[derive(Debug)]
pub(crate) struct Dns {
    name: String,
    port: u16,
    targets: Vec<Target>,
    /// Whether the last lookup failed and the failure has been logged.
    failing: bool,
}

impl Dns {
    pub(crate) fn new(name: String, port: u16) -> Self {
        Self {
            name,
            port,
            targets: Vec::new(),
            failing: false,
        }
    }

    pub(crate) async fn follow(mut self, found: Found, period: Duration) {
        loop {
            let looked = tokio::net::lookup_host((self.name.as_str(), self.port));
            let looked = match tokio::time::timeout(PATIENCE, looked).await {
                Ok(result) => result.map(Iterator::collect),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            if self.saw(looked) {
                found.send_replace(Some(self.targets.clone()));
            }
            tokio::select! {
                () = found.closed() => return,
                () = tokio::time::sleep(period) => {}
            }
        }
    }

    /// Returns whether the list changed. A failed or empty lookup keeps the previous list.
    fn saw(&mut self, looked: io::Result<Vec<SocketAddr>>) -> bool {
        let none = || io::Error::other("it has no address");
        let looked = looked.and_then(|all| match all.is_empty() {
            true => Err(none()),
            false => Ok(all),
        });
        let mut addresses = match looked {
            Ok(addresses) => addresses,
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    let name = &self.name;
                    warn!("{name}: {error}; its backends stay");
                }
                return false;
            }
        };
        self.failing = false;
        addresses.sort_unstable();
        let backends = addresses
            .iter()
            .map(|at| Backend::new(format!("http://{at}")));
        let found = targets(&backends.collect::<Vec<_>>()).unwrap_or_default();
        let changed = self.targets != found;
        self.targets = found;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: &[&str]) -> io::Result<Vec<SocketAddr>> {
        Ok(of.iter().map(|one| one.parse().unwrap()).collect())
    }

    #[test]
    fn each_address_is_a_backend_in_whatever_order_they_come() {
        let mut dns = Dns::new("llama".to_owned(), 80);
        assert!(dns.saw(addresses(&["10.0.0.2:80", "[::1]:80", "10.0.0.1:80"])));
        let bases: Vec<&str> = dns.targets.iter().map(|one| &*one.base).collect();
        assert_eq!(
            bases,
            [
                "http://10.0.0.1:80",
                "http://10.0.0.2:80",
                "http://[::1]:80"
            ]
        );
        assert!(!dns.saw(addresses(&["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"])));
        assert!(dns.saw(addresses(&["10.0.0.1:80"])));
    }

    #[test]
    fn failures_change_nothing() {
        let mut dns = Dns::new("llama".to_owned(), 80);
        assert!(dns.saw(addresses(&["10.0.0.1:80"])));
        assert!(!dns.saw(Err(io::ErrorKind::NotFound.into())));
        assert!(!dns.saw(addresses(&[])));
        assert_eq!(dns.targets.len(), 1);
        assert!(!dns.saw(addresses(&["10.0.0.1:80"])));
    }
}
