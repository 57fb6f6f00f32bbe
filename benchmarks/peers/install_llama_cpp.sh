#!/usr/bin/env bash
# llama.cpp, from the source package of llama-cpp-python 0.3.36 (its vendored copy), built for
# this CPU.
# Gives $PEERS_DIR/llama.cpp/build/bin/llama-server and the Q4_0, Q8_0 and BF16 requantisations of
# the default model.
. "$(dirname "$0")/common.sh"
VERSION=0.3.36
SOURCE="$PEERS_DIR/llama.cpp"

unpack() {
    rm -rf "$SOURCE" "$PEERS_DIR/sdist"
    mkdir -p "$SOURCE"
    # Only the archive is wanted, but pip asks the build back end for its metadata: --no-binary for
    # this package alone, so that the back end and cmake come as wheels and are not built first.
    "$PYTHON" -m pip download --quiet --no-deps --no-binary llama-cpp-python \
        --dest "$PEERS_DIR/sdist" "llama-cpp-python==$VERSION"
    tar -xzf "$PEERS_DIR"/sdist/llama_cpp_python-$VERSION.tar.gz -C "$SOURCE" --strip-components 3 \
        "llama_cpp_python-$VERSION/vendor/llama.cpp"
    rm -rf "$PEERS_DIR/sdist"
}

build() {
    cmake -S "$SOURCE" -B "$SOURCE/build" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    cmake --build "$SOURCE/build" -j "${JOBS:-2}" \
        --target llama-server llama-bench llama-batched-bench llama-quantize
}

requantise() {
    for kind in Q4_0 Q8_0 BF16; do
        "$SOURCE/build/bin/llama-quantize" --allow-requantize "$GGUF" \
            "$PEERS_DIR/model/smol-$kind.gguf" "$kind" >/dev/null
    done
}

step model fetch_model
step llama-cpp-source unpack
step llama-cpp-build build
step llama-cpp-models requantise
"$SOURCE/build/bin/llama-server" --version 2>&1 | head -2
