/* LLaMA in Hugging Face's transformers (LlamaForCausalLM), and what is built like it. Rotary
 * positions turn the same pairs as `rope` without `interleaved`. For models with q, k and v, or one
 * qkv, of which q has as many rows as the model is wide, and k and v the rest: grouped heads too. A
 * file whose output layer is the table has no lm_head. */
#include "graph/safetensors/name_family.h"

#define LAYER "model.layers.{i}."

#define RULES                                                                                      \
    "wte.weight = model.embed_tokens.weight\n"                                                     \
    "h{i}.norm_1.weight = " LAYER "input_layernorm.weight\n"                                       \
    "h{i}.qkv.weight = " LAYER "self_attn.q_proj.weight rows d1 + " LAYER                          \
    "self_attn.k_proj.weight + " LAYER "self_attn.v_proj.weight\n"                                 \
    "h{i}.q.* = " LAYER "self_attn.q_proj.*\n"                                                     \
    "h{i}.k.* = " LAYER "self_attn.k_proj.*\n"                                                     \
    "h{i}.v.* = " LAYER "self_attn.v_proj.*\n"                                                     \
    "h{i}.qkv_proj.* = " LAYER "self_attn.qkv_proj.*\n"                                            \
    "h{i}.q_norm.* = " LAYER "self_attn.q_norm.*\n"                                                \
    "h{i}.k_norm.* = " LAYER "self_attn.k_norm.*\n"                                                \
    "h{i}.o.* = " LAYER "self_attn.o_proj.*\n"                                                     \
    "h{i}.norm_2.weight = " LAYER "post_attention_layernorm.weight\n"                              \
    "h{i}.gate.* = " LAYER "mlp.gate_proj.*\n"                                                     \
    "h{i}.up.* = " LAYER "mlp.up_proj.*\n"                                                         \
    "h{i}.gate_up.* = " LAYER "mlp.gate_up_proj.*\n"                                               \
    "h{i}.down.* = " LAYER "mlp.down_proj.*\n"                                                     \
    "norm.weight = model.norm.weight\n"                                                            \
    "lm_head.weight = lm_head.weight\n"                                                            \
    "lm_head.weight = model.embed_tokens.weight\n"

/* Experts are stored one by one, or, since transformers 5, stacked if one asks for it. */
#define EXPERTS(of, gate, up, down)                                                                \
    "h{i}.experts.gate_up.weight = " LAYER of ".experts.{#}." gate ".weight + " LAYER of           \
    ".experts.{#}." up ".weight\n"                                                                 \
    "h{i}.experts.gate_up.weight = " LAYER "mlp.experts.gate_up_proj\n"                            \
    "h{i}.experts.down.weight = " LAYER of ".experts.{#}." down ".weight\n"                        \
    "h{i}.experts.down.weight = " LAYER "mlp.experts.down_proj\n"

const smp_name_family smp__names_llama = {"hf-llama", "LLaMA and its kin", RULES};

const smp_name_family smp__names_gemma2 = {
    "hf-gemma2", "Gemma 2",
    "h{i}.post_1.weight = " LAYER "post_attention_layernorm.weight\n"
    "h{i}.norm_2.weight = " LAYER "pre_feedforward_layernorm.weight\n"
    "h{i}.post_2.weight = " LAYER "post_feedforward_layernorm.weight\n" RULES};

const smp_name_family smp__names_mixtral = {
    "hf-mixtral", "Mixtral",
    RULES EXPERTS("block_sparse_moe", "w1", "w3",
                  "w2") "h{i}.router.weight = " LAYER "block_sparse_moe.gate.weight\n"
                        "h{i}.router.weight = " LAYER "mlp.gate.weight\n"};

const smp_name_family smp__names_qwen_moe = {
    "hf-qwen-moe", "Qwen's mixtures of experts",
    RULES EXPERTS("mlp", "gate_proj", "up_proj",
                  "down_proj") "h{i}.shared.gate.* = " LAYER "mlp.shared_expert.gate_proj.*\n"
                               "h{i}.shared.up.* = " LAYER "mlp.shared_expert.up_proj.*\n"
                               "h{i}.shared.down.* = " LAYER "mlp.shared_expert.down_proj.*\n"
                               "h{i}.shared_gate.* = " LAYER "mlp.shared_expert_gate.*\n"
                               "h{i}.router.weight = " LAYER "mlp.gate.weight\n"};
