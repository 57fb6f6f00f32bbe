//! Reads and writes between files and caller memory, buffered or direct, in pieces that are
//! checksummed while in the CPU cache.

use std::fs::{DirBuilder, File};
use std::io::{self, IoSliceMut};
use std::iter;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::format::{Checksum, HEADER_BYTES, HeaderPage};

/// Size of a piece that is read and then checksummed: fits the second-level cache and is long
/// enough for efficient disk reads.
const PIECE: usize = 512 << 10;
/// Alignment for direct I/O with 512-byte sectors. Devices with larger sectors return EINVAL, and
/// the read falls back to buffered I/O.
const SECTOR: usize = 512;

/// Read strategy and its counters: direct I/O if file system and alignment allow it, except for
/// files already in the page cache.
pub(crate) struct Io {
    /// Use direct I/O even for cached files.
    always: bool,
    /// The file system does not support direct I/O.
    refused: AtomicBool,
    /// Number of files read with direct I/O.
    pub(crate) direct_reads: AtomicU64,
    /// Number of files read through the page cache.
    pub(crate) buffered_reads: AtomicU64,
}

/// A page aligned for direct I/O of a header.
#[repr(align(4096))]
struct Page(HeaderPage);

impl Io {
    /// With `always`, cached files are read with direct I/O too.
    pub(crate) fn new(always: bool) -> Self {
        Self {
            always,
            refused: AtomicBool::new(false),
            direct_reads: AtomicU64::new(0),
            buffered_reads: AtomicU64::new(0),
        }
    }

    /// Reads the header page and then `into`, slice by slice; returns the page and the CRC-64 of
    /// `into`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is too short.
    pub(crate) fn read(
        &self,
        file: &File,
        into: &mut [&mut [u8]],
    ) -> io::Result<(HeaderPage, u64)> {
        let payload: usize = into.iter().map(|slice| slice.len()).sum();
        let aligned = into.iter().all(|s| is_aligned(s.as_ptr(), s.len()));
        let direct = aligned
            && !self.refused.load(Ordering::Relaxed)
            && (self.always || !is_cached(file, payload))
            && self.past_cache(file);
        let count = if direct {
            &self.direct_reads
        } else {
            &self.buffered_reads
        };
        count.fetch_add(1, Ordering::Relaxed);
        match read_summed(file, into) {
            Err(error) if direct && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.through_cache(file)?;
                read_summed(file, into)
            }
            answer => answer,
        }
    }

    /// Enables direct I/O for `file`; false if unsupported.
    fn past_cache(&self, file: &File) -> bool {
        let done = rustix::fs::fcntl_setfl(file, OFlags::DIRECT).is_ok();
        if !done {
            self.refused.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Disables direct I/O again, for file systems that accept the flag but reject the addresses or
    /// lengths.
    fn through_cache(&self, file: &File) -> io::Result<()> {
        self.refused.store(true, Ordering::Relaxed);
        Ok(rustix::fs::fcntl_setfl(file, OFlags::empty())?)
    }
}

/// Fills a new file with the header page and the payload `from`. `header` builds the header page
/// from the payload's CRC-64; the page is written last. The file gets its final length at the
/// start, so that other processes account for it.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn fill(
    file: &File,
    from: &[u8],
    header: impl FnOnce(u64) -> HeaderPage,
) -> io::Result<()> {
    file.set_len(super::layout::file_bytes(from.len() as u64))?;
    let (mut sum, mut at) = (Checksum::new(), HEADER_BYTES as u64);
    for piece in from.chunks(PIECE) {
        sum.update(piece);
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    file.write_all_at(&header(sum.value()), 0)
}

/// Creates a file for writing, readable by its owner only, since KV reveals the prompt.
///
/// # Errors
/// `NotFound` if its directory is missing, and errors of the file system.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(File::from(rustix::fs::open(path, flags, mode)?))
}

/// Creates a directory and its missing parents, accessible by the owner only.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a regular file for reading. Rejects a FIFO or device at this path without blocking.
///
/// # Errors
/// `InvalidData` if it is not a regular file, and errors of the file system.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let wrong = io::Error::new(io::ErrorKind::InvalidData, "not a regular file");
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // The path is a socket.
        Err(Errno::NXIO) => return Err(wrong),
        opened => File::from(opened?),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(wrong),
    }
}

/// Closes a written file and reports errors. A network file system may only report lost data at
/// this point, and a drop would ignore it.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: `into_raw_fd` transferred ownership of the open descriptor to this function, which
    // does not use it afterwards.
    Ok(unsafe { rustix::io::try_close(file.into_raw_fd()) }?)
}

/// Treats the removal of a file that is already gone as done.
pub(crate) fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

/// Whether the error means that the file is missing, or was removed by another machine.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
    )
}

fn is_aligned(address: *const u8, bytes: usize) -> bool {
    address.addr().is_multiple_of(SECTOR) && bytes.is_multiple_of(SECTOR)
}

fn read_summed(file: &File, into: &mut [&mut [u8]]) -> io::Result<(HeaderPage, u64)> {
    let mut page = Page([0; HEADER_BYTES]);
    let mut sum = Checksum::new();
    let mut at = 0;
    let payload = into.iter_mut().flat_map(|slice| slice.chunks_mut(PIECE));
    let mut rest = iter::once(page.0.as_mut_slice()).chain(payload).peekable();
    while rest.peek().is_some() {
        // The header is read with the first piece, which saves a request.
        let header = usize::from(at == 0);
        let limit = PIECE + header * HEADER_BYTES;
        let (mut piece, mut bytes) = (Vec::new(), 0);
        while let Some(slice) = rest.next_if(|next| bytes == 0 || bytes + next.len() <= limit) {
            bytes += slice.len();
            piece.push(slice);
        }
        let mut slices: Vec<_> = piece
            .iter_mut()
            .map(|slice| IoSliceMut::new(slice))
            .collect();
        read_all(file, &mut slices, at)?;
        at += bytes as u64;
        piece
            .iter()
            .skip(header)
            .for_each(|slice| sum.update(slice));
    }
    drop(rest);
    Ok((page.0, sum.value()))
}

/// The kernel's bound on the slices of one call (`IOV_MAX`).
const MOST_SLICES: usize = 1024;

fn read_all(file: &File, mut slices: &mut [IoSliceMut<'_>], mut at: u64) -> io::Result<()> {
    IoSliceMut::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = slices.len().min(MOST_SLICES);
        let bytes = rustix::io::retry_on_intr(|| {
            rustix::io::preadv(file.as_fd(), &mut slices[..some], at)
        })?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += bytes as u64;
        IoSliceMut::advance_slices(&mut slices, bytes);
    }
    Ok(())
}

/// Whether a file is in the page cache, judged by a sample of its pages; readahead fetches any that
/// are missing.
///
/// Uses `mincore`, because `preadv2(RWF_NOWAIT)` starts readahead for missing pages, so the file
/// would look cached to the next query. Samples, because each page costs a lookup: 0.1 ms in total
/// for a file of 2 MB.
fn is_cached(file: &File, payload: usize) -> bool {
    const SAMPLES: usize = 8;
    let bytes = HEADER_BYTES + payload;
    let page = rustix::param::page_size();
    let last = bytes.div_ceil(page) - 1;
    // SAFETY: a new mapping at an address chosen by the kernel. Its bytes are never read, so a
    // file that shrinks meanwhile cannot cause a fault. All queried pages lie in the mapping, each
    // takes one byte of the result, and the mapping is removed at the end.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if map == libc::MAP_FAILED {
            return true;
        }
        let resident = (0..SAMPLES).all(|sample| {
            let mut answer = 0_u8;
            let at = map.cast::<u8>().add(last * sample / (SAMPLES - 1) * page);
            libc::mincore(at.cast(), page, &raw mut answer) != 0 || answer & 1 == 1
        });
        libc::munmap(map, bytes);
        resident
    }
}
