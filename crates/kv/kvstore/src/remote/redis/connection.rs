//! A Redis connection: commands, replies, and payloads directly from and to the caller's slices.
//!
//! RESP2 by hand (redis.io, "Redis serialization protocol specification"): a client library would
//! copy every payload in each direction.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use tokio_rustls::rustls::ClientConfig;

use super::address::Address;
use super::limits::RedisLimits;
use super::socket::Socket;
use crate::format::{HEADER_BYTES, HeaderPage};
use crate::remote::slices::Filling;

/// Maximum length of a reply line in bytes.
const LINE_BYTES: u64 = 16 << 10;
/// Maximum length of a key in a listing in bytes.
const KEY_BYTES: i64 = 16 << 10;
/// Maximum number of elements in an array reply, and its nesting depth.
const MOST: i64 = 1 << 16;
const DEPTH: usize = 2;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is unusable.
    Io(io::Error),
    /// An error reply, in Redis' words; the connection stays usable.
    Said(String),
    /// The reply is not the requested part; the connection is unusable, as it stopped in the middle
    /// of a reply.
    Damaged(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A reply that is not a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Text(String),
    Number(i64),
    Nothing,
    Many(Vec<Reply>),
}

/// An authenticated connection.
pub(super) struct Connection {
    stream: BufReader<Socket>,
    limits: RedisLimits,
}

impl Connection {
    /// Connects, authenticates and selects the database.
    pub(super) fn open(
        address: &Address,
        tls: Option<&Arc<ClientConfig>>,
        limits: RedisLimits,
    ) -> Result<Self, Trouble> {
        let socket = Socket::open(&address.place, tls, &limits)?;
        // sized for a reply line and a payload's header; larger reads bypass it
        let stream = BufReader::with_capacity(HEADER_BYTES + 64, socket);
        let mut connection = Self { stream, limits };
        if let Some(password) = &address.password {
            let mut command: Vec<&[u8]> = vec![b"AUTH"];
            command.extend(address.user.as_ref().map(String::as_bytes));
            command.push(password.as_bytes());
            connection.ask(&[&command])?;
        }
        if address.database != 0 {
            let number = address.database.to_string();
            connection.ask(&[&[b"SELECT", number.as_bytes()]])?;
        }
        Ok(connection)
    }

    /// Pipelines all commands and returns their replies; if any is an error, the first one, after
    /// reading all.
    pub(super) fn ask(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Trouble> {
        let mut request = Vec::new();
        commands
            .iter()
            .for_each(|words| command(&mut request, words));
        self.send(&[&request])?;
        self.replies(commands.len(), DEPTH)
    }

    /// Pipelines `before`, a command whose last argument is `header` and `payload`, and `after`;
    /// returns all replies.
    pub(super) fn ask_with_payload(
        &mut self,
        before: &[&[&[u8]]],
        words: &[&[u8]],
        value: (&HeaderPage, &[u8]),
        after: &[&[&[u8]]],
    ) -> Result<Vec<Reply>, Trouble> {
        let (header, payload) = value;
        let bytes = HEADER_BYTES + payload.len();
        let mut head = Vec::with_capacity(2 * HEADER_BYTES);
        before.iter().for_each(|words| command(&mut head, words));
        array(&mut head, words.len() + 1);
        words.iter().for_each(|word| bulk(&mut head, word));
        head.extend_from_slice(format!("${bytes}\r\n").as_bytes());
        head.extend_from_slice(header);
        let mut tail = b"\r\n".to_vec();
        after.iter().for_each(|words| command(&mut tail, words));
        self.send(&[&head, payload, &tail])?;
        self.replies(before.len() + 1 + after.len(), DEPTH)
    }

    /// Sends a command whose reply is a part of `payload_bytes`, which goes to `filling`. False if
    /// it does not exist.
    pub(super) fn fetch(
        &mut self,
        words: &[&[u8]],
        payload_bytes: usize,
        filling: &mut Filling<'_, '_>,
    ) -> Result<bool, Trouble> {
        let mut request = Vec::new();
        command(&mut request, words);
        self.send(&[&request])?;
        let Some(bytes) = self.length()? else {
            return Ok(false);
        };
        let wanted = HEADER_BYTES + payload_bytes;
        if bytes != wanted {
            return Err(Trouble::Damaged(format!(
                "{bytes} bytes instead of {wanted}"
            )));
        }
        while !filling.room().is_empty() {
            let count = retry(|| self.stream.read(filling.room()))?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            filling.advance(count);
        }
        self.end_of_line()?;
        Ok(true)
    }

    fn send(&mut self, pieces: &[&[u8]]) -> Result<(), Trouble> {
        let socket = self.stream.get_mut();
        socket.until(Instant::now() + self.limits.answer);
        for piece in pieces {
            socket.write_all(piece)?;
        }
        Ok(socket.flush()?)
    }

    /// Reads `count` replies; if any is an error, the first one, after reading all.
    fn replies(&mut self, count: usize, depth: usize) -> Result<Vec<Reply>, Trouble> {
        let mut replies = Vec::new();
        let mut said = None;
        for _ in 0..count {
            match self.reply(depth) {
                Ok(reply) => replies.push(reply),
                Err(Trouble::Said(error)) => said = said.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        said.map_or(Ok(replies), |error| Err(Trouble::Said(error)))
    }

    /// Reads a reply. Transactions return nested replies, SCAN within them one level more; deeper
    /// nesting is rejected.
    fn reply(&mut self, depth: usize) -> Result<Reply, Trouble> {
        let (kind, line) = self.line()?;
        if kind != b'*' {
            return self.single(kind, line);
        }
        match number(&line)? {
            -1 => Ok(Reply::Nothing),
            count @ 0..=MOST if depth > 0 => {
                self.replies(count as usize, depth - 1).map(Reply::Many)
            }
            _ => Err(strange(kind, &line).into()),
        }
    }

    fn single(&mut self, kind: u8, line: String) -> Result<Reply, Trouble> {
        match kind {
            b'+' => Ok(Reply::Text(line)),
            b'-' => Err(Trouble::Said(line)),
            b':' => Ok(Reply::Number(number(&line)?)),
            b'$' => match number(&line)? {
                -1 => Ok(Reply::Nothing),
                bytes @ 0..=KEY_BYTES => self.text(bytes as usize),
                _ => Err(strange(kind, &line).into()),
            },
            _ => Err(strange(kind, &line).into()),
        }
    }

    fn text(&mut self, bytes: usize) -> Result<Reply, Trouble> {
        let mut text = vec![0; bytes + 2];
        self.stream.read_exact(&mut text)?;
        text.truncate(bytes);
        let text = String::from_utf8(text).map_err(|_| strange(b'$', "a name that is no text"))?;
        Ok(Reply::Text(text))
    }

    /// Reads the length of a payload reply; `None` for a nil reply.
    fn length(&mut self) -> Result<Option<usize>, Trouble> {
        let (kind, line) = self.line()?;
        match kind {
            b'$' => Ok(usize::try_from(number(&line)?).ok()),
            b'-' => Err(Trouble::Said(line)),
            _ => Err(strange(kind, &line).into()),
        }
    }

    /// Reads a line: its type byte and the rest.
    fn line(&mut self) -> io::Result<(u8, String)> {
        let mut line = Vec::new();
        (&mut self.stream)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        match line.as_slice() {
            [] => Err(io::ErrorKind::UnexpectedEof.into()),
            [kind, rest @ .., b'\r', b'\n'] => {
                Ok((*kind, String::from_utf8_lossy(rest).into_owned()))
            }
            [kind, rest @ ..] => Err(strange(*kind, &String::from_utf8_lossy(rest))),
        }
    }

    fn end_of_line(&mut self) -> io::Result<()> {
        let mut end = [0; 2];
        self.stream.read_exact(&mut end)?;
        match &end {
            b"\r\n" => Ok(()),
            [kind, rest] => Err(strange(*kind, &char::from(*rest).to_string())),
        }
    }
}

fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn command(request: &mut Vec<u8>, words: &[&[u8]]) {
    array(request, words.len());
    words.iter().for_each(|word| bulk(request, word));
}

fn array(request: &mut Vec<u8>, count: usize) {
    request.extend_from_slice(format!("*{count}\r\n").as_bytes());
}

fn bulk(request: &mut Vec<u8>, word: &[u8]) {
    request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
    request.extend_from_slice(word);
    request.extend_from_slice(b"\r\n");
}

fn number(line: &str) -> io::Result<i64> {
    line.parse().map_err(|_| strange(b':', line))
}

fn strange(kind: u8, line: &str) -> io::Error {
    let line: String = line.chars().take(60).collect();
    let text = format!(
        "{:?} is no reply of a Redis to this",
        format!("{}{line}", char::from(kind))
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}
