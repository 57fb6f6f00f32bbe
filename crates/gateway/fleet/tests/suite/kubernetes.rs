//! Replicas from the pods of a namespace, as an API server tells of them.

#[path = "../../../kube/tests/server/mod.rs"]
mod server;

use std::sync::{Arc, Mutex};

use self::server::{
    ApiServer, HANG, PODS_LIST, PODS_WATCH, POOLS_LIST, POOLS_WATCH, Request, Step, events, page,
    refusal, until,
};
use crate::common::{Fake, client, fakes, quick};
use penstock_fleet::{Fleet, Pods, Source};
use penstock_routing::{Condition, Replica};

const V1: &str = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools";
const OLD: &str = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/models/inferencepools";
const EMPTY: &str = r#"{"metadata": {"resourceVersion": "1"}, "items": []}"#;

fn fleet(server: &ApiServer, change: impl FnOnce(&mut Pods)) -> Fleet {
    let mut pods = Pods {
        cluster: server.cluster(),
        namespace: "models".to_owned(),
        inference_pool: Some("llama".to_owned()),
        selector: None,
        ports: Vec::new(),
    };
    change(&mut pods);
    Fleet::start(Source::Kubernetes(Box::new(pods)), quick(), client()).unwrap()
}

/// Addresses of the replicas that are listed, those that drain left out.
fn addresses(fleet: &Fleet) -> Vec<String> {
    let view = fleet.view();
    let stays = |one: &&Replica| one.condition != Condition::Draining;
    let listed = view.replicas.iter().filter(stays);
    let mut found: Vec<String> = listed.map(|one| one.address.to_string()).collect();
    found.sort();
    found
}

async fn has(fleet: &Fleet, wanted: &[&str]) {
    until(&format!("{wanted:?}, now {:?}", addresses(fleet)), || {
        addresses(fleet) == wanted
    })
    .await;
}

fn old_pool(labels: &str, port: u16, version: u32) -> String {
    format!(
        r#"{{"metadata": {{"name": "llama", "resourceVersion": "{version}"}},
            "spec": {{"selector": {labels}, "targetPortNumber": {port}}}}}"#
    )
}

/// Whether it lists or watches this.
fn asks(request: &Request, path: &str) -> bool {
    request.target.split('?').next() == Some(path)
}

/// Replicas where the recorded pods are, with the loopback network in place of theirs.
struct Recorded {
    _replicas: Vec<Fake>,
    /// In place of 8000 and 8001.
    ports: [String; 2],
}

impl Recorded {
    async fn start() -> Self {
        let mut replicas = fakes(2).await;
        let port = |fake: &Fake| fake.url.rsplit(':').next().unwrap().to_owned();
        let ports = [port(&replicas[0]), port(&replicas[1])];
        for (host, port) in [(2, &ports[0]), (3, &ports[0]), (3, &ports[1])] {
            replicas.push(Fake::start_at(&format!("http://127.0.0.{host}:{port}")).await);
        }
        Self {
            _replicas: replicas,
            ports,
        }
    }

    fn here(&self, recorded: &str) -> String {
        let [first, second] = &self.ports;
        recorded
            .replace("\"10.0.0.", "\"127.0.0.")
            .replace("\"number\":8000", &format!("\"number\":{first}"))
            .replace("\"number\":8001", &format!("\"number\":{second}"))
    }

    /// `1:0` is the first pod at the first port.
    async fn has(&self, fleet: &Fleet, wanted: &[(u8, usize)]) {
        let address = |&(host, port): &(u8, usize)| format!("127.0.0.{host}:{}", self.ports[port]);
        let mut wanted: Vec<String> = wanted.iter().map(address).collect();
        wanted.sort();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        has(fleet, &wanted).await;
    }
}

#[tokio::test]
async fn pods_of_a_recorded_pool_come_drain_and_go() {
    let recorded = Recorded::start().await;
    let [pools, pods] = [POOLS_LIST, PODS_LIST].map(|text| recorded.here(text));
    // Events of the pool and of pods, as many as the test has set free.
    let told = Arc::new(Mutex::new((0, 0)));
    let script = told.clone();
    let [pool_events, pod_events] = [POOLS_WATCH, PODS_WATCH].map(|text| recorded.here(text));
    let server = ApiServer::start(move |request| {
        let (of_pools, of_pods) = *script.lock().unwrap();
        let first = |text: &str, count: usize| {
            let lines = text.split_inclusive('\n').take(count);
            vec![
                Step::Status(200),
                Step::Send(lines.collect::<String>().into()),
            ]
        };
        match (request.is_watch(), asks(request, V1)) {
            _ if asks(request, OLD) => refusal(404, "not found"),
            (false, true) => page(pools.clone()),
            (false, false) => page(pods.clone()),
            (true, true) => first(&pool_events, of_pools),
            (true, false) => first(&pod_events, of_pods),
        }
    })
    .await;
    let fleet = fleet(&server, |_| {});
    recorded.has(&fleet, &[(1, 0), (2, 0)]).await;
    let tell = |pools: usize, pods: usize| *told.lock().unwrap() = (pools, pods);
    tell(0, 1); // The third pod is there, and not ready.
    let watches = server.watches().len();
    until("more watches", || server.watches().len() > watches + 2).await;
    recorded.has(&fleet, &[(1, 0), (2, 0)]).await;
    tell(0, 2); // It is ready.
    recorded.has(&fleet, &[(1, 0), (2, 0), (3, 0)]).await;
    tell(0, 3); // The second one is not.
    recorded.has(&fleet, &[(1, 0), (3, 0)]).await;
    tell(0, 4); // The first one is being deleted.
    recorded.has(&fleet, &[(3, 0)]).await;
    tell(1, 6); // The pool has another target port, the first pod is gone.
    recorded.has(&fleet, &[(3, 0), (3, 1)]).await;
    tell(1, 8); // The third pod has lost its label.
    recorded.has(&fleet, &[]).await;
}

#[tokio::test]
async fn a_pool_that_is_deleted_takes_its_replicas_along() {
    let server = ApiServer::start(|request| match request.is_watch() {
        _ if asks(request, OLD) => page(EMPTY),
        true if asks(request, V1) => events(POOLS_WATCH),
        true => events(""),
        false if asks(request, V1) => page(POOLS_LIST),
        false => page(PODS_LIST),
    })
    .await;
    let fleet = fleet(&server, |_| {});
    assert!(fleet.view().replicas.is_empty());
    let listed = |request: &Request| request.target.starts_with("/api/v1/");
    until("a list of the pods", || {
        server.requests().iter().any(listed)
    })
    .await;
    has(&fleet, &[]).await;
    assert!(!fleet.ready(HANG).await, "the list is known, and empty");
}

#[tokio::test]
async fn a_pool_of_the_old_version_counts_and_its_selector_is_followed() {
    let script = |request: &Request| {
        let pods = request.query("labelSelector");
        match request.is_watch() {
            _ if asks(request, V1) => refusal(404, "not found"),
            true if asks(request, OLD) && request.query("resourceVersion") == Some("5") => {
                let object = old_pool(r#"{"app": "other"}"#, 81, 6);
                let line = object.replace('\n', "");
                events(format!("{{\"type\": \"MODIFIED\", \"object\": {line}}}\n"))
            }
            true => events(""),
            false if asks(request, OLD) => {
                let pool = old_pool(r#"{"app": "llama", "tier": "a"}"#, 80, 4);
                page(format!(
                    r#"{{"metadata": {{"resourceVersion": "5"}}, "items": [{pool}]}}"#
                ))
            }
            false if pods == Some("app%3Dllama%2Ctier%3Da%2Czone%21%3Db") => page(PODS_LIST),
            false => page(EMPTY),
        }
    };
    let server = ApiServer::start(script).await;
    let fleet = fleet(&server, |pods| pods.selector = Some("zone!=b".to_owned()));
    let other = "app%3Dother%2Czone%21%3Db";
    until("the other selector", || {
        let requests = server.requests();
        requests
            .iter()
            .any(|one| one.query("labelSelector") == Some(other))
    })
    .await;
    has(&fleet, &[]).await;
}

#[tokio::test]
async fn a_selector_with_ports_needs_no_pool() {
    let server = ApiServer::start(|request| match request.is_watch() {
        true => events(""),
        false => page(PODS_LIST),
    })
    .await;
    let fleet = fleet(&server, |pods| {
        pods.inference_pool = None;
        pods.selector = Some("app in (llama)".to_owned());
        pods.ports = vec![7000];
    });
    has(&fleet, &["10.0.0.1:7000", "10.0.0.2:7000"]).await;
    assert!(
        server
            .requests()
            .iter()
            .all(|one| one.target.starts_with("/api/v1/namespaces/"))
    );
}

#[tokio::test]
async fn a_pool_that_is_refused_leaves_the_list_unknown() {
    let server = ApiServer::start(|request| match asks(request, OLD) {
        true => page(EMPTY),
        false => refusal(403, "inferencepools is forbidden"),
    })
    .await;
    let fleet = fleet(&server, |_| {});
    until("attempts", || server.requests().len() > 4).await;
    assert!(addresses(&fleet).is_empty());
    assert!(!fleet.ready(std::time::Duration::from_millis(50)).await);
}
