//! `Objects` in S3, by a server that speaks it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use penstock_kvstore::{Objects, StoreIdentity, Tier, TierError};

use crate::model::assert_like_a_dictionary;
use crate::parts::{
    Scratch, assert_damage_is_noticed, free_port, identity, key, load, payload, store,
};
use crate::s3_server::{BUCKET, Server};

const URL: &str = "s3://kvtier/pre/fix";

fn open(server: &Server, identity: &StoreIdentity) -> Objects {
    Objects::open(URL, &server.options("key", "secret"), identity).unwrap()
}

fn refused(url: &str, options: &BTreeMap<String, String>) -> String {
    match Objects::open(url, options, &identity("a")) {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn does_what_a_dictionary_does() {
    let Some(server) = Server::with_bucket("s3::does_what_a_dictionary_does") else {
        return;
    };
    assert_like_a_dictionary(6, |identity| open(&server, identity));
}

#[test]
fn damage_and_sizes() {
    let Some(server) = Server::with_bucket("s3::damage_and_sizes") else {
        return;
    };
    let tier = open(&server, &identity("a"));
    let (key, parts) = (key(1, 0), payload(2, 8, 512 << 10));
    store(&tier, &key, &parts).unwrap();
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let chunk = format!(
        "penstock-kv-1/{}/{}",
        hex(&identity("a").digest()),
        hex(&[1; 32])
    );
    let path = format!("/{BUCKET}/pre/fix/{chunk}/3.h0.l0-4");
    let (status, whole) = server.http("GET", &path, "", b"");
    assert_eq!((status, whole.len()), (200, 4096 + (4 << 20)));
    assert_eq!(whole[4096..], parts.concat());
    for at in [3, 100, 4096, 2_000_000] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert_eq!(server.http("PUT", &path, "", &changed).0, 200);
        assert_damage_is_noticed(&tier, &key, &parts, &format!("byte {at}"));
    }
    for to in [0, 4096, whole.len() - 1] {
        assert_eq!(server.http("PUT", &path, "", &whole[..to]).0, 200);
        assert_damage_is_noticed(&tier, &key, &parts, &format!("{to} bytes"));
    }
    tier.remove(&[1; 32]).unwrap();
    assert_eq!(server.http("GET", &path, "", b"").0, 404);
}

/// The server checks signatures from its fifth call on.
#[test]
fn requests_are_signed() {
    let Some(server) = Server::start("s3::requests_are_signed", Some(4), &[]) else {
        return;
    };
    let iam = |body: &str| {
        let headers = "Content-Type: application/x-www-form-urlencoded\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, \
             SignedHeaders=host, Signature=0\r\n";
        let (status, answer) = server.http("POST", "/", headers, body.as_bytes());
        let answer = String::from_utf8(answer).unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    };
    iam("Action=CreateUser&UserName=kv&Version=2010-05-08");
    let made = iam("Action=CreateAccessKey&UserName=kv&Version=2010-05-08");
    let policy = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B\
        %22Effect%22%3A%22Allow%22%2C\
         %22Action%22%3A%22s3%3A%2A%22%2C%22Resource%22%3A%22%2A%22%7D%5D%7D";
    iam(&format!(
        "Action=PutUserPolicy&UserName=kv&PolicyName=all&PolicyDocument={policy}&Version=2010-05-08"
    ));
    server.make_bucket();
    let field = |name: &str| {
        let after = made.split_once(&format!("<{name}>")).unwrap().1;
        after.split_once('<').unwrap().0.to_owned()
    };
    let (id, secret) = (field("AccessKeyId"), field("SecretAccessKey"));
    let tier = Objects::open(URL, &server.options(&id, &secret), &identity("a")).unwrap();
    let parts = payload(1, 3, 50_000);
    store(&tier, &key(1, 0), &parts).unwrap();
    assert_eq!(load(&tier, &key(1, 0), &parts).unwrap(), parts);
    assert_eq!(tier.probe(&[key(1, 0), key(2, 0)]).unwrap(), [true, false]);
    tier.remove(&[1; 32]).unwrap();
    let error = refused(URL, &server.options(&id, "guess"));
    assert!(
        error.contains("Signature") && !error.contains("guess"),
        "{error}"
    );
    assert!(refused(URL, &server.options("stranger", &secret)).contains("InvalidAccessKeyId"));
}

#[test]
fn over_tls_with_an_authority_of_our_own() {
    let scratch = Scratch::new();
    let at = |name: &str| scratch.0.join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let arguments = ["--ssl-cert", &at("cert.pem"), "--ssl-key", &at("key.pem")];
    let Some(server) = Server::start("s3::over_tls", None, &arguments) else {
        return;
    };
    let mut options = server.options("key", "secret");
    options.insert(
        "endpoint".into(),
        format!("https://localhost:{}", server.port),
    );
    options.remove("allow_http");
    // the server imports its S3 at the first request, which takes seconds on a busy machine
    options.insert("timeout_s".into(), "60".into());
    let error = refused(URL, &options);
    assert!(
        error.contains("certificate") || error.contains("UnknownIssuer"),
        "{error}"
    );
    options.insert("ca_file".into(), at("cert.pem"));
    // it is the server that speaks: there is no such bucket yet
    let error = refused(URL, &options);
    assert!(error.contains("no such bucket"), "{error}");
}

#[test]
fn killed_and_back() {
    let Some(mut server) = Server::with_bucket("s3::killed_and_back") else {
        return;
    };
    let tier = open(&server, &identity("a"));
    let (key, parts) = (key(1, 0), payload(1, 3, 100_000));
    store(&tier, &key, &parts).unwrap();
    server.kill();
    let start = Instant::now();
    let error = load(&tier, &key, &parts).unwrap_err();
    assert!(matches!(error, TierError::Failed(_)), "{error}");
    assert!(matches!(
        store(&tier, &key, &parts),
        Err(TierError::Failed(_))
    ));
    assert!(matches!(tier.probe(&[key]), Err(TierError::Failed(_))));
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
    server.restart();
    assert!(matches!(load(&tier, &key, &parts), Err(TierError::Missing)));
    store(&tier, &key, &parts).unwrap();
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
    server.signal("STOP");
    let error = load(&tier, &key, &parts).unwrap_err();
    assert!(
        error.to_string().contains("did not answer within"),
        "{error}"
    );
    server.signal("CONT");
    assert_eq!(load(&tier, &key, &parts).unwrap(), parts);
}

#[test]
fn nobody_there_is_refused_at_start() {
    let Some(server) = Server::start("s3::nobody_there", None, &[]) else {
        return;
    };
    let mut options = server.options("key", "secret");
    options.insert("timeout_s".into(), "60".into());
    let error = refused(URL, &options);
    assert!(error.contains("no such bucket"), "{error}");
    options.insert("timeout_s".into(), "1".into());
    options.insert(
        "endpoint".into(),
        format!("http://127.0.0.1:{}", free_port()),
    );
    let error = refused(URL, &options);
    assert!(error.contains("refused"), "{error}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    options.insert(
        "endpoint".into(),
        format!("http://{}", silent.local_addr().unwrap()),
    );
    assert!(refused(URL, &options).contains("did not answer within 1s"));
    options.remove("allow_http");
    let error = refused(URL, &options);
    assert!(error.contains("http"), "{error}");
}
