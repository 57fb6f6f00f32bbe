#!/usr/bin/env bash
# SGLang 0.5.23 for a CUDA GPU, about 12 GB of disk with torch. The model is the one that
# install_vllm.sh converts: run that first.
# Gives $PEERS_DIR/sglang (environment). Not part of install_all.sh, whose peers run on CPUs.
. "$(dirname "$0")/common.sh"
VERSION=0.5.23
VENV="$PEERS_DIR/sglang"

install() {
    new_venv "$VENV"
    "$VENV/bin/pip" install --quiet "sglang==$VERSION"
}

step sglang-install install
"$VENV/bin/pip" show sglang | head -2
