//! Hedging: a request whose answer has not begun after a while is sent to a second replica, too.
//! The first answer wins, the other attempt is given up. A budget keeps it from adding to an
//! overload.

mod page;
mod run;
mod settings;
mod state;

pub(crate) use page::hedge_page;
pub(crate) use run::attempt_hedged;
pub use settings::HedgeSettings;
pub(crate) use state::Hedging;
