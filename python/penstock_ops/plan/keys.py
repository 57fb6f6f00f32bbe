"""Decides which keys of `config.json` may affect a model's size, and refuses unknown ones.

A key that looks like a shape but that no rule reads is refused by name, because otherwise a wrong
size would go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.core import shortened
from penstock.model.errors import ModelError
from penstock.model.fields import Fields

_READ = """
attention_chunk_size attention_other_setting attn_output_gate attn_type_list
decoder_sparse_step dense_intermediate_size experts_per_token first_k_dense_replace
full_attention_interval head_dim hidden_size hybrid_layer_pattern interleave_moe_layer_step
intermediate_size intermediate_size_mlp kv_lora_rank layer_types linear_conv_kernel_dim
linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
max_position_embeddings max_seq_len max_window_layers mlp_layer_types mlp_only_layers mlp_type
moe_intermediate_size moe_k moe_layer_end_index moe_layer_freq moe_layer_interval
moe_layer_start_index moe_layers moe_layers_enum moe_num_experts moe_num_shared_experts
moe_top_k moe_topk n_routed_experts n_shared_experts no_rope_layer_interval no_rope_layers
num_attention_groups num_attention_heads num_experts num_experts_per_tok
num_experts_per_token num_hidden_layers num_key_value_heads num_local_experts
num_dense_layers num_shared_experts q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim
share_expert_dim shared_expert_intermediate_size shared_intermediate_size sliding_window
sliding_window_pattern sliding_window_size swa_head_dim swa_num_attention_heads
swa_num_key_value_heads swa_v_head_dim top_k_experts use_qk_norm use_sliding_window v_head_dim
vocab_size tie_word_embeddings
"""
READ = frozenset(_READ.split())
"""Keys that a rule of `penstock_ops.plan.shape` reads."""
LISTED = {
    "_sliding_window_pattern": "layer_types",
    "global_attn_every_n_layers": "layer_types",
    "moe_every_n_layer": "moe_layers_enum",
}
"""Keys that need no rule, because another key, which a rule reads, has the same content layer by
layer.
"""
_COMPARED = """
apertus arcee deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5_moe exaone4 gemma2 gemma3_text
glm4_moe glm_moe_dsa gpt_neox gpt_oss kimi_k2 llama llama4_text mimo_v2_flash minimax_m2
mistral mixtral nemotron phi phi3 qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_moe
starcoder2 step3p5
"""
COMPARED = frozenset(_COMPARED.split())
"""Model types for which a test compares the computed sizes with published ones."""
NOTED = re.compile(r"index_\w+|indexer_\w+|num_nextn_predict_layers|num_mtp_\w+|mtp_\w+|use_mtp")
"""Keys of parts of a model that computed sizes leave out; a note to the user mentions these
parts.
"""
NEUTRAL = re.compile(
    r"""(?!(.*_)?(ff|ffn|feed_forward|dim|width|expansion)_(.*_)?(multipliers?|factors?|scale)$)(
    .*token_ids?|.*_(eps|epsilon|dropout|pdrop|prob|coef|coeff|thetas?|factors?|scale|scaling
    |multipliers?|scalar|emb_scale|range|std|dtype|cap|softcap|softcapping|capping|limits?|alpha|beta|bias|loss
    |noise|func|method|implementation|type_id|norm|layernorm|norm_type|norm_weight)
    |(.*_)?(rope|rotary|yarn|swiglu|router)(_.*)?|max_position_embeddings_per_\w+
    |architectures|auto_map|model_type|_name_or_path|transformers_version|tokenizer_class|prefix
    |id2label|label2id|num_labels|pruned_heads|torchscript|use_cache|use_bfloat16|return_dict.*
    |task_specific_params|finetuning_task|problem_type|is_decoder|is_encoder_decoder|output_\w+
    |remove_invalid_values|tie_encoder_decoder|quantization_config|compression_config|dtype
    |use_return_dict|max_length|min_length|no_repeat_ngram_size|num_beams|num_beam_groups
    |num_return_sequences|num_logits_to_keep|top_k|chunk_size_feed_forward|do_sample|bad_words_ids
    |pretraining_tp|ep_size|seed|n_group|topk_group|topk_method|num_expert_group|seq_aux|seq_length
    |max_sequence_length|original_max_position_embeddings|initial_context_length|hidden_act
    |hidden_activation|hidden_dropout|norm_topk_prob|norm_expert_weight|scoring_func
    |attn_implementation|scale_emb|dim_model_base|vision_\w+|audio_\w+|image_\w+|video_\w+|\w*fp32_\w+|need_fp32_gate
    |attention_(bias|dropout|value_scale|temperature\w*)|floor_scale|attn_(scale|temperature\w*)
    |rms_norm\w*|use_(bias|gemma_norm|grouped_topk|mrope|qkv_bias|rms_norm|routing_bias)
    |use_head_wise_attn_gate|final_logit_softcapping|use_moe|moe_renormalize|moe_norm_min
    |use_parallel_residual)
    """,
    re.VERBOSE,
)
"""Keys that do not affect a size, or only that of small vectors, such as a gate with one number for
each head.
"""
SHAPED = re.compile(
    r"(^|_)(kv|mlp|moe|ffn|feed|experts?|query|share|shared|wide|width|conv|mamba|ssm|state|block"
    r"|mixer|hybrid|sparse|compress\w*|lora|latent|window|layers?|dense|decoder|equal|eq|pattern"
    r"|multi|gate|embeddings?|dim|ratios?|expan\w+)(_|$)"
)
"""Words in a key's name that indicate a shape, if the key's value is true, a text, or a
fraction.
"""


def refuse_unread(config: Fields) -> None:
    """Raise ModelError with the name of the first unread key that may affect a size."""
    unread = sorted(
        key
        for key, value in config.items()
        if _shapes(key, value) and not config.get(LISTED.get(key, ""))
    )
    if unread:
        raise ModelError(
            config.file,
            f"{unread[0]} = {shortened(str(config.get(unread[0])))}: no rule reads this key, so "
            f"sizes would be wrong{_others(unread[1:])}",
        )


def _shapes(key: str, value: object) -> bool:
    """Whether a key that no rule reads may affect a size."""
    if key in READ or not value:
        return False
    if NOTED.fullmatch(key) or NEUTRAL.fullmatch(key):
        return False
    items = value if isinstance(value, list) else [value]
    if value is True or isinstance(value, str) or all(isinstance(item, float) for item in items):
        return bool(SHAPED.search(key))
    return True


def _others(keys: Iterable[str]) -> str:
    listed = list(keys)
    return f" (nor {', '.join(listed[:4])}{', ...' if len(listed) > 4 else ''})" if listed else ""
