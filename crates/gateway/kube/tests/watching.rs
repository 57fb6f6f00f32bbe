//! Lists and watches that go on, whatever the API server does.

mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_kube::{Api, Cluster, Material, Plugin, Timing, Watched, Watching};
use serde::Deserialize;
use server::{
    ApiServer, PODS_GONE, PODS_LIST, PODS_PAGE, PODS_WATCH, Request, Step, events, page, refusal,
    until,
};
use tokio::sync::Notify;

/// A pod, as far as these tests look at it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

/// Short pauses. Patience is for a machine that is busy.
fn quick(patience: Duration) -> Timing {
    Timing {
        first_pause: Duration::from_millis(5),
        longest_pause: Duration::from_millis(40),
        patience,
        watch: Duration::from_secs(60),
    }
}

fn start(cluster: Cluster) -> Watching<Pod> {
    start_with(cluster, quick(server::HANG))
}

fn start_with(cluster: Cluster, timing: Timing) -> Watching<Pod> {
    let watched = Watched {
        group: "",
        version: "v1",
        kind: "pods",
        namespace: "models".to_owned(),
        labels: "app=llama".to_owned(),
        name: None,
    };
    Watching::start(
        &Api::new(cluster),
        watched,
        timing,
        &Arc::new(Notify::new()),
    )
}

fn names(watching: &Watching<Pod>) -> Option<Vec<String>> {
    Some(watching.objects()?.keys().cloned().collect())
}

async fn has(watching: &Watching<Pod>, wanted: &[&str]) {
    let is = || names(watching).is_some_and(|names| names == wanted);
    until(&format!("{wanted:?}, now {:?}", names(watching)), is).await;
}

fn pod(kind: &str, name: &str, version: u32) -> Vec<u8> {
    let meta = format!(r#"{{"name": "{name}", "resourceVersion": "{version}"}}"#);
    let event = format!(r#"{{"type": "{kind}", "object": {{"metadata": {meta}}}}}"#);
    format!("{event}\n").into_bytes()
}

/// A list of pods; the version of the list is theirs.
fn list(names: &[&str], version: u32) -> Vec<Step> {
    let item =
        |name: &&str| format!(r#"{{"metadata": {{"name": "{name}", "resourceVersion": "1"}}}}"#);
    let items: Vec<String> = names.iter().map(item).collect();
    let items = items.join(", ");
    page(format!(
        r#"{{"metadata": {{"resourceVersion": "{version}"}}, "items": [{items}]}}"#
    ))
}

/// The answers one after the other, those of lists and of watches each; the last one goes on.
fn scripted(
    lists: Vec<Vec<Step>>,
    watches: Vec<Vec<Step>>,
) -> impl Fn(&Request) -> Vec<Step> + Send + Sync {
    let (listed, watched) = (AtomicUsize::new(0), AtomicUsize::new(0));
    move |request| {
        let (count, answers) = match request.is_watch() {
            true => (&watched, &watches),
            false => (&listed, &lists),
        };
        let at = count.fetch_add(1, Ordering::Relaxed);
        answers[at.min(answers.len() - 1)].clone()
    }
}

#[tokio::test]
async fn a_recorded_list_and_watch_are_followed_and_resumed_from_the_bookmark() {
    let lists = vec![page(PODS_LIST)];
    // In pieces of 1,000 bytes, which end anywhere in a line.
    let pieces = PODS_WATCH.as_bytes().chunks(1000);
    let mut first = vec![Step::Status(200)];
    first.extend(pieces.map(|piece| Step::Send(piece.to_vec())));
    let server = ApiServer::start(scripted(lists, vec![first, events("")])).await;
    let watching = start(server.cluster());
    has(&watching, &["b"]).await;
    until("another watch", || server.watches().len() == 2).await;
    let requests = server.requests();
    let version = |request: &Request| request.query("resourceVersion").map(str::to_owned);
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(
        requests[0]
            .target
            .starts_with("/api/v1/namespaces/models/pods?labelSelector=app")
    );
    let listed = PODS_LIST.split("\"resourceVersion\":\"").nth(1).unwrap();
    assert_eq!(version(&requests[1]).as_deref(), listed.split('"').next());
    let bookmark = PODS_WATCH.lines().last().unwrap();
    assert!(bookmark.contains("BOOKMARK"));
    let resumed = version(&requests[2]).unwrap();
    assert!(
        bookmark.contains(&format!("\"resourceVersion\":\"{resumed}\"")),
        "{resumed}"
    );
    assert_eq!(requests[2].query("allowWatchBookmarks"), Some("true"));
}

#[tokio::test]
async fn a_watch_that_is_cut_off_inside_an_event_goes_on_behind_the_last_whole_one() {
    let added = pod("ADDED", "c", 12);
    let mut broken = pod("ADDED", "b", 11);
    broken.extend(&added[..added.len() / 2]);
    let cut = vec![Step::Status(200), Step::Send(broken), Step::Cut];
    let lists = vec![list(&["a"], 10)];
    let server = ApiServer::start(scripted(lists, vec![cut, events(added)])).await;
    let watching = start(server.cluster());
    has(&watching, &["a", "b", "c"]).await;
    let versions: Vec<_> = server.watches();
    let versions: Vec<_> = versions
        .iter()
        .map(|one| one.query("resourceVersion"))
        .collect();
    assert_eq!(versions, [Some("10"), Some("11")]);
    assert_eq!(server.requests().len(), 3, "one list is enough");
}

#[tokio::test]
async fn a_version_that_is_too_old_is_listed_anew_as_an_event_and_as_a_status() {
    let lists = vec![list(&["a"], 10), list(&["b"], 300), list(&["c"], 500)];
    let gone = vec![Step::Status(200), Step::Send(PODS_GONE.into())];
    let watches = vec![gone, refusal(410, "too old"), events("")];
    let server = ApiServer::start(scripted(lists, watches)).await;
    let watching = start(server.cluster());
    has(&watching, &["c"]).await;
    until("a watch", || server.watches().len() == 3).await;
    let watches = server.watches();
    let versions: Vec<_> = watches
        .iter()
        .map(|one| one.query("resourceVersion"))
        .collect();
    assert_eq!(versions, [Some("10"), Some("300"), Some("500")]);
}

#[tokio::test]
async fn a_long_list_comes_in_pages_and_begins_again_where_the_next_page_is_gone() {
    let token = PODS_PAGE.split("\"continue\":\"").nth(1).unwrap();
    let token = token.split('"').next().unwrap().to_owned();
    let lists = vec![
        page(PODS_PAGE),
        refusal(410, "expired"),
        page(PODS_PAGE),
        list(&["z"], 9),
    ];
    let server = ApiServer::start(scripted(lists, vec![events("")])).await;
    let watching = start(server.cluster());
    has(&watching, &["a", "z"]).await;
    let requests = server.requests();
    let places: Vec<_> = requests[..4]
        .iter()
        .map(|one| one.query("continue"))
        .collect();
    assert_eq!(places, [None, Some(&*token), None, Some(&*token)]);
    assert_eq!(requests[0].query("limit"), Some("500"));
}

#[tokio::test]
async fn nonsense_changes_nothing_and_is_listed_anew() {
    let mut huge = br#"{"type": "ADDED", "object": {"metadata": {"name": ""#.to_vec();
    huge.resize(9 << 20, b'x');
    let lines: [&[u8]; 5] = [
        b"not JSON\n",
        b"\xff\xfe\x00\n",
        b"{\"type\": \"ADDED\", \"object\": {}}\n",
        b"{\"type\": \"REBOOTED\", \"object\": {\"metadata\": {}}}\n",
        &huge,
    ];
    let mut watches: Vec<_> = lines.iter().map(|line| events(line.to_vec())).collect();
    watches.push(events(pod("ADDED", "b", 11)));
    let lists = vec![
        list(&["a"], 10),
        page("[]"),
        page(r#"{"metadata": {"resourceVersion": "3"}, "items": [{}]}"#),
        page(r#"{"metadata": {}, "items": null}"#),
        list(&["a"], 10),
    ];
    let server = ApiServer::start(scripted(lists, watches)).await;
    let watching = start(server.cluster());
    has(&watching, &["a"]).await;
    until("all of it", || {
        assert!(names(&watching).is_some_and(|names| names.contains(&"a".to_owned())));
        server.watches().len() == 6
    })
    .await;
    has(&watching, &["a", "b"]).await;
}

#[tokio::test]
async fn what_comes_twice_or_late_is_left_out() {
    let mut lines = pod("ADDED", "b", 12);
    lines.extend(pod("ADDED", "b", 12));
    lines.extend(pod("DELETED", "a", 13));
    lines.extend(pod("MODIFIED", "a", 9));
    lines.extend(pod("ADDED", "c", 14));
    let server = ApiServer::start(scripted(vec![list(&["a"], 10)], vec![events(lines)])).await;
    has(&start(server.cluster()), &["b", "c"]).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_asked_again() {
    let lists = vec![
        vec![Step::Hang],
        vec![Step::Status(200), Step::Hang],
        list(&["a"], 10),
    ];
    let silent = vec![Step::Hang];
    let watches = vec![
        silent,
        refusal(500, "etcd is slow"),
        events(pod("ADDED", "b", 11)),
    ];
    let server = ApiServer::start(scripted(lists, watches)).await;
    let hasty = quick(Duration::from_millis(400));
    has(&start_with(server.cluster(), hasty), &["a", "b"]).await;
}

#[tokio::test]
async fn a_server_that_is_away_changes_nothing() {
    let lists = || vec![list(&["a"], 10)];
    let server = ApiServer::start(scripted(lists(), vec![events("")])).await;
    let watching = start(server.cluster());
    has(&watching, &["a"]).await;
    until("a watch", || server.watches().len() == 1).await;
    let address = server.address.clone();
    drop(server);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(names(&watching).unwrap(), ["a"]);
    let watches = vec![events(pod("ADDED", "b", 11))];
    let server = ApiServer::start_at(&address, scripted(lists(), watches)).await;
    has(&watching, &["a", "b"]).await;
    assert_eq!(
        server.requests().len(),
        1,
        "the watch goes on without a list"
    );
}

#[tokio::test]
async fn a_token_is_read_anew_for_each_request() {
    let name = format!("penstock-token-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, "first\n").unwrap();
    let expected = |token: &'static str| {
        move |request: &Request| request.authorization.as_deref() == Some(token)
    };
    let (first, second) = (expected("Bearer first"), expected("Bearer second"));
    let server = ApiServer::start(move |request| match request.is_watch() {
        false if first(request) || second(request) => list(&["a"], 10),
        true if second(request) => events(pod("ADDED", "b", 11)),
        _ => refusal(401, "Unauthorized"),
    })
    .await;
    let token = Some(Material::File(file.clone()));
    let watching = start(Cluster {
        token,
        ..server.cluster()
    });
    has(&watching, &["a"]).await;
    until("a refusal", || !server.watches().is_empty()).await;
    assert_eq!(names(&watching).unwrap(), ["a"]);
    std::fs::write(&file, "second\n").unwrap();
    has(&watching, &["a", "b"]).await;
    std::fs::remove_file(&file).unwrap();
}

/// A command that prints the token `t1` when it runs for the first time, then `t2`, ...
fn counting(file: &Path, expires: &str) -> Plugin {
    let version = "client.authentication.k8s.io/v1";
    let script = format!(
        r#"echo >> "$COUNT"; n=$(wc -l < "$COUNT"); echo '{{"apiVersion": "{version}",
        "kind": "ExecCredential", "status": {{"token": "t'$n'"{expires}}}}}'"#
    );
    Plugin {
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), script],
        env: [("COUNT".to_owned(), file.display().to_string())].into(),
        api_version: version.to_owned(),
    }
}

#[tokio::test]
async fn a_plugin_runs_again_when_its_token_is_refused_or_expired() {
    let never = "";
    let over = r#", "expirationTimestamp": "2001-01-01T00:00:00Z""#;
    // the list has the first token; the watch is refused once where no time said that it is over
    for (name, expires, watches) in [("refused", never, 2), ("expired", over, 1)] {
        let name = format!("penstock-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&file);
        let server = ApiServer::start(|request| {
            match (request.is_watch(), request.authorization.as_deref()) {
                (false, Some("Bearer t1")) => list(&["a"], 10),
                (true, Some("Bearer t2")) => events(pod("ADDED", "b", 11)),
                _ => refusal(401, "Unauthorized"),
            }
        })
        .await;
        let watching = start(Cluster {
            exec: Some(counting(&file, expires)),
            ..server.cluster()
        });
        has(&watching, &["a", "b"]).await;
        assert_eq!(server.watches().len(), watches);
        std::fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn a_request_has_any_status_and_a_new_login_where_the_last_one_was_refused() {
    let name = format!("penstock-request-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&file);
    let server = ApiServer::start(|request| match request.authorization.as_deref() {
        Some("Bearer t2") => page(request.target.clone()),
        _ => refusal(401, "Unauthorized"),
    })
    .await;
    let api = Api::new(Cluster {
        server: format!("http://{}/below/", server.address),
        exec: Some(counting(&file, "")),
        ..Cluster::default()
    });
    let request = || api.request("PATCH", "/api/v1/pods?limit=1", "application/json", b"{}");
    let (status, body) = request().await.unwrap();
    assert!(status == 401 && body.ends_with(br#""message": "Unauthorized"}"#));
    let answer = request().await.unwrap();
    assert_eq!(answer, (200, "/below/api/v1/pods?limit=1".into()));
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn a_kind_that_the_server_does_not_know_has_no_objects_unless_it_had_some() {
    let none = refusal(404, "the server could not find the requested resource");
    let lists = vec![none.clone(), list(&["a"], 10), none.clone()];
    let server = ApiServer::start(scripted(lists, vec![none, events("")])).await;
    let watching = start(server.cluster());
    has(&watching, &["a"]).await;
    until("another list", || server.requests().len() >= 5).await;
    assert_eq!(names(&watching).unwrap(), ["a"]);
}

/// A server whose list never ends is not asked without an end, and not as fast as it answers.
#[tokio::test]
async fn a_list_without_an_end_is_given_up() {
    let body = r#"{"metadata": {"resourceVersion": "1", "continue": "more"}, "items": [
        {"metadata": {"name": "a", "resourceVersion": "1"}}]}"#;
    let server = ApiServer::start(move |_| page(body)).await;
    let began = std::time::Instant::now();
    let watching = start(server.cluster());
    let lists = || {
        let requests = server.requests();
        let first = |one: &&Request| one.query("continue").is_none();
        requests.iter().filter(first).count()
    };
    until("it begins again", || lists() >= 3).await;
    assert_eq!(names(&watching), None);
    let asked = server.requests().len() as f64;
    assert!(asked / began.elapsed().as_secs_f64() < 250.0, "{asked}");
    assert!(asked <= 23.0 * lists() as f64, "{asked}");
}
