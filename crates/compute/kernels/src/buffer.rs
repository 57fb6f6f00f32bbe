//! Memory of the kernels: cache-line aligned vectors, and a shared mutable view for parallel tasks.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use penstock_memory::Region;

use crate::arena;

#[cfg(test)]
mod guarded;

/// Types for which all-zero bytes are a valid value and any bytes may be read.
///
/// # Safety
/// Implementors are plain numbers.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: plain numbers.
unsafe impl Plain for i8 {}
// SAFETY: plain numbers.
unsafe impl Plain for u16 {}
// SAFETY: plain numbers.
unsafe impl Plain for i32 {}
// SAFETY: plain numbers.
unsafe impl Plain for f32 {}

const LINE: usize = 64;
/// Minimum size in bytes of a long-lived allocation that is placed on huge pages.
const LARGE: usize = 64 << 10;

/// A zero-initialised slice of `T`, aligned to 64 bytes.
pub struct Aligned<T: Plain> {
    memory: Memory,
    ptr: NonNull<T>,
    len: usize,
}

enum Memory {
    /// From the global allocator, with the address that it returned, before alignment.
    Heap(NonNull<u8>),
    /// Part of a region on huge pages, kept mapped by this reference.
    Region { _kept: Arc<Region> },
    #[cfg(test)]
    Guarded { _kept: guarded::Pages },
}

// SAFETY: `Aligned` owns its memory like a `Box<[T]>`.
unsafe impl<T: Plain> Send for Aligned<T> {}
// SAFETY: same as for `Send`.
unsafe impl<T: Plain> Sync for Aligned<T> {}

impl<T: Plain> Aligned<T> {
    /// `len` zeros for a scratch buffer. In unit tests a guard page follows, so a read past the end
    /// faults.
    pub fn zeroed(len: usize) -> Self {
        #[cfg(test)]
        return Self::guarded(len);
        #[cfg(not(test))]
        Self::allocated(len)
    }

    #[cfg(test)]
    fn guarded(len: usize) -> Self {
        let bytes = (len * size_of::<T>()).next_multiple_of(LINE);
        let pages = guarded::Pages::map(bytes);
        Self {
            ptr: pages.last(bytes).cast(),
            memory: Memory::Guarded { _kept: pages },
            len,
        }
    }

    #[cfg_attr(test, allow(dead_code))]
    fn allocated(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero (`layout` adds a line).
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(raw) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the layout has LINE spare bytes, so the rounded-up address is inside it.
        let ptr = unsafe { raw.add(raw.align_offset(LINE)) }.cast();
        Self {
            memory: Memory::Heap(raw),
            ptr,
            len,
        }
    }

    /// `len` zeros for long-lived memory. Large buffers use huge pages if the system supports them.
    /// Pages are not touched until first use.
    pub fn lasting(len: usize) -> Self {
        let bytes = Self::layout(len).size();
        if bytes < LARGE {
            return Self::zeroed(len);
        }
        match arena::allocate(bytes) {
            Some((region, start)) => Self {
                memory: Memory::Region { _kept: region },
                ptr: start.cast(),
                len,
            },
            None => Self::zeroed(len),
        }
    }

    /// Pointer to the first item. Creates no reference to the whole slice, so owners can lend parts
    /// of it.
    pub(crate) fn base(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    /// Grows to at least `len` items. The contents are then unspecified.
    pub fn ensure(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }

    fn layout(len: usize) -> Layout {
        // One spare cache line, so that the address can be aligned here. For an aligned request the
        // allocator would write the zeros itself, and so touch every page.
        let bytes = len.saturating_mul(size_of::<T>()).saturating_add(LINE);
        match Layout::from_size_align(bytes, 16) {
            Ok(layout) => layout,
            Err(_) => panic!("a buffer of {len} items exceeds the address space"),
        }
    }
}

impl<T: Plain> Default for Aligned<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Plain> Drop for Aligned<T> {
    fn drop(&mut self) {
        if let Memory::Heap(raw) = self.memory {
            // SAFETY: allocated in `allocated` with the same layout.
            unsafe { dealloc(raw.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is valid for `len` initialised items.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

/// A mutable slice written by the tasks of one job, each task its own part.
pub(crate) struct SharedSlice<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: access is through `slice`, whose callers guarantee that live parts do not overlap.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}
// SAFETY: same as for `Sync`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            ptr: slice.as_mut_ptr(),
            len: slice.len(),
            life: PhantomData,
        }
    }

    /// The part `start .. start + len`.
    ///
    /// # Safety
    /// No two live parts overlap. Bounds are checked.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start <= self.len && len <= self.len - start,
            "part outside the shared slice"
        );
        // SAFETY: in bounds by the assertion; the caller guarantees that live parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }

    /// Pointer to item `start`, followed by at least `len` items.
    pub(crate) fn at(&self, start: usize, len: usize) -> *mut T {
        assert!(
            start <= self.len && len <= self.len - start,
            "part outside the shared slice"
        );
        // SAFETY: in bounds.
        unsafe { self.ptr.add(start) }
    }
}

/// Output: adjacent columns of some rows.
pub struct Columns<'a> {
    pub rows: &'a mut [f32],
    /// Row stride in numbers.
    pub ld: usize,
    /// The first column to write.
    pub first: usize,
}

impl<'a> Columns<'a> {
    /// Zeroes all columns of the first `rows` rows, except the `own` columns from `first` on, which
    /// a task writes.
    pub(crate) fn clear_beside(&mut self, rows: usize, own: usize) {
        if own < self.ld {
            for row in self.rows.chunks_exact_mut(self.ld).take(rows) {
                row[..self.first].fill(0.0);
                row[self.first + own..].fill(0.0);
            }
        }
    }

    pub(crate) fn share(self) -> SharedColumns<'a> {
        let Self { rows, ld, first } = self;
        let rows = SharedSlice::new(rows);
        SharedColumns { rows, ld, first }
    }
}

/// Output: numbers for each row of the batch and each head.
pub struct HeadColumns<'a> {
    /// Storage of the rows.
    pub rows: &'a mut [f32],
    /// Distance in numbers between consecutive rows of a head.
    pub row: usize,
    /// Distance in numbers between consecutive heads of a row.
    pub head: usize,
    /// Index in `rows` of the first number of row 0 and head 0.
    pub first: usize,
}

impl<'a> HeadColumns<'a> {
    pub(crate) fn share(self) -> SharedHeads<'a> {
        SharedHeads {
            row: self.row,
            head: self.head,
            first: self.first,
            rows: SharedSlice::new(self.rows),
        }
    }
}

/// [`HeadColumns`] written by the tasks of one job, each task its own part.
pub(crate) struct SharedHeads<'a> {
    pub(crate) rows: SharedSlice<'a, f32>,
    pub(crate) row: usize,
    pub(crate) head: usize,
    pub(crate) first: usize,
}

impl SharedHeads<'_> {
    pub(crate) fn start(&self, row: usize, head: usize) -> usize {
        self.first + row * self.row + head * self.head
    }

    /// The first `len` numbers of a row of a head.
    ///
    /// # Safety
    /// No two live parts overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, row: usize, head: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller guarantees that live parts do not overlap; `SharedSlice::slice` checks
        // the bounds.
        unsafe { self.rows.slice(self.start(row, head), len) }
    }
}

/// [`Columns`] written by the tasks of one job, each task its own part.
pub(crate) struct SharedColumns<'a> {
    pub(crate) rows: SharedSlice<'a, f32>,
    pub(crate) ld: usize,
    pub(crate) first: usize,
}
