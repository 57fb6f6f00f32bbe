"""The board of gateways."""

from __future__ import annotations

from penstock_ops.deploy.monitoring.panels import (
    POOL,
    PROCESS,
    Board,
    Panel,
    Query,
    Section,
    Variable,
    failed_share,
    gauge,
    mean,
    quantiles,
    rate,
    share,
    total,
)

HEALTH = Section(
    "Health",
    (
        Panel(
            "Replicas ready",
            "Replicas that take requests.",
            "short",
            (Query(f"sum(penstock:gateway_replica_ready{{{POOL}}})", "ready"),),
            "stat",
        ),
        Panel(
            "Replicas lost",
            "Replicas that take none.",
            "short",
            (Query(f"sum(1 - penstock:gateway_replica_ready{{{POOL}}})", "lost"),),
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
            "Saturated",
            "1: no replica of the pool has room.",
            "short",
            (gauge("penstock:gateway_pool_saturated", "pool", labels=POOL, how="max"),),
            "stat",
            red=1,
        ),
        Panel(
            "Streams lost",
            "Streams that broke off and found no other replica, in an hour.",
            "short",
            (
                Query(
                    f"sum(increase(penstock:gateway_failovers_lost_total{{{PROCESS}}}[1h]))", "1 h"
                ),
            ),
            "stat",
            red=1,
        ),
        Panel(
            "Requests open",
            "Requests in flight.",
            "short",
            (Query(f"sum(penstock:gateway_requests_open{{{PROCESS}}})", "open"),),
            "stat",
        ),
    ),
)
REQUESTS = Section(
    "Requests",
    (
        Panel(
            "Requests by outcome",
            "Each second.",
            "reqps",
            (total("penstock:gateway_requests_total", "pool", "outcome", labels=POOL),),
        ),
        Panel(
            "Answers by status",
            "HTTP answers each second, without probes and scrapes.",
            "reqps",
            (total("penstock:http_responses_total", "code", labels=PROCESS),),
        ),
        Panel(
            "Time to first token",
            "From arrival to the first byte of a streamed answer.",
            "s",
            quantiles("penstock:gateway_time_to_first_token_seconds", PROCESS),
        ),
        Panel(
            "Time to decide",
            "From arrival to the choice of a replica.",
            "s",
            quantiles("penstock:gateway_decision_seconds", PROCESS),
        ),
        Panel(
            "Prompt expected in caches",
            "Share of the routed prompt tokens that the chosen replica was believed to hold.",
            "percentunit",
            (
                share(
                    "penstock:gateway_cached_tokens_expected_total",
                    "penstock:gateway_prompt_tokens_total",
                    "expected",
                    POOL,
                ),
            ),
        ),
    ),
)
REPLICAS = Section(
    "Replicas",
    (
        Panel(
            "Running",
            "Requests that run on each replica.",
            "short",
            (gauge("penstock:gateway_replica_running", "pool", "replica", labels=POOL),),
        ),
        Panel(
            "Waiting",
            "Requests that wait on each replica.",
            "short",
            (gauge("penstock:gateway_replica_waiting", "pool", "replica", labels=POOL),),
        ),
        Panel(
            "KV in use",
            "Share of the blocks of each replica.",
            "percentunit",
            (gauge("penstock:gateway_replica_kv_use", "pool", "replica", labels=POOL, how="max"),),
        ),
        Panel(
            "Requests sent",
            "By replica, each second.",
            "reqps",
            (total("penstock:gateway_replica_picks_total", "pool", "replica", labels=POOL),),
        ),
        Panel(
            "Requests failed",
            "Requests that a replica failed or refused, each second.",
            "reqps",
            (total("penstock:gateway_replica_errors_total", "pool", "replica", labels=POOL),),
        ),
        Panel(
            "Breaker open",
            "1: the replica gets no request, or one trial.",
            "short",
            (gauge("penstock:gateway_replica_breaker_open", "pool", "replica", labels=POOL),),
            red=1,
        ),
        Panel(
            "Age of the last report",
            "Load that is older than 2 s does not count.",
            "s",
            (
                gauge(
                    "penstock:gateway_replica_report_age_seconds",
                    "pool",
                    "replica",
                    labels=POOL,
                    how="max",
                ),
            ),
            red=10,
        ),
        Panel(
            "Backlog",
            "Prompt tokens still to be computed, by replica.",
            "short",
            (gauge("penstock:gateway_replica_backlog_tokens", "pool", "replica", labels=POOL),),
        ),
    ),
)
FAULTS = Section(
    "Retries and failover",
    (
        Panel(
            "Retries and failovers",
            "Each second: attempts that broke off, requests sent again, streams resumed.",
            "reqps",
            (
                Query(f"sum({rate('penstock:gateway_attempts_lost_total', PROCESS)})", "lost"),
                Query(f"sum({rate('penstock:gateway_retries_total', PROCESS)})", "sent again"),
                Query(
                    f"sum({rate('penstock:gateway_failover_seconds_count', PROCESS)})", "resumed"
                ),
                Query(
                    f"sum({rate('penstock:gateway_stale_connections_total', PROCESS)})",
                    "stale connections",
                ),
            ),
        ),
        Panel(
            "Time of a failover",
            "From the end of a stream to the first byte of its successor.",
            "s",
            quantiles("penstock:gateway_failover_seconds", PROCESS),
        ),
        Panel(
            "Refused",
            "Requests refused because the gateway was full.",
            "reqps",
            (Query(f"sum({rate('penstock:gateway_requests_refused_total', PROCESS)})", "refused"),),
        ),
    ),
)
QUEUE = Section(
    "Queue (pools that have one)",
    (
        Panel(
            "Queue",
            "Requests that wait for a replica with room.",
            "short",
            (
                Query(
                    f"sum by (pool) (penstock:gateway_queue_requests{{{POOL}}}) "
                    f"or sum by (pool) (0 * penstock:gateway_queue_bytes{{{POOL}}})",
                    "{{pool}}",
                ),
            ),
        ),
        Panel(
            "Time in the queue",
            "Mean of the requests that went on.",
            "s",
            (mean("penstock:gateway_queue_wait_seconds", "pool", labels=POOL),),
        ),
        Panel(
            "Left the queue",
            "Requests that did not enter it, or left it without an answer, by reason.",
            "reqps",
            (total("penstock:gateway_queue_refused_total", "pool", "reason", labels=POOL),),
        ),
    ),
)
OPEN = "penstock:gateway_requests_open"
GATEWAY_BOARD = Board(
    "penstock-gateway",
    "Penstock: gateways",
    (
        Variable("job", "Job", OPEN),
        Variable("instance", "Gateway", OPEN),
        Variable("pool", "Pool", "penstock:gateway_replica_ready"),
    ),
    (HEALTH, REQUESTS, REPLICAS, FAULTS, QUEUE),
)
