use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, Problem};

/// KV: an operator's wish about what the cache holds, under an id that is unique on its connection.
/// Answered by one [`KvReply`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCommand {
    pub id: u64,
    pub order: KvOrder,
}

/// What an operator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvOrder {
    /// Forget everything, in the pool and in all tiers.
    ClearAll,
    /// Forget what requests with this salt left. Not empty.
    ClearSalt(Vec<u8>),
    /// Forget the blocks of one prefix, and with them whatever continues it.
    ClearPrefix(KvPrefix),
    /// Keep the blocks of a prefix, now or once they are computed, whatever else has to go.
    Pin(KvPrefix),
    Unpin(KvPrefix),
    /// What the cache holds and how well it does.
    Report,
}

/// The beginning of prompts, as far as it fills whole blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPrefix {
    /// Not empty.
    pub tokens: Vec<u32>,
    /// As in a request: other salts have other prefixes.
    pub cache_salt: Vec<u8>,
}

/// KV_REPLY: the end of a [`KvCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvReply {
    pub id: u64,
    pub outcome: KvOutcome,
    /// A JSON object when it was done, else why not.
    pub text: String,
}

/// How a [`KvCommand`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum KvOutcome {
    Done = 0,
    /// Not possible as things stand: too much is pinned, say.
    Refused = 1,
    /// A tier did not do its part.
    Failed = 2,
}

const CLEAR_ALL: u8 = 1;
const CLEAR_SALT: u8 = 2;
const CLEAR_PREFIX: u8 = 3;
const PIN: u8 = 4;
const UNPIN: u8 = 5;
const REPORT: u8 = 6;

/// `id` and `action` are in front of the tokens' count.
const TOKENS_AT: usize = 9;

impl KvCommand {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let id = f.u64("id")?;
        let action = f.u8("action")?;
        if !(CLEAR_ALL..=REPORT).contains(&action) {
            return Err(f.refuse("action", 1, action, "1 to 6"));
        }
        let prefix = KvPrefix {
            tokens: f.u32_list("tokens")?,
            cache_salt: f.bytes("cache_salt")?.to_vec(),
        };
        check(action, &prefix)?;
        let order = match action {
            CLEAR_SALT => KvOrder::ClearSalt(prefix.cache_salt),
            CLEAR_PREFIX => KvOrder::ClearPrefix(prefix),
            PIN => KvOrder::Pin(prefix),
            UNPIN => KvOrder::Unpin(prefix),
            REPORT => KvOrder::Report,
            _ => KvOrder::ClearAll,
        };
        Ok(Self { id, order })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        let none = KvPrefix::default();
        let salted;
        let (action, prefix) = match &self.order {
            KvOrder::ClearAll => (CLEAR_ALL, &none),
            KvOrder::ClearSalt(salt) => {
                salted = KvPrefix {
                    cache_salt: salt.clone(),
                    ..KvPrefix::default()
                };
                (CLEAR_SALT, &salted)
            }
            KvOrder::ClearPrefix(prefix) => (CLEAR_PREFIX, prefix),
            KvOrder::Pin(prefix) => (PIN, prefix),
            KvOrder::Unpin(prefix) => (UNPIN, prefix),
            KvOrder::Report => (REPORT, &none),
        };
        check(action, prefix)?;
        w.u64(self.id);
        w.u8(action);
        w.u32_list(&prefix.tokens);
        w.bytes(&prefix.cache_salt);
        Ok(())
    }
}

/// An action has the fields that it needs and no others: a clearing with a lost prefix must not
/// become one of everything.
fn check(action: u8, prefix: &KvPrefix) -> Result<(), FrameError> {
    let KvPrefix { tokens, cache_salt } = prefix;
    let refuse = |field, offset, value: String, allowed| {
        Err(FrameError {
            frame: "KV",
            field,
            offset,
            problem: Problem::Value { value, allowed },
        })
    };
    let many = |what: &str, count: usize| match count {
        0 => "nothing".to_owned(),
        count => format!("{count} {what}"),
    };
    let named = matches!(action, CLEAR_PREFIX | PIN | UNPIN);
    if named == tokens.is_empty() {
        let allowed = ["none with this action", "at least one token"][usize::from(named)];
        return refuse("tokens", TOKENS_AT, many("tokens", tokens.len()), allowed);
    }
    if let Some(at) = tokens.iter().position(|id| i32::try_from(*id).is_err()) {
        let offset = TOKENS_AT + 4 + 4 * at;
        let allowed = "token ids up to 2147483647";
        return refuse("tokens", offset, tokens[at].to_string(), allowed);
    }
    let salt_fits = match action {
        CLEAR_SALT => !cache_salt.is_empty(),
        CLEAR_ALL | REPORT => cache_salt.is_empty(),
        _ => true,
    };
    if !salt_fits {
        let offset = TOKENS_AT + 4 + 4 * tokens.len();
        let allowed = ["none with this action", "a salt"][usize::from(action == CLEAR_SALT)];
        return refuse(
            "cache_salt",
            offset,
            many("bytes", cache_salt.len()),
            allowed,
        );
    }
    Ok(())
}

impl KvReply {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            id: f.u64("id")?,
            outcome: match f.u8("outcome")? {
                0 => KvOutcome::Done,
                1 => KvOutcome::Refused,
                2 => KvOutcome::Failed,
                unknown => return Err(f.refuse("outcome", 1, unknown, "0 to 2")),
            },
            text: f.string("text")?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) {
        w.u64(self.id);
        w.u8(self.outcome as u8);
        w.bytes(self.text.as_bytes());
    }
}
