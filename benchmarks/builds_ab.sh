#!/usr/bin/env bash
# Two builds of Penstock under the workloads W1 to W5, interleaved: what a change costs or gains.
#
# usage: builds_ab.sh PENSTOCK_BEFORE [arguments of `penstock bench compare`, which win]
#
# PENSTOCK_BEFORE is the program of the older build (.venv/bin/penstock of its checkout); the newer
# one is this checkout's, or $PENSTOCK. Both serve the default model; `before` is the baseline.
set -euo pipefail

BEFORE=$(realpath -s "${1:?usage: builds_ab.sh PENSTOCK_BEFORE [arguments of bench compare]}")
shift
HERE=$(cd "$(dirname "$0")" && pwd)
PENSTOCK=${PENSTOCK:-$HERE/../.venv/bin/penstock}
RECIPES=$(mktemp -d)
trap 'rm -rf "$RECIPES"' EXIT

recipe() { # name, program
    cat > "$RECIPES/$1.toml" <<EOF
command = [
    "$2", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
    "--engine-stall-timeout", "3600",
]
ready_path = "/ready"
version_command = ["$2", "--version"]
EOF
}
recipe before "$BEFORE"
recipe after "$(realpath -s "$PENSTOCK")"

"$PENSTOCK" bench compare --recipes "$RECIPES" --server before --server after --baseline before \
    --workloads "$HERE/peers/workloads.txt" --tokenizer smollm2 \
    --title "Penstock before and after a change" \
    --result-dir "$HERE/results/builds-ab-$(date +%F-%H%M)" "$@"
