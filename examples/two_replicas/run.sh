#!/usr/bin/env bash
# Two replicas of a model, a gateway in front of them, and a client that repeats its prompts.
# usage: run.sh [MODEL [GATEWAY_PORT REPLICA_PORT REPLICA_PORT]]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
model=${1:-smollm2}
gateway_port=${2:-8080}
replica_ports=("${3:-8001}" "${4:-8002}")

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -r "$work"' EXIT
cd "$work"

wait_until_ready() { # URL PID
    until curl --silent --fail --output /dev/null "$1/ready"; do
        kill -0 "$2" 2>/dev/null || { cat ./*.log; exit 1; }
        sleep 0.2
    done
}

for port in "${replica_ports[@]}"; do
    penstock serve "$model" --served-model-name demo --port "$port" --threads 1 \
        >"replica-$port.log" 2>&1 &
    wait_until_ready "http://127.0.0.1:$port" $!
    echo "http://127.0.0.1:$port" >>replicas.txt
done

penstock gateway --config "$here/gateway.yaml" --port "$gateway_port" >gateway.log 2>&1 &
wait_until_ready "http://127.0.0.1:$gateway_port" $!

python3 "$here/ask.py" --base-url "http://127.0.0.1:$gateway_port/v1"
