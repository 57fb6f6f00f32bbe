//! Large memory from the operating system: on huge pages where it has them, and backed ahead of its
//! use when asked.
//!
//! A step reads all weights and much of the KV pool. On 4 KiB pages every page costs a walk of the
//! page tables, twice as deep in a virtual machine; on 2 MiB pages hardly any does. And a page that
//! is touched for the first time takes the system about 6 us in a virtual machine, ten times as
//! long as copying into it.

mod region;
mod touch;
mod trim;

pub use region::Region;
pub use touch::{give_way, populate};
pub use trim::trim;
