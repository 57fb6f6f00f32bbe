"""The board of servers."""

from __future__ import annotations

from penstock_ops.deploy.monitoring.panels import (
    PROCESS,
    SERVER,
    Board,
    Panel,
    Query,
    Section,
    Variable,
    failed_share,
    gauge,
    mean,
    quantiles,
    share,
    total,
    within,
)

FIRST_TOKEN = "vllm:time_to_first_token_seconds"
TOKEN_GAP = "vllm:inter_token_latency_seconds"
TOKEN_TIME = "vllm:request_time_per_output_token_seconds"

HEALTH = Section(
    "Health",
    (
        Panel(
            "Ready",
            "Engines that take requests.",
            "short",
            (Query(f"sum(penstock:engine_ready{{{SERVER}}})", "ready"),),
            "stat",
        ),
        Panel(
            "Ranks up",
            "Share of the ranks that are up. One that dies takes its engine along.",
            "percentunit",
            (
                Query(
                    f"sum(penstock:engine_ranks_up{{{SERVER}}}) / "
                    f"sum(penstock:engine_ranks_expected{{{SERVER}}})",
                    "up",
                ),
            ),
            "stat",
        ),
        Panel(
            "Engine restarts",
            "Engines that became ready after another one was lost, in an hour.",
            "short",
            (Query(f"sum(increase(penstock:engine_restarts_total{{{SERVER}}}[1h]))", "1 h"),),
            "stat",
            red=1,
        ),
        Panel(
            "Stalls",
            "Silences of more than 10 s without step and heartbeat, in an hour.",
            "short",
            (Query(f"sum(increase(penstock:engine_stalls_total{{{SERVER}}}[1h]))", "1 h"),),
            "stat",
            red=1,
        ),
        Panel(
            "Failed answers",
            "Share of the answers with a status of 500 and above.",
            "percentunit",
            (failed_share(),),
            "stat",
            red=0.01,
        ),
        Panel(
            "First token within 2.5 s",
            "Share of the requests whose first token came in time.",
            "percentunit",
            (within(FIRST_TOKEN, "2.5"),),
            "stat",
        ),
    ),
)
LOAD = Section(
    "Load",
    (
        Panel(
            "Requests",
            "Requests that run, and that wait in the engine.",
            "short",
            (
                Query(
                    f"sum by (instance) (vllm:num_requests_running{{{SERVER}}})",
                    "runs {{instance}}",
                ),
                Query(
                    f"sum by (instance) (vllm:num_requests_waiting{{{SERVER}}})",
                    "waits {{instance}}",
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Prompt tokens and generated tokens each second.",
            "short",
            (
                Query(total("vllm:prompt_tokens_total").expression, "prompt"),
                Query(total("vllm:generation_tokens_total").expression, "generated"),
            ),
        ),
        Panel(
            "Requests that ended",
            "By reason: stop, length, abort (the client left), error.",
            "reqps",
            (total("vllm:request_success_total", "finished_reason"),),
        ),
        Panel(
            "Answers by status",
            "HTTP answers each second, without probes and scrapes.",
            "reqps",
            (total("penstock:http_responses_total", "code", labels=PROCESS),),
        ),
        Panel(
            "Refused",
            "Requests turned away before the queue, by reason.",
            "reqps",
            (total("vllm:admission_rejections_total", "reason"),),
        ),
        Panel(
            "Lengths",
            "Mean prompt and mean answer of a request, in tokens.",
            "short",
            (
                Query(mean("vllm:request_prompt_tokens").expression, "prompt"),
                Query(mean("vllm:request_generation_tokens").expression, "answer"),
            ),
        ),
    ),
)
LATENCY = Section(
    "Latency",
    (
        Panel("Time to first token", "From arrival.", "s", quantiles(FIRST_TOKEN)),
        Panel("Time between tokens", "Of one request.", "s", quantiles(TOKEN_GAP)),
        Panel(
            "Whole request", "Arrival to end.", "s", quantiles("vllm:e2e_request_latency_seconds")
        ),
        Panel(
            "Time in the queue",
            "Arrival at the engine to the first step.",
            "s",
            quantiles("vllm:request_queue_time_seconds"),
        ),
        Panel(
            "Prefill and decode",
            "Mean times of a request: to the first token, and from it to the last.",
            "s",
            (
                Query(mean("vllm:request_prefill_time_seconds").expression, "prefill"),
                Query(mean("vllm:request_decode_time_seconds").expression, "decode"),
            ),
        ),
        Panel("Time per output token", "Mean of each request.", "s", quantiles(TOKEN_TIME)),
    ),
)
STEPS = Section(
    "Steps",
    (
        Panel(
            "Step time",
            "Of steps that computed tokens.",
            "s",
            quantiles("penstock:engine_step_seconds"),
        ),
        Panel(
            "Tokens in a step",
            "Prompt tokens and decodes together.",
            "short",
            (mean("vllm:iteration_tokens_total", "instance"),),
        ),
        Panel(
            "Age of the last report",
            "Time since the last step or heartbeat. An idle engine sends one a second.",
            "s",
            (gauge("penstock:engine_report_age_seconds", "instance", how="max"),),
            red=10,
        ),
        Panel(
            "Waits for grammars",
            "Share of the time in which rows waited for their token masks.",
            "percentunit",
            (total("penstock:grammar_mask_wait_seconds_total"),),
        ),
    ),
)
KV = Section(
    "KV cache",
    (
        Panel(
            "KV in use",
            "Share of the blocks of the pool. Near 1 requests wait, or are preempted.",
            "percentunit",
            (gauge("vllm:kv_cache_usage_perc", "instance", how="max"),),
            red=0.98,
        ),
        Panel(
            "Prompt from caches",
            "Share of the prompt tokens that were not computed.",
            "percentunit",
            (share("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total", "cached"),),
        ),
        Panel(
            "Preemptions",
            "Sequences each second that gave their blocks to others, to be computed again.",
            "short",
            (total("vllm:num_preemptions_total", "instance"),),
        ),
    ),
)
MACHINE = Section(
    "Process of the API server",
    (
        Panel(
            "Processor",
            "Cores in use.",
            "short",
            (total("process_cpu_seconds_total", "instance", labels=PROCESS),),
        ),
        Panel(
            "Memory",
            "Resident.",
            "bytes",
            (gauge("process_resident_memory_bytes", "instance", labels=PROCESS),),
        ),
        Panel(
            "Open files",
            "Sockets included.",
            "short",
            (gauge("process_open_fds", "instance", labels=PROCESS),),
        ),
    ),
)
RUNNING = "vllm:num_requests_running"
VARIABLES = (
    Variable("job", "Job", RUNNING),
    Variable("instance", "Server", RUNNING),
    Variable("model_name", "Model", RUNNING),
)
SERVER_BOARD = Board(
    "penstock-server",
    "Penstock: servers",
    VARIABLES,
    (HEALTH, LOAD, LATENCY, STEPS, KV, MACHINE),
)
