//! Time of a decision, by profile and number of replicas, beside that of the last run.
//!
//! `cargo bench -p penstock-routing --bench pick`

use std::time::Duration;

use penstock_routing::{
    Picker, Profile, ProfileError, ProfileSpec, Replica, ReplicaId, Request, SCORERS, ScorerSpec,
    SloSpec, pick,
};
use tiny_bench::{BenchmarkConfig, bench_with_configuration_labeled, black_box};

const PROMPT_TOKENS: f32 = 4_000.0;

/// Replicas under loads that differ.
fn fleet(replicas: u32) -> Vec<Replica> {
    let replica = |id: u32| Replica {
        waiting: (id % 5) as f32,
        running: (id % 17) as f32,
        kv_use: (id % 10) as f32 / 10.0,
        backlog_tokens: (id % 7) as f32 * 500.0,
        ..Replica::new(ReplicaId(id), format!("replica-{id}:8000"))
    };
    (0..replicas).map(replica).collect()
}

/// A profile with every scorer.
fn all_scorers() -> ProfileSpec {
    let scorers = SCORERS.iter().map(|name| ScorerSpec {
        name: (*name).to_owned(),
        weight: 1.0,
    });
    ProfileSpec {
        filters: Vec::new(),
        scorers: scorers.collect(),
        picker: Picker::MaxScore,
        slo: SloSpec::default(),
    }
}

fn main() -> Result<(), ProfileError> {
    let config = BenchmarkConfig {
        warm_up_time: Duration::from_millis(500),
        measurement_time: Duration::from_secs(2),
        ..BenchmarkConfig::default()
    };
    let profiles = [
        ("default", ProfileSpec::default()),
        ("all-scorers", all_scorers()),
    ];
    for (name, spec) in profiles {
        let profile = Profile::new(spec)?;
        for replicas in [8, 64, 512] {
            let fleet = fleet(replicas);
            let cached: Vec<f32> = (0..replicas).map(|id| (id % 9) as f32 * 400.0).collect();
            let request = Request {
                prompt_tokens: PROMPT_TOKENS,
                cached_tokens: &cached,
                ..Request::default()
            };
            let label = format!("pick-{name}-{replicas}").leak();
            bench_with_configuration_labeled(label, &config, || {
                pick(&profile, black_box(&request), &fleet)
            });
        }
    }
    Ok(())
}
