//! One conversation with a Redis: commands out, replies in, payloads straight from and to the
//! caller's slices.
//!
//! RESP2 by hand (redis.io, "Redis serialization protocol specification"): what a client library
//! would add here is a copy of every payload in each direction.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use tokio_rustls::rustls::ClientConfig;

use super::address::Address;
use super::limits::RedisLimits;
use super::socket::Socket;
use crate::format::{HEADER_BYTES, HeaderPage};
use crate::remote::slices::Filling;

/// The longest line of a reply that is believed.
const LINE_BYTES: u64 = 16 << 10;
/// The longest name that a listing brings.
const KEY_BYTES: i64 = 16 << 10;
/// Replies within a reply, at most.
const MOST: i64 = 1 << 16;
const DEPTH: usize = 2;

/// Why a command did not succeed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is of no use any more.
    Io(io::Error),
    /// An error reply, as Redis worded it; the connection goes on.
    Said(String),
    /// What came is no part, or not the one asked for; the connection stands in the middle of it.
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

/// A connection that was let in.
pub(super) struct Connection {
    stream: BufReader<Socket>,
    limits: RedisLimits,
}

impl Connection {
    /// Connects, identifies itself and chooses the database.
    pub(super) fn open(
        address: &Address,
        tls: Option<&Arc<ClientConfig>>,
        limits: RedisLimits,
    ) -> Result<Self, Trouble> {
        let socket = Socket::open(&address.place, tls, &limits)?;
        // holds the reply's line and the header in front of a payload; larger reads go past it
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

    /// Sends all commands at once and returns their replies; the first error reply, after all were
    /// read.
    pub(super) fn ask(&mut self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, Trouble> {
        let mut request = Vec::new();
        commands
            .iter()
            .for_each(|words| command(&mut request, words));
        self.send(&[&request])?;
        self.replies(commands.len(), DEPTH)
    }

    /// Sends `before`, then a command whose last word is `header` and `payload`, then `after`;
    /// returns the replies to all.
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

    /// Sends a command that is answered with a part of `payload_bytes`, which goes to `filling`.
    /// False when there is none.
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

    /// So many replies; the first error reply, after all were read.
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

    /// A transaction answers with replies within a reply, SCAN with replies within these. More do
    /// not come.
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

    /// The start of a reply that is a payload: its length, or that there is none.
    fn length(&mut self) -> Result<Option<usize>, Trouble> {
        let (kind, line) = self.line()?;
        match kind {
            b'$' => Ok(usize::try_from(number(&line)?).ok()),
            b'-' => Err(Trouble::Said(line)),
            _ => Err(strange(kind, &line).into()),
        }
    }

    /// The first byte of a line and what follows it.
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
