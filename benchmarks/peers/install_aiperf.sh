#!/usr/bin/env bash
# aiperf 0.13.0 (NVIDIA's successor of GenAI-Perf), the client that benchmarks/client_speed.py
# sets beside ours.
# Gives $PEERS_DIR/aiperf (environment). Its prompts come from $PEERS_DIR/hf-bf16, which
# install_vllm.sh makes.
. "$(dirname "$0")/common.sh"
VERSION=0.13.0
VENV="$PEERS_DIR/aiperf"

install() {
    new_venv "$VENV"
    "$VENV/bin/pip" install --quiet "aiperf==$VERSION"
}

step aiperf-install install
"$VENV/bin/aiperf" --version
