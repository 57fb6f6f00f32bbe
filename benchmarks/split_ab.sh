#!/usr/bin/env bash
# The A/B of the split into two processes: Penstock as it comes against --no-engine-process, under
# the Azure LLM
# conversation trace of 2023 at three time scales; P50, P90 and P99 of TTFT, TPOT, ITL and E2E
# latency.
#
# usage: split_ab.sh azure_llm_2023_conv.csv [arguments of `penstock bench compare`, which win]
#
# The same minute of the trace (340 requests, after its slow start) is replayed at every scale:
# 48, 72 and 108 s a
# run, about 25 minutes for 3 repeats. Lengths are a quarter of the trace's (290 tokens in, 53 out
# on average), so
# that scale 0.8, 7 requests/s, is just below what two cores of a 2025 server do with
# SmolLM2-135M, and 1.8 leaves
# them idle half of the time. On another machine set SCALES; less is heavier.
set -euo pipefail

TRACE=${1:?usage: split_ab.sh azure_llm_2023_conv.csv [arguments of penstock bench compare]}
shift
HERE=$(cd "$(dirname "$0")" && pwd)
PENSTOCK=${PENSTOCK:-$HERE/../.venv/bin/penstock}
SCALES=${SCALES:-0.8 1.2 1.8}
SECONDS_OF_TRACE=${SECONDS_OF_TRACE:-60}

workloads=()
for scale in $SCALES; do
    workloads+=(--workload "azure: trace '$TRACE' --time-scale $scale --start 120 \
        --duration $SECONDS_OF_TRACE --length-scale 0.25 --max-model-len 2048 --temperature 0 \
        --metric-percentiles 50,90,99")
done

# Words that split, so that PENSTOCK may be `python -m penstock`.
exec $PENSTOCK bench compare \
    --server penstock --server penstock-inprocess \
    --args "penstock=--max-model-len 2048" --args "penstock-inprocess=--max-model-len 2048" \
    "${workloads[@]}" --tokenizer smollm2 --repeats 3 \
    --title "Penstock split and in one process" \
    --result-dir "$HERE/results/split-ab-$(date +%F-%H%M)" "$@"
