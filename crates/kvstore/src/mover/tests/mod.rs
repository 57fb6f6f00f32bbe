//! The mover between a fake pool and fake tiers.

mod fakes;
mod health;
mod model;
mod order;
