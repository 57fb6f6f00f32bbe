#!/usr/bin/env bash
# KV cache in Redis: a restarted server reads the prompts' KV instead of computing it again.
# usage: run.sh [MODEL [PORT [REDIS_URL]]]; needs a Redis, such as `redis-server --save ''`
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
model=${1:-smollm2}
port=${2:-8000}
redis=${3:-redis://127.0.0.1:6379/0}

log=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm "$log"' EXIT

start() {
    penstock serve "$model" --port "$port" --kv-tier "$redis" >"$log" 2>&1 &
    server=$!
    until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/ready"; do
        kill -0 $server 2>/dev/null || { cat "$log"; exit 1; }
        sleep 0.2
    done
}

start
echo "first server"
python3 "$here/ask.py" --base-url "http://127.0.0.1:$port/v1"

kill $server # SIGTERM: pending stores get 8 s
wait $server

start
echo "second server"
python3 "$here/ask.py" --base-url "http://127.0.0.1:$port/v1" --expect-remote
