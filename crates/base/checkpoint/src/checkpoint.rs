//! Opens a checkpoint and looks up its tensors.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::error::{Fault, FormatError, Unreadable};
use crate::safetensors::{self, StoredTensor};
use crate::{DType, GgufHeader, TensorView, split};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Maximum size of a shard index. The largest published checkpoints stay below 20 MB.
const LARGEST_INDEX: u64 = 256 << 20;
/// Bytes per read when a failed range is searched for its read error.
const STEP: usize = 1 << 20;
const PAGE: usize = 4096;

/// A GGUF file or a Hugging Face directory of safetensors weights, memory-mapped and fully checked.
///
/// The files must not be truncated while the checkpoint is open: the operating system answers a
/// read past the new end with SIGBUS. Replacing a file (write a new one, rename it over) is safe.
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) files: Vec<MappedFile>,
    pub(crate) tensors: BTreeMap<String, Entry>,
    pub(crate) gguf: Option<GgufHeader>,
}

/// Location of a tensor.
pub(crate) struct Entry {
    /// Index into `Checkpoint::files`.
    pub(crate) file: usize,
    /// `Err` holds the name of an unsupported type.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
}

pub(crate) struct MappedFile {
    path: PathBuf,
    file: File,
    pub(crate) map: Mmap,
}

impl Checkpoint {
    /// Opens a GGUF file, a `.safetensors` file, or a directory with `model.safetensors` or a shard
    /// index.
    ///
    /// # Errors
    /// I/O errors, paths without a checkpoint, and all defects of a header: see [`FormatError`].
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        if path.is_dir() {
            return Self::open_directory(path);
        }
        let file = MappedFile::open(path)?;
        if GgufHeader::is_gguf(&file.map) {
            Self::from_gguf(path, file)
        } else if path
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            let tensors = file.safetensors()?;
            Self::from_shards(path, vec![(file, tensors)])
        } else {
            Err(not_a_checkpoint(
                path,
                "neither a GGUF file (no magic number) nor named *.safetensors",
            ))
        }
    }

    fn open_directory(path: &Path) -> Result<Self, FormatError> {
        if path.join(SINGLE).is_file() {
            let file = MappedFile::open(&path.join(SINGLE))?;
            let tensors = file.safetensors()?;
            Self::from_shards(path, vec![(file, tensors)])
        } else if path.join(INDEX).is_file() {
            Self::open_sharded(path)
        } else {
            Err(not_a_checkpoint(
                path,
                format!("the directory has neither {SINGLE} nor {INDEX}"),
            ))
        }
    }

    fn open_sharded(path: &Path) -> Result<Self, FormatError> {
        let index = path.join(INDEX);
        let weight_map = read_index(&index)?;
        let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, file) in &weight_map {
            wanted.entry(file).or_default().push(name);
        }
        let mut shards = Vec::with_capacity(wanted.len());
        for (file_name, names) in wanted {
            let file = MappedFile::open(&path.join(file_name))?;
            let tensors = file.select(&names)?;
            shards.push((file, tensors));
        }
        Self::from_shards(path, shards)
    }

    fn from_gguf(path: &Path, first: MappedFile) -> Result<Self, FormatError> {
        let mut header = first.gguf()?;
        let others = split::siblings(path, &header);
        let others = others.map_err(|problem| not_a_checkpoint(path, problem))?;
        let (mut files, mut tensors) = (vec![first], BTreeMap::new());
        add(&mut tensors, &header, 0);
        for path in others {
            let file = MappedFile::open(&path)?;
            let part = file.gguf()?;
            let whole = split::check(&part, &header, files.len());
            whole.map_err(|problem| not_a_checkpoint(&path, problem))?;
            add(&mut tensors, &part, files.len());
            header.tensors.extend(part.tensors);
            files.push(file);
        }
        if tensors.len() != header.tensors.len() {
            let problem = "two parts of the split GGUF have a tensor of the same name";
            return Err(not_a_checkpoint(path, problem));
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            tensors,
            gguf: Some(header),
        })
    }

    /// `shards` are files, each with its tensors that belong to the checkpoint; tensor names are
    /// unique.
    fn from_shards(
        path: &Path,
        shards: Vec<(MappedFile, Vec<StoredTensor>)>,
    ) -> Result<Self, FormatError> {
        let mut files = Vec::with_capacity(shards.len());
        let mut tensors = BTreeMap::new();
        for (file, stored) in shards {
            for tensor in stored {
                let entry = Entry {
                    file: files.len(),
                    dtype: tensor.dtype,
                    shape: tensor.shape,
                    range: tensor.range,
                };
                tensors.insert(tensor.name, entry);
            }
            files.push(file);
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            tensors,
            gguf: None,
        })
    }

    /// The path given to [`Self::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, in byte order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// # Errors
    /// There is no such tensor, or its element type is not one of [`DType`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, FormatError> {
        let Some((name, entry)) = self.tensors.get_key_value(name) else {
            return Err(FormatError::MissingTensor {
                path: self.path.clone(),
                name: name.to_owned(),
            });
        };
        let dtype = entry
            .dtype
            .as_ref()
            .map_err(|dtype| FormatError::UnsupportedType {
                path: self.files[entry.file].path.clone(),
                name: name.clone(),
                dtype: dtype.clone(),
            })?;
        Ok(TensorView {
            name,
            dtype: *dtype,
            shape: entry.shape.clone(),
            data: self.data(entry),
            file: &self.files[entry.file].path,
            offset: entry.range.start,
        })
    }

    pub(crate) fn data(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file].map[entry.range.clone()]
    }

    /// The header, if this is a GGUF file.
    pub fn gguf(&self) -> Option<&GgufHeader> {
        self.gguf.as_ref()
    }

    /// A tensor's name, file number and byte range. If the tensor stacks experts, the range covers
    /// one `expert`.
    pub(crate) fn place(
        &self,
        tensor: &str,
        expert: Option<usize>,
    ) -> Option<(&str, usize, Range<usize>)> {
        let (name, entry) = self.tensors.get_key_value(tensor)?;
        let mut range = entry.range.clone();
        let stacked = entry.shape.first().copied().unwrap_or(0);
        if let Some(expert) = expert.filter(|&e| e < stacked && entry.shape.len() > 1) {
            let each = range.len() / stacked;
            range.start += expert * each;
            range.end = range.start + each;
        }
        Some((name, entry.file, range))
    }
}

impl MappedFile {
    fn open(path: &Path) -> Result<Self, FormatError> {
        let io = |source| FormatError::Io {
            path: path.to_owned(),
            source,
        };
        // Checked before opening: opening a FIFO would block until a writer appears.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(not_a_checkpoint(path, "not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and private to this process; callers of
        // `Checkpoint` must not let the file be truncated while it is mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            map,
        })
    }

    /// Reads and maps the pages of `range`, which belongs to `tensor`.
    pub(crate) fn populate(&self, range: &Range<usize>, tensor: &str) -> Result<(), Unreadable> {
        #[cfg(target_os = "linux")]
        if self
            .map
            .advise_range(Advice::PopulateRead, range.start, range.len())
            .is_ok()
        {
            return Ok(());
        }
        // On failure, read the range to get the I/O error; if reading succeeds, the kernel is too
        // old to populate.
        let mut buffer = vec![0; STEP];
        for start in range.clone().step_by(STEP) {
            let piece = &mut buffer[..STEP.min(range.end - start)];
            self.read_at(piece, start, tensor)?;
        }
        for at in range.clone().step_by(PAGE) {
            std::hint::black_box(self.map[at]);
        }
        Ok(())
    }

    /// Makes the operating system start reading `range` asynchronously. Best effort.
    pub(crate) fn will_need(&self, range: &Range<usize>) {
        let advice = Advice::WillNeed;
        // If the hint fails, loading is slower but correct.
        drop(self.map.advise_range(advice, range.start, range.len()));
    }

    /// Reads bytes of `tensor` without the mapping and without read-ahead.
    pub(crate) fn read_at(
        &self,
        out: &mut [u8],
        offset: usize,
        tensor: &str,
    ) -> Result<(), Unreadable> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done;
            let unreadable = |source| Unreadable {
                path: self.path.clone(),
                tensor: tensor.to_owned(),
                offset: at,
                source: Arc::new(source),
            };
            match self.file.read_at(&mut out[done..], at as u64) {
                Ok(0) => {
                    let problem = "the file ends here, and was longer when it was opened";
                    return Err(unreadable(io::Error::other(problem)));
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        Ok(())
    }

    /// Lets the operating system reclaim pages; they are read again on access.
    pub(crate) fn release(&self, range: &Range<usize>) {
        let (advice, len) = (UncheckedAdvice::DontNeed, range.len());
        // SAFETY: the mapping is a read-only view of a file and its pages are never written, so
        // dropped pages come back with the same bytes; outstanding slices remain valid.
        let advised = unsafe { self.map.unchecked_advise_range(advice, range.start, len) };
        // If the call fails, memory use is higher but the data is correct.
        drop(advised);
    }

    fn gguf(&self) -> Result<GgufHeader, FormatError> {
        GgufHeader::parse(&self.map).map_err(|fault| self.malformed(fault))
    }

    fn malformed(&self, fault: Fault) -> FormatError {
        FormatError::Malformed {
            path: self.path.clone(),
            fault,
        }
    }

    /// The tensors with these names, all of which must be in this safetensors file.
    fn select(&self, names: &[&str]) -> Result<Vec<StoredTensor>, FormatError> {
        let stored = self.safetensors()?.into_iter();
        let mut stored: BTreeMap<String, _> =
            stored.map(|tensor| (tensor.name.clone(), tensor)).collect();
        let take = |&name: &&str| {
            stored
                .remove(name)
                .ok_or_else(|| FormatError::MissingTensor {
                    path: self.path.clone(),
                    name: name.to_owned(),
                })
        };
        names.iter().map(take).collect()
    }

    fn safetensors(&self) -> Result<Vec<StoredTensor>, FormatError> {
        safetensors::parse(&self.map).map_err(|fault| self.malformed(fault))
    }
}

/// Adds the tensors of `header`, which file number `at` has.
fn add(tensors: &mut BTreeMap<String, Entry>, header: &GgufHeader, at: usize) {
    for info in &header.tensors {
        let entry = Entry {
            file: at,
            dtype: Ok(info.dtype),
            shape: info.shape.clone(),
            range: info.range.clone(),
        };
        tensors.insert(info.name.clone(), entry);
    }
}

fn not_a_checkpoint(path: &Path, problem: impl Into<String>) -> FormatError {
    FormatError::NotACheckpoint {
        path: path.to_owned(),
        problem: problem.into(),
    }
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, FormatError> {
    let io = |source| FormatError::Io {
        path: path.to_owned(),
        source,
    };
    let malformed = |fault| FormatError::Malformed {
        path: path.to_owned(),
        fault,
    };
    let size = fs::metadata(path).map_err(io)?.len();
    if size > LARGEST_INDEX {
        let problem = format!("{size} bytes; an index has at most {LARGEST_INDEX}");
        return Err(malformed(Fault::new("index", 0, problem)));
    }
    let bytes = fs::read(path).map_err(io)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| malformed(Fault::new("index", error.valid_up_to(), "not UTF-8")))?;
    safetensors::parse_index(text).map_err(malformed)
}
