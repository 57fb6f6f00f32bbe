use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine_client::testing::{Action, FakeEngine, Script, tokens};
use penstock_engine_client::{Engine, EngineState, Observer};
use penstock_wire::{Stage, StepStats};

use crate::common::*;

#[derive(Debug, Default)]
struct Recorder {
    stages: Mutex<Vec<Stage>>,
    steps: Mutex<Vec<u64>>,
}

impl Observer for Recorder {
    fn stage(&self, stage: &Stage) {
        self.stages.lock().unwrap().push(stage.clone());
    }

    fn step(&self, stats: &StepStats) {
        if stats.batch_tokens > 0 {
            self.steps.lock().unwrap().push(stats.step);
        }
    }
}

fn stages(count: u32) -> Vec<Stage> {
    let stage = |i| Stage {
        name: format!("stage {i}"),
        seconds: f64::from(i),
        detail: String::new(),
    };
    (0..count).map(stage).collect()
}

#[tokio::test]
async fn hears_every_stage_of_every_start_and_every_step() {
    let recorder = Arc::new(Recorder::default());
    let engine = Engine::start_observed(config(), recorder.clone()).unwrap();
    let script = Script {
        stages: stages(100),
        ..Script::new(|_| tokens(&(0..300).collect::<Vec<_>>(), Duration::ZERO))
    };
    let fake = FakeEngine::connect(engine.socket_path(), script.clone()).await;
    engine.wait_ready().await.unwrap();
    all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(
        *recorder.steps.lock().unwrap(),
        (1..=300).collect::<Vec<_>>()
    );

    fake.kill();
    state_that(&engine, |state| matches!(state, EngineState::Starting)).await;
    let _again = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    let heard = recorder.stages.lock().unwrap().clone();
    assert_eq!(heard, [stages(100), stages(100)].concat());
}

#[tokio::test]
async fn a_burst_of_stages_and_a_failure_is_heard_whole() {
    let recorder = Arc::new(Recorder::default());
    let engine = Engine::start_observed(config(), recorder.clone()).unwrap();
    let script = Script {
        stages: stages(20),
        ..Script::new(|_| vec![Action::Fatal("broken".to_owned())])
    };
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(failure(events.last()), "broken");
    assert_eq!(*recorder.stages.lock().unwrap(), stages(20));
}

/// A fault of ours, in the task that supervises the engine.
#[derive(Debug)]
struct Panics;

impl Observer for Panics {
    fn step(&self, stats: &StepStats) {
        assert_eq!(stats.batch_tokens, 0, "this test's panic");
    }
}

#[tokio::test]
async fn a_supervisor_that_ends_unasked_is_a_state_of_its_own_and_ends_requests() {
    let engine = Engine::start_observed(config(), Arc::new(Panics)).unwrap();
    let script = Script::new(|_| tokens(&[1, 2], QUICK));
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert!(
        failure(events.last()).contains("ended unasked"),
        "{events:?}"
    );
    state_that(&engine, |state| matches!(state, EngineState::Unsupervised)).await;
    assert!(engine.submit(request()).is_err());
}
