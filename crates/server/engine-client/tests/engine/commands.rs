use std::sync::Arc;

use penstock_engine_client::testing::{Action, FakeEngine, Script};
use penstock_engine_client::{CommandError, Engine, EngineState};
use penstock_wire::{KvOrder, KvOutcome, KvPrefix, TokenRequest};

use crate::common::*;

fn pin(tokens: &[u32]) -> KvOrder {
    KvOrder::Pin(KvPrefix {
        tokens: tokens.to_vec(),
        cache_salt: b"tenant".to_vec(),
    })
}

#[tokio::test]
async fn every_order_gets_its_own_reply() {
    let obey = |order: &KvOrder| match order {
        KvOrder::Pin(prefix) => Some((KvOutcome::Done, format!("{:?}", prefix.tokens))),
        _ => Some((KvOutcome::Refused, "only pins here".to_owned())),
    };
    let script = Script {
        obey: Arc::new(obey),
        ..open_ended()
    };
    let (engine, fake) = ready_engine(config(), script).await;
    let many = (1..=20u32).map(|token| {
        let engine = engine.clone();
        tokio::spawn(async move { (token, engine.command(pin(&[token])).await.unwrap()) })
    });
    for task in many.collect::<Vec<_>>() {
        let (token, reply) = task.await.unwrap();
        assert_eq!(reply.text, format!("[{token}]"));
    }
    let refused = engine.command(KvOrder::ClearAll).await.unwrap();
    assert_eq!(
        (refused.outcome, refused.text.as_str()),
        (KvOutcome::Refused, "only pins here")
    );
    assert_eq!(fake.log().orders.len(), 21);
}

#[tokio::test]
async fn a_lost_engine_ends_the_wait_with_the_reason() {
    let script = Script {
        obey: Arc::new(|_| None),
        ..Script::new(|_| vec![Action::Fatal("out of luck".to_owned())])
    };
    let engine = Engine::start(config()).unwrap();
    let early = engine.command(KvOrder::Report).await.unwrap_err();
    let reason = "the engine is starting".to_owned();
    assert_eq!(early, CommandError::NotReady { reason });
    let mut fake = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.command(KvOrder::ClearAll).await }
    });
    fake.wait_log(|log| log.orders == [KvOrder::ClearAll]).await;
    let _stream = engine.submit(request()).unwrap();
    let reason = "out of luck".to_owned();
    assert_eq!(
        waiting.await.unwrap().unwrap_err(),
        CommandError::Lost { reason }
    );
}

#[tokio::test]
async fn an_order_that_breaks_the_wire_is_not_sent() {
    let (engine, fake) = ready_engine(config(), open_ended()).await;
    let error = engine.command(pin(&[])).await.unwrap_err();
    assert!(matches!(error, CommandError::Invalid(_)), "{error}");
    let _stream = engine.submit(TokenRequest { ..request() }).unwrap();
    assert!(fake.log().orders.is_empty());
}

#[tokio::test]
async fn the_last_report_counts_until_the_engine_is_a_new_one() {
    let report = r#"{"tiers": []}"#.to_owned();
    let script = Script {
        tiers: Some(report.clone()),
        ..open_ended()
    };
    let (engine, fake) = ready_engine(config(), script).await;
    until(|| engine.tiers().is_some()).await;
    assert_eq!(*engine.tiers().unwrap(), *report);
    fake.kill();
    state_that(&engine, |state| !matches!(state, EngineState::Ready(_))).await;
    let _other = FakeEngine::connect(engine.socket_path(), open_ended()).await;
    engine.wait_ready().await.unwrap();
    assert_eq!(engine.tiers(), None, "counters of a dead engine");
}
