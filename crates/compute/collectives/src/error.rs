use std::path::PathBuf;

/// Communication between the ranks has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The group was ended, with a reason.
    #[error("the group of ranks was ended: {0}")]
    Ended(String),
    /// A stream to another host failed.
    #[error("{0}")]
    Cut(String),
    /// A wait for another rank timed out.
    #[error("rank {rank} said nothing for {seconds} s")]
    Silent {
        /// The rank that did not answer.
        rank: usize,
        /// The time-out in seconds.
        seconds: u64,
    },
}

/// Error of setting up or using a communication channel.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// The file could not be created, opened or mapped.
    #[error("shared memory at {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A stream could not be opened.
    #[error("{address}: {source}")]
    Address {
        /// The remote address.
        address: std::net::SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The key of a stream is not 64 hexadecimal digits.
    #[error("the key of a stream is 64 hexadecimal digits")]
    Key,
    /// The file was created with a different shape (number of ranks, readers or slots, or their
    /// sizes).
    #[error("shared memory at {path} was made for {found}, not for {expected}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The shape in its header.
        found: String,
        /// The expected shape.
        expected: String,
    },
    /// The message does not fit in a slot of the ring.
    #[error("{len} bytes do not fit a slot of {capacity}")]
    TooLong {
        /// Size of the message in bytes.
        len: usize,
        /// Size of a slot in bytes.
        capacity: usize,
    },
    /// A peer is lost.
    #[error(transparent)]
    Group(#[from] GroupError),
}
