#!/usr/bin/env bash
# AIConfigurator 0.12.0 with its kernel tables (aiconfigurator-core), which
# benchmarks/plan_beside_aiconfigurator.py sets beside `penstock plan`.
# Gives $PEERS_DIR/aiconfigurator (environment, 850 MB).
. "$(dirname "$0")/common.sh"
VERSION=0.12.0
VENV="$PEERS_DIR/aiconfigurator"

install() {
    new_venv "$VENV"
    "$VENV/bin/pip" install --quiet "aiconfigurator==$VERSION" "aiconfigurator-core==$VERSION"
}

step aiconfigurator-install install
"$VENV/bin/pip" list 2>/dev/null | grep -i '^aiconfigurator'
