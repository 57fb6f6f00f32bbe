//! A `redis-server` of our own, and `redis-cli` to look into it from outside.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::parts::{Scratch, free_port, skipped, until};

/// A server on a free port of the loopback address and on a socket; killed when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    pub(crate) scratch: Scratch,
    options: Vec<String>,
}

impl Server {
    /// None, loudly, when this machine has no `redis-server`.
    pub(crate) fn start(test: &str, options: &[&str]) -> Option<Self> {
        Self::start_in(test, Scratch::new(), options)
    }

    /// The same in a directory that has files for it.
    pub(crate) fn start_in(test: &str, scratch: Scratch, options: &[&str]) -> Option<Self> {
        if Command::new("redis-server")
            .arg("--version")
            .output()
            .is_err()
        {
            skipped(
                test,
                "no redis-server; install Debian's package redis-server",
            );
            return None;
        }
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let port = free_port();
        let process = run(port, &scratch, &options);
        let server = Self {
            process,
            port,
            scratch,
            options,
        };
        server.wait();
        Some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.scratch.0.join("redis.sock")
    }

    /// Ends the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts an empty server on the same port.
    pub(crate) fn restart(&mut self) {
        self.process = run(self.port, &self.scratch, &self.options);
        self.wait();
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

    /// What `redis-cli` prints for a command.
    pub(crate) fn cli(&self, words: &[&str]) -> Result<String, String> {
        let socket = self.socket();
        let mut command = Command::new("redis-cli");
        command
            .arg("-s")
            .arg(socket)
            .arg("--no-auth-warning")
            .args(words);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            Err(format!("{text} {errors}"))
        }
    }

    fn wait(&self) {
        until(|| self.cli(&["PING"]));
    }
}

fn run(port: u16, scratch: &Scratch, options: &[String]) -> Child {
    let socket = scratch.0.join("redis.sock");
    let mut command = Command::new("redis-server");
    command.args([
        "--bind",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    command
        .arg("--unixsocket")
        .arg(socket)
        .arg("--dir")
        .arg(&scratch.0);
    command
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
