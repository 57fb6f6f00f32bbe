"""The board of KV tiers."""

from __future__ import annotations

from penstock_ops.deploy.monitoring.panels import (
    SERVER,
    Board,
    Panel,
    Query,
    Section,
    gauge,
    quantiles,
    rate,
    total,
)
from penstock_ops.deploy.monitoring.server_board import VARIABLES

USE = Section(
    "What the tiers give",
    (
        Panel(
            "Prompt tokens by source",
            "Computed, from the pool (local_cache_hit), from tiers (external_kv_transfer).",
            "short",
            (total("vllm:prompt_tokens_by_source_total", "source"),),
        ),
        Panel(
            "Tokens from tiers",
            "Prompt tokens each second that came from a tier.",
            "short",
            (total("penstock:kv_tier_hit_tokens_total", "tier"),),
        ),
        Panel(
            "Chunks found",
            "Share of the chunks looked up in a tier that it had.",
            "percentunit",
            (
                Query(
                    f"sum by (tier) ({rate('penstock:kv_tier_hits_total')}) / (sum by (tier) "
                    f"({rate('penstock:kv_tier_hits_total')} + "
                    f"{rate('penstock:kv_tier_misses_total')}) > 0)",
                    "{{tier}}",
                ),
            ),
        ),
        Panel(
            "Load or compute",
            "Requests whose prefix a tier had, by what was done about it.",
            "reqps",
            (total("penstock:kv_tier_decisions_total", "decision"),),
        ),
    ),
)
SPEED = Section(
    "Transfers",
    (
        Panel(
            "Loaded",
            "Bytes each second.",
            "Bps",
            (total("penstock:kv_tier_loaded_bytes_total", "tier"),),
        ),
        Panel(
            "Stored",
            "Bytes each second.",
            "Bps",
            (total("penstock:kv_tier_stored_bytes_total", "tier"),),
        ),
        Panel(
            "Time of a load",
            "Of one transfer, without its time in the queue.",
            "s",
            quantiles("penstock:kv_tier_load_seconds", by="tier"),
        ),
        Panel(
            "Time of a store",
            "Of one transfer, without its time in the queue.",
            "s",
            quantiles("penstock:kv_tier_store_seconds", by="tier"),
        ),
    ),
)
ROOM = Section(
    "Room and faults",
    (
        Panel(
            "In use",
            "Bytes of each tier, and what it may hold (0: no bound).",
            "bytes",
            (
                Query(gauge("penstock:kv_tier_used_bytes", "tier").expression, "{{tier}}"),
                Query(gauge("penstock:kv_tier_capacity_bytes", "tier").expression, "{{tier}} may"),
            ),
        ),
        Panel(
            "Evicted",
            "Chunks each second that made room.",
            "short",
            (total("penstock:kv_tier_evicted_chunks_total", "tier"),),
        ),
        Panel(
            "Not written",
            "Stores left out: the tier was behind, full or skipped, or its budget spent.",
            "short",
            (total("penstock:kv_tier_dropped_stores_total", "tier"),),
        ),
        Panel(
            "Faults",
            "Transfers that failed and damaged chunks, in ten minutes.",
            "short",
            (
                Query(
                    f"sum by (tier) (increase(penstock:kv_tier_errors_total{{{SERVER}}}[10m]))",
                    "failed {{tier}}",
                ),
                Query(
                    "sum by (tier) "
                    f"(increase(penstock:kv_tier_quarantined_chunks_total{{{SERVER}}}[10m]))",
                    "damaged {{tier}}",
                ),
            ),
            red=1,
        ),
        Panel(
            "Skipped",
            "1 while a tier that failed or stalled is left alone.",
            "short",
            (gauge("penstock:kv_tier_skipped", "tier", how="max"),),
            red=1,
        ),
        Panel(
            "Pinned blocks",
            "Blocks of the pool that eviction passes over.",
            "short",
            (gauge("penstock:kv_pinned_blocks", "instance"),),
        ),
    ),
)
TIERS_BOARD = Board("penstock-tiers", "Penstock: KV tiers", VARIABLES, (USE, SPEED, ROOM))
