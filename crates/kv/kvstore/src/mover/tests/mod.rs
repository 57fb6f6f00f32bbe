//! The mover between a fake pool and fake tiers.

mod fakes;
mod groups;
mod health;
mod model;
mod order;
