#!/usr/bin/env bash
# OpenVINO GenAI 2026.4.1 and the default model converted for it (8-bit weights, and fp16-stored
# ones that run in bf16).
# Needs the directory hf-bf16 of install_vllm.sh. Gives $PEERS_DIR/openvino (environment), ov-int8
# and ov-fp16.
. "$(dirname "$0")/common.sh"
VENV="$PEERS_DIR/openvino"

install() {
    new_venv "$VENV"
    # torch is needed by the conversion only; the same version as vLLM's, so that pip's cache
    # has it.
    "$VENV/bin/pip" install --quiet openvino-genai==2026.4.1.0 optimum-intel==2.2.0 \
        transformers==5.5.4 torch==2.13.0 nncf
}

export_models() {
    for format in fp16 int8; do
        rm -rf "$PEERS_DIR/ov-$format"
        HF_HUB_OFFLINE=1 "$VENV/bin/optimum-cli" export openvino -m "$PEERS_DIR/hf-bf16" \
            --task text-generation-with-past \
            --weight-format "$format" "$PEERS_DIR/ov-$format"
    done
}

if [ ! -e "$PEERS_DIR/hf-bf16/model.safetensors" ]; then
    say "run install_vllm.sh first: it makes $PEERS_DIR/hf-bf16, the source of the conversion"
    exit 1
fi
step openvino-install install
step openvino-export export_models
"$VENV/bin/python" -c 'import openvino_genai; print("openvino-genai", openvino_genai.__version__)'
