//! Hedging: a request whose response has not begun after a delay is also sent to a second replica.
//! The first response to begin wins, and the other attempt is cancelled. A budget limits second
//! attempts, so that hedging does not worsen an overload.

mod page;
mod run;
mod settings;
mod state;

pub(crate) use page::hedge_page;
pub(crate) use run::attempt_hedged;
pub use settings::HedgeSettings;
pub(crate) use state::Hedging;
