#!/usr/bin/env bash
# Every peer, one after another. Idempotent: what succeeded before is skipped. About 30 minutes
# and 13 GB on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
for script in install_llama_cpp.sh install_vllm.sh install_openvino.sh; do
    ./"$script"
done
