//! Large memory regions from the operating system, on huge pages if available, with optional
//! prefaulting.
//!
//! A step reads all weights and much of the KV pool. With 4 KiB pages, every page costs a page
//! table walk, which is twice as deep in a virtual machine. Pages of 2 MiB need few walks. The page
//! fault at a first access takes about 6 us in a virtual machine, ten times as long as copying a
//! page.

mod region;
mod touch;
mod trim;

pub use region::Region;
pub use touch::{give_way, populate};
pub use trim::trim;
