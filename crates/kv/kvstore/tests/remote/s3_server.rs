//! A `moto_server` of our own, which speaks S3, and plain HTTP to look into it from outside.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::parts::{free_port, skipped, until};

/// The server's only bucket.
pub(crate) const BUCKET: &str = "kvtier";

/// Who calls, for a server that does not check; without it objects are found to be somebody else's.
const UNSIGNED: &str = "Authorization: AWS4-HMAC-SHA256 \
    Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n";

/// A server on a free port of the loopback address; killed when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
    /// Calls that it lets pass before it asks who calls; none: any number.
    free_calls: Option<u32>,
}

impl Server {
    /// None, loudly, when this machine has no `moto_server`.
    pub(crate) fn start(test: &str, free_calls: Option<u32>, arguments: &[&str]) -> Option<Self> {
        let Some(program) = program() else {
            skipped(
                test,
                "no moto_server; `make test-tools` installs it, or `pip install 'moto[server]'`",
            );
            return None;
        };
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let port = free_port();
        let process = run(&program, port, free_calls, &arguments);
        let server = Self {
            process,
            port,
            arguments,
            free_calls,
        };
        until(|| TcpStream::connect(("127.0.0.1", port)));
        Some(server)
    }

    /// With the bucket in it.
    pub(crate) fn with_bucket(test: &str) -> Option<Self> {
        let server = Self::start(test, None, &[])?;
        server.make_bucket();
        Some(server)
    }

    pub(crate) fn make_bucket(&self) {
        assert_eq!(self.http("PUT", &format!("/{BUCKET}"), "", b"").0, 200);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts a server on the same port, with an empty bucket.
    pub(crate) fn restart(&mut self) {
        self.process = run(
            &program().unwrap(),
            self.port,
            self.free_calls,
            &self.arguments,
        );
        until(|| TcpStream::connect(("127.0.0.1", self.port)));
        self.make_bucket();
    }

    /// `STOP` or `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let done = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Options of `Objects::open`.
    pub(crate) fn options(&self, key: &str, secret: &str) -> BTreeMap<String, String> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        [
            ("endpoint", endpoint.as_str()),
            ("region", "us-east-1"),
            ("allow_http", "true"),
            ("access_key_id", key),
            ("secret_access_key", secret),
            ("timeout_s", "5"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// A request without a client in between, for S3 and not signed unless `headers` say otherwise:
    /// status and body.
    pub(crate) fn http(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let headers = if headers.is_empty() {
            UNSIGNED
        } else {
            headers
        };
        let (host, length) = (format!("127.0.0.1:{}", self.port), body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: \
             {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n")
            .unwrap();
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer[end + 4..].to_vec())
    }
}

/// Where `make test-tools` puts it, in the version that is known to check signatures of listings;
/// else from the search path.
fn program() -> Option<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.venv/bin/moto_server");
    [here.display().to_string(), "moto_server".into()]
        .into_iter()
        .find(|program: &String| {
            Command::new(program)
                .arg("--help")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok()
        })
}

fn run(program: &str, port: u16, free_calls: Option<u32>, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(arguments);
    if let Some(calls) = free_calls {
        command.env("INITIAL_NO_AUTH_ACTION_COUNT", calls.to_string());
    }
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
