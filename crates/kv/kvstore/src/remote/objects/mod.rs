//! Parts as objects in S3-compatible stores, Google Cloud Storage or Azure.
//!
//! This tier does not evict; lifecycle rules of the bucket must bound its size.

mod http;
mod place;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::{Builder, Runtime};

use self::place::ObjectLocation;
use super::names::Names;
use super::slices::Filling;
use crate::format::HEADER_BYTES;
use crate::key::{Digest, Group, PartKey, StoreIdentity};
use crate::tier::{StartError, Tier, TierError};

/// Maximum concurrent requests of one call.
const AT_ONCE: usize = 32;
/// Threads for the network transfers of all calls; the callers' threads copy and verify.
const THREADS: usize = 2;

/// A tier in an object store.
pub struct Objects {
    name: String,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    answer: Duration,
    names: Names,
    runtime: Threads,
}

impl Objects {
    /// Opens the store at `url` and writes a small test object, to verify the permissions.
    ///
    /// URLs: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container@account/prefix`.
    /// Options: `timeout_s` (10) for a call, including its payload and retries; `connect_timeout_s`
    /// (2); `ca_file` (PEM; default: the platform's certificate authorities); and the options of
    /// the `object_store` crate for the URL's scheme, such as `endpoint`, `region`,
    /// `access_key_id`, `secret_access_key`, `allow_http`, `unsigned_payload`.
    ///
    /// # Errors
    /// The URL or an option is invalid, the store is unreachable, or writing is not permitted. The
    /// error text names the cause and the remedy.
    pub fn open(
        url: &str,
        options: &BTreeMap<String, String>,
        identity: &StoreIdentity,
    ) -> Result<Self, StartError> {
        let place = ObjectLocation::new(url, options)
            .map_err(|error| StartError(format!("KV tier: {error}")))?;
        let hint = place.hint;
        let tier = Self::with(place, identity)?;
        let trial = tier.at(&tier.names.trial());
        let tried = tier.call(async {
            tier.store
                .put(&trial, PutPayload::from_static(b"x"))
                .await?;
            tier.store.delete(&trial).await
        });
        tried.map_err(|error| match error {
            TierError::Missing => {
                StartError(format!("KV tier {}: there is no such bucket", tier.name))
            }
            error => StartError(format!("KV tier {error}{hint}")),
        })?;
        Ok(tier)
    }

    fn with(place: ObjectLocation, identity: &StoreIdentity) -> Result<Self, StartError> {
        let ObjectLocation {
            name,
            store,
            prefix,
            answer,
            ..
        } = place;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("kv-objects")
            .enable_all()
            .build()
            .map_err(|error| StartError(format!("KV tier {name}: no threads: {error}")))?;
        let (names, runtime) = (Names::new(identity), Threads(Some(runtime)));
        Ok(Self {
            name,
            store,
            prefix,
            answer,
            names,
            runtime,
        })
    }

    fn at(&self, name: &str) -> Path {
        self.prefix
            .parts()
            .chain(name.split('/').map(Into::into))
            .collect()
    }

    fn part(&self, key: &PartKey) -> Path {
        self.at(&format!(
            "{}/{}",
            self.names.chunk(&key.digest),
            key.name_in_chunk()
        ))
    }

    /// Runs a request to completion on this thread, up to the time-out.
    fn call<T, E: Into<Trouble>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, TierError> {
        let limited = async { tokio::time::timeout(self.answer, work).await };
        match self.runtime.block_on(limited) {
            Ok(done) => done.map_err(|error| error.into().at(&self.name)),
            Err(_) => Err(TierError::Failed(format!(
                "{} did not answer within {:?}",
                self.name, self.answer
            ))),
        }
    }

    async fn fetch(
        &self,
        key: &PartKey,
        path: &Path,
        into: &mut [&mut [u8]],
    ) -> Result<(), Trouble> {
        let bytes: usize = into.iter().map(|slice| slice.len()).sum();
        let found = self.store.get(path).await?;
        let wanted = (HEADER_BYTES + bytes) as u64;
        if found.meta.size != wanted {
            return Err(Trouble::Damaged(format!(
                "{} bytes instead of {wanted}",
                found.meta.size
            )));
        }
        let mut filling = Filling::new(into);
        let mut stream = found.into_stream();
        while let Some(piece) = stream.try_next().await? {
            if !filling.copy(&piece) {
                return Err(Trouble::Damaged("more bytes than were announced".into()));
            }
        }
        filling.verify(&self.names, key).map_err(Trouble::Damaged)
    }

    /// Deletes all objects under `root` whose names begin with `start`.
    fn remove_below(&self, root: &Path, start: &str) -> Result<(), TierError> {
        let start = format!("{root}/{start}");
        let parts = self.store.list(Some(root));
        let wanted = parts.try_filter(|part| ready(part.location.as_ref().starts_with(&start)));
        let deleting =
            |part: object_store::ObjectMeta| async move { self.delete(&part.location).await };
        self.call(wanted.try_for_each_concurrent(AT_ONCE, deleting))
    }

    async fn exists(&self, path: &Path) -> Result<bool, Error> {
        match self.store.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes an object; a missing one is not an error.
    async fn delete(&self, path: &Path) -> Result<(), Error> {
        match self.store.delete(path).await {
            Err(Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }
}

impl Tier for Objects {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let path = self.part(key);
        let done = self.call(self.fetch(key, &path, into));
        if matches!(done, Err(TierError::Damaged(_))) {
            // best effort: if it fails, the part is found damaged and deleted at the next load
            let _ = self.call(self.delete(&path));
        }
        done
    }

    fn store(&self, key: &PartKey, from: &[u8], parent: Option<Digest>) -> Result<(), TierError> {
        let path = self.part(key);
        if self.call(self.exists(&path))? {
            return Ok(());
        }
        let value = [&self.names.header(key, from, parent)[..], from].concat();
        self.call(self.store.put(&path, value.into()))
            .map(drop)
            .map_err(|error| match error {
                TierError::Missing => {
                    TierError::Failed(format!("{}: the bucket is gone", self.name))
                }
                error => error,
            })
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        let paths: Vec<Path> = keys.iter().map(|key| self.part(key)).collect();
        let heads = stream::iter(paths.iter().map(|path| self.exists(path)));
        self.call(heads.buffered(AT_ONCE).try_collect::<Vec<bool>>())
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        self.remove_below(&self.at(&self.names.chunk(digest)), "")
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let start = Names::start(group);
        self.remove_below(&self.at(self.names.root()), &start)
    }
}

/// Why a request failed.
enum Trouble {
    Store(Error),
    Damaged(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Trouble {
    fn at(self, name: &str) -> TierError {
        match self {
            Self::Damaged(what) => TierError::Damaged(format!("{name}: {what}")),
            Self::Store(Error::NotFound { .. }) => TierError::Missing,
            Self::Store(error) => {
                let text = format!("{name}: {}", told(&error));
                match full(&error) {
                    true => TierError::Full(text),
                    false => TierError::Failed(text),
                }
            }
        }
    }
}

/// The error text and its root cause, which clients omit. Truncated, because servers return whole
/// documents.
fn told(error: &Error) -> String {
    const ENOUGH: usize = 600;
    let mut text = error.to_string();
    if let Some((at, _)) = text.char_indices().nth(ENOUGH) {
        text.truncate(at);
        text.push_str("...");
    }
    match causes(error).last().map(ToString::to_string) {
        Some(root) if root.len() < ENOUGH && !text.contains(&root) => format!("{text}: {root}"),
        _ => text,
    }
}

fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&error| error.source())
}

fn full(error: &Error) -> bool {
    let mut kinds = causes(error).filter_map(|error| error.downcast_ref().map(io::Error::kind));
    if kinds.any(|kind| {
        matches!(
            kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }) {
        return true;
    }
    // S3-compatible servers with finite disks return these errors; S3 itself is never full
    let text = error.to_string();
    ["StorageFull", "507 Insufficient Storage", "QuotaExceeded"]
        .iter()
        .any(|words| text.contains(words))
}

/// A runtime that can be dropped without waiting for hanging tasks.
struct Threads(Option<Runtime>);

impl Threads {
    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        #[expect(clippy::expect_used, reason = "taken in drop only")]
        self.0
            .as_ref()
            .expect("the runtime is there until it is dropped")
            .block_on(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
