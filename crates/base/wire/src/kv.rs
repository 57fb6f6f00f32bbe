use super::FrameError;
use super::error::{Refused, rule};
use super::fields::Fields;
use super::writer::FrameWriter;

/// KV: an operator's command about the cache, under an id that is unique on its connection.
/// Answered by one [`KvReply`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCommand {
    pub id: u64,
    pub order: KvOrder,
}

/// A command with its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvOrder {
    /// Clear everything, in the pool and in all tiers.
    ClearAll,
    /// Clear the blocks of requests with this salt. Not empty.
    ClearSalt(Vec<u8>),
    /// Clear the blocks of one prefix and all its continuations.
    ClearPrefix(KvPrefix),
    /// Pins the blocks of a prefix, which exempts them from eviction. Blocks not computed yet are
    /// pinned once they are.
    Pin(KvPrefix),
    Unpin(KvPrefix),
    /// Contents and hit rates of the cache.
    Report,
}

/// A prefix of prompts. An incomplete block at the prefix's end is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPrefix {
    /// Not empty.
    pub tokens: Vec<u32>,
    /// Same as `cache_salt` in a request: prompts with different salts share no blocks.
    pub cache_salt: Vec<u8>,
}

/// KV_REPLY: the result of a [`KvCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvReply {
    pub id: u64,
    pub outcome: KvOutcome,
    /// A JSON object if the command succeeded, else the reason of the failure.
    pub text: String,
}

/// Outcome of a [`KvCommand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum KvOutcome {
    Done = 0,
    /// Not possible in the current state, for example because too much is pinned.
    Refused = 1,
    /// A tier failed.
    Failed = 2,
}

/// Code of a [`KvCommand`]'s action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum KvAction {
    ClearAll = 1,
    ClearSalt = 2,
    ClearPrefix = 3,
    Pin = 4,
    Unpin = 5,
    Report = 6,
}

/// Offset of the field `tokens` in the frame body, after `id` and `action`.
const TOKENS_AT: usize = 9;

impl KvAction {
    /// The action with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        use KvAction::{ClearAll, ClearPrefix, ClearSalt, Pin, Report, Unpin};
        let all = [ClearAll, ClearSalt, ClearPrefix, Pin, Unpin, Report];
        all.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

impl KvOrder {
    /// Combines an action with its fields. An error if a required field is empty, or a field is set
    /// that the action does not have.
    pub fn new(action: KvAction, prefix: KvPrefix) -> Result<Self, FrameError> {
        check(action, &prefix)?;
        Ok(match action {
            KvAction::ClearAll => Self::ClearAll,
            KvAction::ClearSalt => Self::ClearSalt(prefix.cache_salt),
            KvAction::ClearPrefix => Self::ClearPrefix(prefix),
            KvAction::Pin => Self::Pin(prefix),
            KvAction::Unpin => Self::Unpin(prefix),
            KvAction::Report => Self::Report,
        })
    }

    /// The action and its fields.
    pub fn parts(&self) -> (KvAction, KvPrefix) {
        let none = KvPrefix::default();
        match self {
            Self::ClearAll => (KvAction::ClearAll, none),
            Self::ClearSalt(salt) => {
                let cache_salt = salt.clone();
                (KvAction::ClearSalt, KvPrefix { cache_salt, ..none })
            }
            Self::ClearPrefix(prefix) => (KvAction::ClearPrefix, prefix.clone()),
            Self::Pin(prefix) => (KvAction::Pin, prefix.clone()),
            Self::Unpin(prefix) => (KvAction::Unpin, prefix.clone()),
            Self::Report => (KvAction::Report, none),
        }
    }
}

impl KvCommand {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let id = f.u64("id")?;
        let code = f.u8("action")?;
        let action =
            KvAction::from_code(code).ok_or_else(|| f.refuse("action", 1, code, "1 to 6"))?;
        let prefix = KvPrefix {
            tokens: f.u32_list("tokens")?,
            cache_salt: f.bytes("cache_salt")?.to_vec(),
        };
        let order = KvOrder::new(action, prefix)?;
        Ok(Self { id, order })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        let (action, prefix) = self.order.parts();
        check(action, &prefix)?;
        w.u64(self.id);
        w.u8(action as u8);
        w.u32_list(&prefix.tokens);
        w.bytes(&prefix.cache_salt);
        Ok(())
    }
}

/// Each action requires exactly its own fields: otherwise, a clear command without its prefix could
/// clear everything.
fn check(action: KvAction, prefix: &KvPrefix) -> Result<(), FrameError> {
    use KvAction::{ClearAll, ClearPrefix, ClearSalt, Pin, Report, Unpin};
    let KvPrefix { tokens, cache_salt } = prefix;
    let many = |what: &str, count: usize| match count {
        0 => "nothing".to_owned(),
        count => format!("{count} {what}"),
    };
    let named = matches!(action, ClearPrefix | Pin | Unpin);
    let salt_fits = match action {
        ClearSalt => !cache_salt.is_empty(),
        ClearAll | Report => cache_salt.is_empty(),
        _ => true,
    };
    let checked = || {
        let allowed = ["none with this action", "at least one token"][usize::from(named)];
        let value = many("tokens", tokens.len());
        let ok = named != tokens.is_empty();
        rule("tokens", TOKENS_AT, &value, ok, allowed)?;
        if let Some(at) = tokens.iter().position(|id| i32::try_from(*id).is_err()) {
            let allowed = "token ids up to 2147483647";
            rule(
                "tokens",
                TOKENS_AT + 4 + 4 * at,
                &tokens[at],
                false,
                allowed,
            )?;
        }
        let allowed = ["none with this action", "a salt"][usize::from(action == ClearSalt)];
        let (value, at) = (many("bytes", cache_salt.len()), 4 + 4 * tokens.len());
        rule("cache_salt", TOKENS_AT + at, &value, salt_fits, allowed)
    };
    checked().map_err(|e: Refused| e.error("KV", 0))
}

impl KvOutcome {
    /// The outcome with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Done, Self::Refused, Self::Failed];
        all.get(usize::from(code)).copied()
    }
}

impl KvReply {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            id: f.u64("id")?,
            outcome: {
                let code = f.u8("outcome")?;
                KvOutcome::from_code(code).ok_or_else(|| f.refuse("outcome", 1, code, "0 to 2"))?
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
