//! Messages to a service manager: sd_notify(3).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager to notify; with `socket` `None`, all messages are no-ops.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    socket: Option<String>,
}

impl ServiceManager {
    /// `socket` is the value of NOTIFY_SOCKET: a path, or `@` and an abstract name.
    pub fn new(socket: Option<String>) -> Self {
        Self { socket }
    }

    /// Reports that the server is ready; `systemctl status` shows `status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the server is draining.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Best effort: an unreachable manager is ignored.
    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = send(socket, message);
        }
    }
}

fn send(socket: &str, message: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let from = UnixDatagram::unbound()?;
    from.set_nonblocking(true)?;
    from.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_by_path_and_by_abstract_name() {
        let name = format!("penstock-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, manager) in [
            (path.display().to_string(), UnixDatagram::bind(&path)),
            (format!("@{name}"), UnixDatagram::bind_addr(&address)),
        ] {
            let manager = manager.unwrap();
            let server = ServiceManager::new(Some(socket));
            server.ready("2 models");
            server.stopping();
            let mut buffer = [0; 100];
            for wanted in ["READY=1\nSTATUS=2 models", "STOPPING=1"] {
                let count = manager.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..count], wanted.as_bytes());
            }
        }
        std::fs::remove_file(path).unwrap();
        ServiceManager::new(Some("/nonexistent".to_owned())).stopping();
        ServiceManager::default().stopping();
    }
}
