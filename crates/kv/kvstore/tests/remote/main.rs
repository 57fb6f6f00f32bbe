//! Remote tiers against real servers: what is kept, what is damaged, what happens when the server
//! goes.
#![allow(clippy::unwrap_used)]

mod memory;
mod model;
mod parts;
mod redis;
mod redis_cluster;
mod redis_faults;
mod redis_server;
mod s3;
mod s3_server;
mod toy;
