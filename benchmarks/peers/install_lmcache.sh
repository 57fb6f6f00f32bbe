#!/usr/bin/env bash
# LMCache 0.5.6 into the environment of vLLM (install_vllm.sh first). Its declared dependencies
# include CUDA's Python
# packages, which its multi-process server does not need on CPU: it is installed without them.
. "$(dirname "$0")/common.sh"
VERSION=0.5.6
VENV="$PEERS_DIR/vllm"

install() {
    "$VENV/bin/pip" install --quiet --no-deps "lmcache==$VERSION"
    "$VENV/bin/pip" install --quiet aiofile aiofiles redis sortedcontainers awscrt nvtx \
        setuptools_scm httptools \
        google-api-core opentelemetry-exporter-prometheus
}

if [ ! -x "$VENV/bin/vllm" ]; then
    say "run install_vllm.sh first: LMCache goes into its environment"
    exit 1
fi
step lmcache-install install
"$VENV/bin/python" -c \
    'import importlib.metadata; print("lmcache", importlib.metadata.version("lmcache"))'
