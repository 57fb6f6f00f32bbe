//! Pools of KV blocks for the KV mover: a decoder's pool, or memory owned by Python.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use penstock_kernels::{BlockRead, BlockWrite, PoolHandle};
use penstock_kvstore::{HostBlocks, HostRead, HostWrite, Pool};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The pool of one KV group.
pub(crate) enum Blocks {
    Decoder(PoolHandle),
    Host(HostBlocks),
}

/// A block lent for reading.
pub(crate) enum Read {
    Decoder(BlockRead),
    Host(HostRead),
}

/// A block lent for writing.
pub(crate) enum Write {
    Decoder(BlockWrite),
    Host(HostWrite),
}

impl Blocks {
    /// A pool of `blocks` blocks of `block_bytes` bytes in a writable buffer of exactly this total
    /// size. The buffer stays exported, and thus at its address, until the last guard of a block is
    /// dropped.
    pub(crate) fn over(
        memory: &Bound<'_, PyAny>,
        blocks: usize,
        block_bytes: usize,
    ) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(memory)?;
        let (bytes, given) = (blocks.checked_mul(block_bytes), buffer.len_bytes());
        if buffer.readonly() || !buffer.is_c_contiguous() || bytes != Some(given) {
            return Err(PyValueError::new_err(format!(
                "{blocks} blocks of {block_bytes} bytes need as much memory in one piece that may \
                 be written, not {given} bytes"
            )));
        }
        let base = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        // SAFETY: the buffer has this size, was initialised outside Rust, and is owned by the pool.
        // Python does not use blocks of a transfer (`KvMover.over` in `_native.pyi`); the engine
        // claims each block for one transfer or for steps.
        let pool = unsafe { HostBlocks::new(buffer, base, blocks, block_bytes) };
        Ok(Self::Host(pool))
    }
}

impl Pool for Blocks {
    type Read = Read;
    type Write = Write;

    fn read(&self, block: usize) -> Option<Read> {
        match self {
            Self::Decoder(pool) => pool.read(block).map(Read::Decoder),
            Self::Host(pool) => pool.read(block).map(Read::Host),
        }
    }

    fn write(&self, block: usize) -> Option<Write> {
        match self {
            Self::Decoder(pool) => pool.write(block).map(Write::Decoder),
            Self::Host(pool) => pool.write(block).map(Write::Host),
        }
    }

    fn block_bytes(&self) -> usize {
        match self {
            Self::Decoder(pool) => pool.block_bytes(),
            Self::Host(pool) => pool.block_bytes(),
        }
    }
}

impl Deref for Read {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Decoder(block) => block,
            Self::Host(block) => block,
        }
    }
}

impl Deref for Write {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Decoder(block) => block,
            Self::Host(block) => block,
        }
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Decoder(block) => block,
            Self::Host(block) => block,
        }
    }
}
