//! The benchmark client: sends requests when they are due and stamps what comes back.
