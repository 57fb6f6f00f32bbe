//! The tasks of a fleet: one for each replica, one for the source of backends, and their
//! supervisor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_http::Client;
use penstock_routing::ReplicaId;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use crate::backend::Target;
use crate::discovery::List;
use crate::polling::Poller;
use crate::shared::FleetState;

/// Interval between evaluations of time-dependent state ([`FleetState::tick`]).
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Interval between updates of the throughput estimates.
pub(crate) const LEARN: Duration = Duration::from_secs(1);

/// The supervising task; aborting it ends all tasks.
pub(crate) async fn supervise(
    shared: Arc<FleetState>,
    client: Client,
    mut lists: watch::Receiver<List>,
) {
    let mut list = lists.borrow_and_update().clone();
    let mut pollers = Pollers::default();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let every = |period| interval_at(Instant::now() + period, period);
    let compared = Duration::from_secs_f64(shared.settings.outliers.period_s.max(0.1));
    let (mut learn, mut compare) = (every(LEARN), every(compared));
    let mut more = true;
    loop {
        let targets = list.borrow_and_update().clone();
        if let Some(targets) = targets {
            pollers.replace(&shared, &client, targets);
        }
        loop {
            tokio::select! {
                changed = list.changed(), if more => {
                    more = changed.is_ok();
                    break;
                }
                Ok(()) = lists.changed() => {
                    list = lists.borrow_and_update().clone();
                    more = true;
                    break;
                }
                _ = learn.tick() => shared.learn(),
                _ = compare.tick() => shared.compare(),
                _ = tick.tick() => {
                    shared.tick();
                    pollers.remove(&shared.remove_drained());
                }
            }
        }
    }
}

/// Handles of the tasks that poll the replicas.
#[derive(Default)]
struct Pollers {
    tasks: JoinSet<()>,
    handles: HashMap<ReplicaId, AbortHandle>,
}

impl Pollers {
    fn replace(&mut self, shared: &Arc<FleetState>, client: &Client, targets: Vec<Target>) {
        for entry in shared.replace_members(targets) {
            let poller = Poller {
                shared: shared.clone(),
                client: client.clone(),
                id: entry.id,
                member: entry.member,
            };
            self.handles
                .insert(entry.id, self.tasks.spawn(poller.run()));
        }
    }

    fn remove(&mut self, ids: &[ReplicaId]) {
        for id in ids {
            if let Some(handle) = self.handles.remove(id) {
                handle.abort();
            }
        }
        while self.tasks.try_join_next().is_some() {}
    }
}
