use std::sync::Arc;
use std::time::Duration;

use penstock_engine_client::testing::{Action, FakeEngine, Script, reject, small_engine, tokens};
use penstock_engine_client::{
    Engine, EngineConfig, EngineError, EngineState, Event, FrontConnection, SubmitError,
};
use penstock_wire::{
    EngineFrame, Finish, FrontFrame, Hello, Output, SamplingParams, Step, StepStats, TokenRequest,
    WIRE_VERSION,
};
use tokio::net::UnixStream;

use crate::common::*;

#[tokio::test]
async fn requests_stream_their_own_tokens_and_end_once() {
    let script = Script::new(|add| tokens(&add.request.prompt, QUICK));
    let (engine, fake) = ready_engine(config(), script).await;
    let streams = (1..=40u32).map(|i| {
        let prompt: Vec<u32> = (i * 100..i * 100 + 5).collect();
        (
            prompt.clone(),
            engine
                .submit(TokenRequest {
                    prompt,
                    ..request()
                })
                .unwrap(),
        )
    });
    for (prompt, mut stream) in streams.collect::<Vec<_>>() {
        let events = all_events(&mut stream).await;
        assert_eq!(token_ids(&events), prompt);
        assert_eq!(events.iter().filter(|event| event.is_terminal()).count(), 1);
        assert!(events.last().unwrap().is_terminal());
    }
    assert!(fake.log().cancels.is_empty());
    assert!(engine.stats().step >= 200);
}

#[tokio::test]
async fn the_handshake_carries_limits() {
    let engine = Engine::start(config()).unwrap();
    assert!(matches!(engine.state(), EngineState::Starting));
    let refused = engine.submit(request()).unwrap_err();
    assert_eq!(
        refused,
        SubmitError::NotReady {
            reason: "the engine is starting".to_owned()
        }
    );
    assert_eq!(engine.healthy(), Err("the engine is starting".to_owned()));

    let script = open_ended();
    let limits = script.ready.clone();
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    assert_eq!(*engine.wait_ready().await.unwrap(), limits);
    assert_eq!(engine.healthy(), Ok(()));
}

#[tokio::test]
async fn a_full_queue_is_a_rejected_output() {
    let (engine, _fake) = ready_engine(config(), Script::new(|_| reject())).await;
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert!(
        matches!(
            &events[..],
            [Event::Output(Output {
                finish: Finish::Rejected,
                ..
            })]
        ),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_request_the_wire_cannot_carry_is_refused_at_once() {
    let (engine, _fake) = ready_engine(config(), open_ended()).await;
    let refused = engine
        .submit(TokenRequest {
            prompt: Vec::new(),
            ..request()
        })
        .unwrap_err();
    assert!(refused.to_string().contains("field prompt"), "{refused}");
}

#[tokio::test]
async fn dropping_a_stream_cancels_its_request_only() {
    let (engine, mut fake) = ready_engine(config(), open_ended()).await;
    let mut kept = engine.submit(request()).unwrap();
    let mut dropped = engine.submit(request()).unwrap();
    kept.next().await.unwrap();
    dropped.next().await.unwrap();
    let id = dropped.id();
    drop(dropped);
    let log = fake.wait_log(|log| !log.cancels.is_empty()).await;
    assert_eq!(log.cancels, [id]);
}

#[tokio::test]
async fn requests_that_were_left_before_they_were_written_are_taken_back() {
    let engine = Engine::start(config()).unwrap();
    let stream = UnixStream::connect(engine.socket_path()).await.unwrap();
    let mut peer = FrontConnection::new(stream);
    let hello = EngineFrame::Hello(Hello {
        wire_version: WIRE_VERSION,
        pid: 1,
    });
    for frame in [hello, EngineFrame::Ready(small_engine())] {
        FrontConnection::send(peer.outbox(), &frame);
    }
    engine.wait_ready().await.unwrap();
    // An engine that does not read: the socket takes some of these 16 MB.
    let held = Arc::new(());
    let long = |last: u32| TokenRequest {
        prompt: [vec![1; 8000], vec![last]].concat(),
        ..request()
    };
    let submit = |last| engine.submit_holding(long(last), held.clone()).unwrap();
    let left: Vec<_> = (0..500).map(|_| submit(1)).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(left);
    let written = Arc::strong_count(&held) - 1;
    assert!((1..100).contains(&written), "{written} of 500 were written");
    let mut last = submit(2);

    let (mut adds, mut cancels) = (Vec::new(), Vec::new());
    while cancels.len() < written || adds.len() <= written {
        match peer.next_frame().await.unwrap() {
            FrontFrame::Add(add) => adds.push(add),
            FrontFrame::Cancel(cancel) => cancels.extend(cancel.ids),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(adds.last().unwrap().request.prompt.last(), Some(&2));
    let first: Vec<u64> = adds[..written].iter().map(|add| add.id).collect();
    assert_eq!(first, cancels);
    assert_eq!(
        Arc::strong_count(&held) - 1,
        written + 1,
        "the engine has not ended them"
    );
    let outputs = adds.iter().map(|add| Output {
        id: add.id,
        finish: Finish::Cancelled,
        ..Output::default()
    });
    let step = Step {
        stats: StepStats::default(),
        outputs: outputs.collect(),
    };
    FrontConnection::send(peer.outbox(), &EngineFrame::Step(step));
    all_events(&mut last).await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn an_ended_stream_sends_no_cancel() {
    let script = Script::new(|add| match add.id {
        3 => Vec::new(),
        _ => tokens(&[1], QUICK),
    });
    let (engine, mut fake) = ready_engine(config(), script).await;
    let mut ended = engine.submit(request()).unwrap();
    all_events(&mut ended).await;
    drop(ended);
    let unread = engine.submit(request()).unwrap();
    state_after_steps(&engine, 2).await;
    drop(unread);
    let open = engine.submit(request()).unwrap();
    fake.wait_log(|log| log.adds.len() == 3).await;
    drop(open);
    let log = fake.wait_log(|log| log.cancels.len() == 1).await;
    assert_eq!(
        log.cancels,
        [3],
        "only the third was open when it was dropped"
    );
}

async fn state_after_steps(engine: &Engine, steps: u64) {
    while engine.stats().step < steps {
        tokio::time::sleep(QUICK).await;
    }
}

#[tokio::test]
async fn another_wire_version_is_named_and_the_engine_not_started_again() {
    let engine = Engine::start(EngineConfig {
        argv: shell("exec sleep 100"),
        ..config()
    })
    .unwrap();
    let script = Script {
        wire_version: WIRE_VERSION + 1,
        ..open_ended()
    };
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    let EngineError::NotReady { reason } = engine.wait_ready().await.unwrap_err() else {
        panic!("not NotReady")
    };
    let named = format!("wire version {}", WIRE_VERSION + 1);
    assert!(
        reason.contains(&named) && reason.contains("same Penstock release"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_dead_engine_fails_every_request_at_once_and_the_next_one_serves() {
    let script = Script::new(|add| match add.request.sampling.seed {
        0 => vec![Action::Send(Output {
            tokens: vec![9],
            ..Output::default()
        })],
        _ => vec![Action::Die],
    });
    let (engine, _fake) = ready_engine(config(), script).await;
    let mut open: Vec<_> = (0..8).map(|_| engine.submit(request()).unwrap()).collect();
    for stream in &mut open {
        stream.next().await.unwrap();
    }
    open.push(
        engine
            .submit(TokenRequest {
                sampling: SamplingParams {
                    seed: 1,
                    ..SamplingParams::default()
                },
                ..request()
            })
            .unwrap(),
    );
    for stream in &mut open {
        let events = all_events(stream).await;
        assert_eq!(failure(events.last()), "engine closed its connection");
    }
    let refused = engine.submit(request()).unwrap_err().to_string();
    assert!(
        refused.contains("engine closed its connection"),
        "{refused}"
    );
    assert_eq!(engine.history().silence, None, "no engine is ready");

    let _next =
        FakeEngine::connect(engine.socket_path(), Script::new(|_| tokens(&[4], QUICK))).await;
    engine.wait_ready().await.unwrap();
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(token_ids(&events), [4]);
    let history = engine.history();
    assert_eq!((history.restarts, history.stalls), (1, 0));
    assert!(history.silence.is_some());
}

#[tokio::test]
async fn a_fatal_message_is_the_cause() {
    let script = Script::new(|_| vec![Action::Fatal("out of memory".to_owned())]);
    let (engine, _fake) = ready_engine(config(), script).await;
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(failure(events.last()), "out of memory");
    assert!(matches!(engine.state(), EngineState::Down { .. }));
}

#[tokio::test]
async fn an_engine_without_progress_is_not_healthy() {
    let script = Script {
        heartbeat: LONG,
        ..Script::new(|_| tokens(&[1, 2], QUICK))
    };
    let stall_timeout = Duration::from_secs(5);
    let (engine, _fake) = ready_engine(
        EngineConfig {
            stall_timeout,
            ..config()
        },
        script,
    )
    .await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(engine.healthy(), Ok(()));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(
        engine.healthy(),
        Err("the engine is stuck: no progress for 6 s".to_owned())
    );

    tokio::time::resume();
    all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(engine.healthy(), Ok(()), "a step is progress");
}

#[tokio::test]
async fn a_stalled_engine_keeps_its_requests_open() {
    let script = Script::new(|_| {
        vec![
            Action::Send(Output {
                tokens: vec![1],
                ..Output::default()
            }),
            Action::Stall,
        ]
    });
    let stall_timeout = Duration::from_millis(300);
    let (engine, _fake) = ready_engine(
        EngineConfig {
            stall_timeout,
            ..config()
        },
        script,
    )
    .await;
    let mut stream = engine.submit(request()).unwrap();
    stream.next().await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(400), stream.next())
            .await
            .is_err()
    );
    assert!(engine.healthy().unwrap_err().contains("stuck"));
}
