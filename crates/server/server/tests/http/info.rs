//! Models, health, version and metrics.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_engine_client::testing::{Script, tokens};
use penstock_server::{Server, StartError};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{exchange, read_until, request};
use crate::door::{Door, address, config};

#[tokio::test]
async fn models_list_names_root_and_length() {
    let door = Door::saying("x").await;
    let reply = door.get("/v1/models").await.json();
    let ids: Vec<_> = reply["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["tiny", "alias"]);
    let model = &reply["data"][0];
    assert_eq!(
        (&model["object"], &model["max_model_len"]),
        (&json!("model"), &json!(8192))
    );
    let roots = [&reply["data"][0]["root"], &reply["data"][1]["root"]];
    assert_eq!(
        roots,
        ["tiny", "tiny"],
        "the path of the model's files stays inside"
    );
    assert!(model["created"].is_u64() && model["owned_by"].is_string());
}

#[tokio::test]
async fn tokenize_and_back() {
    let door = Door::saying("x").await;
    let body = json!({"prompt": "hé<|im_end|>", "return_token_strs": true});
    let reply = door.post("/tokenize", &body).await.json();
    assert_eq!(reply["tokens"], json!([104, 195, 169, 258]));
    assert_eq!(
        (&reply["count"], &reply["max_model_len"]),
        (&json!(4), &json!(8192))
    );
    assert_eq!(reply["token_strs"][3], "<|im_end|>");
    let back = door
        .post("/detokenize", &json!({"tokens": reply["tokens"]}))
        .await
        .json();
    assert_eq!(back, json!({"prompt": "hé<|im_end|>"}));
    let chat =
        json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false});
    assert_eq!(door.post("/tokenize", &chat).await.json()["count"], 10);
    let long = json!({"prompt": "ab ".repeat(20_000)});
    assert_eq!(door.post("/tokenize", &long).await.json()["count"], 60_000);
    let (status, error) = door
        .post("/detokenize", &json!({"tokens": [9999]}))
        .await
        .error();
    assert_eq!((status, &error["param"]), (400, &json!("tokens")));
}

#[tokio::test]
async fn version_and_probes() {
    let door = Door::saying("x").await;
    assert_eq!(
        door.get("/version").await.json(),
        json!({"version": "1.2.3"})
    );
    assert_eq!(
        (
            door.get("/health").await.status,
            door.get("/ready").await.status
        ),
        (200, 200)
    );
}

#[tokio::test]
async fn before_the_engine_everything_says_why() {
    let server = Server::start(config(json!({"max_model_len": 77})))
        .await
        .unwrap();
    let get = async |path: &str| exchange(address(&server), &request("GET", path, "", b"")).await;
    for path in ["/health", "/ready"] {
        assert_eq!(get(path).await.error().0, 503);
    }
    assert_eq!(
        get("/v1/models").await.json()["data"][0]["max_model_len"],
        77
    );
    let body = request("POST", "/v1/completions", "", br#"{"prompt":"x"}"#);
    let reply = exchange(address(&server), &body).await;
    assert_eq!(
        (reply.error().0, reply.header("retry-after")),
        (503, Some("2"))
    );
}

#[tokio::test]
async fn a_taken_port_fails_at_once_and_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Server::start(config(json!({"port": port})))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, StartError::Bind { .. }));
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[tokio::test]
async fn a_model_without_tokenizer_is_said_by_name() {
    let server = Server::start(config(json!({"model_path": "no-such-model"})))
        .await
        .unwrap();
    let error = server.ready().await.unwrap_err().to_string();
    assert!(error.contains("no-such-model"), "{error}");
}

#[tokio::test]
async fn a_tokenizer_larger_than_the_embedding_is_refused_with_both_sizes() {
    let server = Server::start(config(json!({"vocab_size": 255})))
        .await
        .unwrap();
    let error = server.ready().await.unwrap_err().to_string();
    assert!(
        error.contains("tokens and the model's embedding 255 rows"),
        "{error}"
    );
}

#[tokio::test]
async fn metrics_have_the_names_that_tools_read() {
    let script = Script::new(|_| tokens(&[97, 98, 99], Duration::from_millis(2)));
    let door = Door::open_with(json!({}), script).await;
    assert_eq!(door.complete(&json!({"prompt": "xyz"})).await.status, 200);
    let page = door.get("/metrics").await;
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let text = page.text();
    let labels = r#"model_name="tiny",engine="0""#;
    for line in [
        format!("vllm:num_requests_running{{{labels}}} 0"),
        format!("vllm:num_requests_waiting{{{labels}}} 0"),
        format!("vllm:kv_cache_usage_perc{{{labels}}} 0"),
        format!("vllm:cache_config_info{{{labels},block_size=\"16\",num_gpu_blocks=\"1024\"}} 1"),
        format!("vllm:prompt_tokens_total{{{labels}}} 3"),
        format!("vllm:generation_tokens_total{{{labels}}} 3"),
        format!("vllm:prompt_tokens_cached_total{{{labels}}} 0"),
        format!("vllm:request_success_total{{{labels},finished_reason=\"length\"}} 1"),
        format!("vllm:request_success_total{{{labels},finished_reason=\"stop\"}} 0"),
        format!("vllm:num_preemptions_total{{{labels}}} 0"),
        format!("vllm:prefix_cache_queries_total{{{labels}}} 0"),
        format!("vllm:prefix_cache_hits_total{{{labels}}} 0"),
        format!("vllm:mm_cache_queries_total{{{labels}}} 0"),
        format!("vllm:inter_token_latency_seconds_count{{{labels}}} 2"),
        format!("vllm:request_prompt_tokens_bucket{{{labels},le=\"5.0\"}} 1"),
        format!("vllm:request_params_max_tokens_sum{{{labels}}} 16"),
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
    for name in [
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_generation_tokens",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_max_num_generation_tokens",
        "request_params_n",
        "iteration_tokens_total",
    ] {
        assert!(
            text.contains(&format!("# TYPE vllm:{name} histogram\n")),
            "{name}"
        );
        let count = format!("vllm:{name}_count{{{labels}}} ");
        let line = text
            .lines()
            .find(|l| l.starts_with(&count))
            .unwrap_or_else(|| panic!("{count}"));
        assert_ne!(line, format!("{count}0"), "nothing observed");
    }
    assert!(
        text.contains("vllm:lora_requests_info{") && text.contains("process_start_time_seconds ")
    );
    for line in [
        format!("vllm:engine_sleep_state{{{labels},sleep_state=\"awake\"}} 1"),
        format!("vllm:num_requests_waiting_by_reason{{{labels},reason=\"capacity\"}} 0"),
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 1".into(),
        "penstock:http_responses_total{code=\"200\"} 1".into(),
        format!("penstock:engine_restarts_total{{{labels}}} 0"),
        format!("penstock:engine_stalls_total{{{labels}}} 0"),
        format!("penstock:engine_ranks_expected{{{labels}}} 1"),
        format!("penstock:engine_ranks_up{{{labels}}} 1"),
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
    let sum = |name: &str| {
        let start = format!("penstock:{name}{{{labels}}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value
            .unwrap_or_else(|| panic!("{name} is missing"))
            .parse::<f64>()
            .unwrap()
    };
    assert!(sum("engine_step_seconds_count") >= 1.0);
    assert!(sum("engine_report_age_seconds") >= 0.0);
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        assert!(text.contains(&format!("\n{name} ")), "{name}");
    }
    assert!(text.contains("penstock:build_info{version=\"1.2.3\"} 1"));
    let typed: Vec<_> = text.lines().filter(|l| l.starts_with("# TYPE ")).collect();
    let distinct: std::collections::HashSet<_> = typed.iter().collect();
    assert_eq!(typed.len(), distinct.len(), "a name twice");
}

#[tokio::test]
async fn the_tokenizer_is_described() {
    let door = Door::saying("x").await;
    let info = door.get("/tokenizer_info").await.json();
    assert_eq!(info["eos_token"], "<|im_end|>");
    assert_eq!(info["bos_token"], "<|im_start|>");
    assert_eq!(info["pad_token"], json!(null));
    assert_eq!(
        (&info["vocab_size"], &info["model_max_length"]),
        (&json!(259), &json!(8192))
    );
    assert!(
        info["chat_template"]
            .as_str()
            .unwrap()
            .starts_with("{% for m in messages %}")
    );
}

/// The statuses of methods that the document has and of one that it lacks.
#[tokio::test]
async fn the_document_has_the_methods_of_every_path() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let door = Door::open_with(json!({"admin_api_key": "k"}), script).await;
    let document = door.get("/openapi.json").await.json();
    assert_eq!(document["info"]["version"], "1.2.3");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "delete", "put"] {
            let path = path.replace("{id}", "tiny");
            let headers = "authorization: Bearer k\r\n";
            let bytes = request(&method.to_uppercase(), &path, headers, b"{}");
            let status = status(door.address, &bytes).await;
            let expected = methods
                .get(method)
                .map_or(json!(null), |m| m["responses"].clone());
            let known = !expected[status.to_string()].is_null();
            assert!(
                known || (status == 405 && expected.is_null()),
                "{method} {path}: {status}"
            );
        }
    }
}

/// The status alone: not every answer ends.
async fn status(address: SocketAddr, bytes: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn browsers_get_the_page_without_a_key_unless_it_is_left_out() {
    const BROWSER: &str = "accept: text/html,*/*;q=0.8\r\n";
    let keyed = json!({"api_keys": ["k"]});
    let silent = json!({"api_keys": ["k"], "ui": false});
    for (patch, page, file) in [(keyed, 200, 200), (silent, 401, 401)] {
        let script = Script::new(|_| tokens(&[97], Duration::ZERO));
        let door = Door::open_with(patch, script).await;
        let get =
            async |path, headers| exchange(door.address, &request("GET", path, headers, b"")).await;
        let index = get("/", BROWSER).await;
        assert_eq!(index.status, page);
        assert!(!index.text().contains("tiny"));
        assert_eq!(get("/page/main.js", "").await.status, file);
        assert_eq!(get("/favicon.ico", "").await.status, 200);
        assert_eq!(get("/", "accept: */*\r\n").await.status, 401);
        let text = get("/", "accept: */*\r\nauthorization: Bearer k\r\n").await;
        assert!(text.text().starts_with("Penstock 1.2.3 serves tiny"));
        assert_eq!(text.header("vary"), Some("accept"));
        for path in ["/v1/models", "/openapi.json"] {
            assert_eq!(get(path, BROWSER).await.status, 401, "{path}");
        }
    }
}
