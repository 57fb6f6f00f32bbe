#!/usr/bin/env bash
# Serve a model on two ranks that share the work of each layer, and ask it one question.
# usage: tensor_parallel.sh [MODEL [PORT]]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
model=${1:-smollm2}
port=${2:-8000}

log=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm "$log"' EXIT

penstock serve "$model" -tp 2 --port "$port" >"$log" 2>&1 &
until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/ready"; do
    kill -0 $! 2>/dev/null || { cat "$log"; exit 1; }
    sleep 0.2
done

# What each rank has of the model: heads, KV heads, columns.
grep -o "rank [01] loaded .*" "$log"
[ "$(grep -c "rank [01] loaded" "$log")" = 2 ]

python3 "$here/client.py" --base-url "http://127.0.0.1:$port/v1"
