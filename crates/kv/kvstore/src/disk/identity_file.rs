//! `identity.json` in a store's directory: the store identity, for human readers and for processes
//! that need the store's geometry (layers, heads, bytes).

use std::fs;
use std::io::{self, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::io as file_io;
use super::layout::{self, IDENTITY_FILE};
use crate::format::VERSION;
use crate::key::StoreIdentity;

#[derive(Serialize, Deserialize)]
struct IdentityFile {
    format: u32,
    about: String,
    identity: StoreIdentity,
}

/// Writes the identity file of `store` if it is missing or outdated: to `temporary`, then renamed.
pub(crate) fn ensure(store: &Path, temporary: &Path, identity: &StoreIdentity) -> io::Result<()> {
    if read(store).as_ref() == Some(identity) {
        return Ok(());
    }
    let file = IdentityFile {
        format: VERSION,
        about: about(identity),
        identity: identity.clone(),
    };
    let mut written = file_io::create(temporary)?;
    written.write_all((serde_json::to_string_pretty(&file)? + "\n").as_bytes())?;
    file_io::close(written)?;
    fs::rename(temporary, store.join(IDENTITY_FILE))
}

/// The store identity that the identity file in `store` names; None if the file is missing or
/// belongs to another directory.
pub(crate) fn read(store: &Path) -> Option<StoreIdentity> {
    let file = file_io::open(&store.join(IDENTITY_FILE)).ok()?;
    let file: IdentityFile = serde_json::from_reader(BufReader::new(file)).ok()?;
    let name = layout::store_name(&file.identity.digest());
    (store.file_name()?.to_str()? == name).then_some(file.identity)
}

/// Readable description of an identity.
pub(crate) fn about(identity: &StoreIdentity) -> String {
    let StoreIdentity {
        cache,
        layers,
        kv_heads,
        block_tokens,
        dtype,
        ..
    } = identity;
    let weights = cache.get(..12).unwrap_or(cache);
    format!(
        "{layers} layers x {kv_heads} KV heads, {dtype}, blocks of {block_tokens} tokens, \
         weights and numerics {weights}"
    )
}
