/* LLaMA 1 to 3.2, Mistral and Qwen2: RMSNorm, rotary positions, SwiGLU. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

/* With what a config means that lacks these keys, NULL: it may not. */
#define SIZES(vocab_size, positions, kv_heads)                                                     \
    {"vocab_size", NULL, "vocab", vocab_size, NULL, NULL},                                         \
        {"hidden_size", NULL, "d", NULL, NULL, NULL},                                              \
        {"intermediate_size", NULL, "hidden", NULL, NULL, NULL},                                   \
        {"num_hidden_layers", NULL, "layers", NULL, NULL, NULL},                                   \
        {"num_attention_heads", NULL, "heads", NULL, NULL, NULL},                                  \
        {"num_key_value_heads", NULL, "kv_heads", kv_heads, NULL, NULL},                           \
        {"head_dim", NULL, "width", "0", "#", "d / heads"},                                        \
        {"max_position_embeddings", NULL, "T", positions, NULL, NULL},                             \
        {"rms_norm_eps", NULL, "eps", "1e-06", NULL, NULL},                                        \
        {"tie_word_embeddings", NULL, "tied", "0", TIED},                                          \
        {"hidden_act", "\"silu\"", NULL, NULL, NULL, NULL},                                        \
    {                                                                                              \
        "is_causal", "true", NULL, NULL, NULL, NULL                                                \
    }

#define NO_BIAS ", bias: false"

static const smp__config_key LLAMA[] = {
    SIZES("32000", "2048", "num_attention_heads"),
    {"attention_bias", NULL, "bias", "0", "", NO_BIAS},
    {"mlp_bias", "false", NULL, NULL, NULL, NULL},
    {"pretraining_tp", "1", NULL, NULL, NULL, NULL},
    {0},
};

static const smp__config_key MISTRAL[] = {
    SIZES(NULL, NULL, NULL),
    {"sliding_window", NULL, "window", NULL, ", window: #", ""},
    {0},
};

/* Biases of q, k and v. */
static const smp__config_key QWEN2[] = {
    SIZES(NULL, NULL, NULL),
    {"use_sliding_window", "false", NULL, NULL, NULL, NULL},
    {"sliding_window", NULL, "window", "0", NULL, ""}, /* which is then unused */
    {0},
};

#define DECODER(qkv_bias, o_bias, window)                                                          \
    "let: {T: $T, d: $d, heads: $heads, kv_heads: $kv_heads, width: $width, hidden: $hidden, "     \
    "layers: $layers, vocab: $vocab}\n" INPUTS "  - repeat: layers\n"                              \
    "    as: i\n"                                                                                  \
    "    ops:\n"                                                                                   \
    "      - {op: rmsnorm, name: \"h{i}.norm_1\", in: x, out: a, eps: $eps}\n"                     \
    "      - {op: linear, name: \"h{i}.q\", in: a, out: q, features: heads * width" qkv_bias "}\n" \
    "      - {op: linear, name: \"h{i}.k\", in: a, out: k, features: kv_heads * width" qkv_bias    \
    "}\n"                                                                                          \
    "      - {op: linear, name: \"h{i}.v\", in: a, out: v, features: kv_heads * width" qkv_bias    \
    "}\n"                                                                                          \
    "      - {op: rope, name: \"h{i}.q_rope\", in: q, out: q, heads: heads$rope}\n"                \
    "      - {op: rope, name: \"h{i}.k_rope\", in: k, out: k, heads: kv_heads$rope}\n"             \
    "      - {op: attention, name: \"h{i}.attn\", in: [q, k, v], out: a, heads: heads, kv_heads: " \
    "kv_heads, causal: true" window "}\n"                                                          \
    "      - {op: linear, name: \"h{i}.o\", in: a, out: a, features: d" o_bias "}\n"               \
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"                                \
    "      - {op: rmsnorm, name: \"h{i}.norm_2\", in: x, out: m, eps: $eps}\n"                     \
    "      - {op: linear, name: \"h{i}.gate\", in: m, out: g, features: hidden, bias: false}\n"    \
    "      - {op: linear, name: \"h{i}.up\", in: m, out: u, features: hidden, bias: false}\n"      \
    "      - {op: silu, name: \"h{i}.silu\", in: g, out: g}\n"                                     \
    "      - {op: mul, name: \"h{i}.gated\", in: [g, u], out: m}\n"                                \
    "      - {op: linear, name: \"h{i}.down\", in: m, out: m, features: d, bias: false}\n"         \
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"                                \
    "  - {op: rmsnorm, name: norm, in: x, out: x, eps: $eps}\n" HEAD

const smp__folder_family smp__family_llama = {
    "llama", "LlamaForCausalLM", "hf-llama", "null", LLAMA, DECODER("$bias", "$bias", "")};
const smp__folder_family smp__family_mistral = {"mistral",  "MistralForCausalLM",
                                                "hf-llama", "null",
                                                MISTRAL,    DECODER(NO_BIAS, NO_BIAS, "$window")};
const smp__folder_family smp__family_qwen2 = {"qwen2", "Qwen2ForCausalLM",      "hf-llama", "null",
                                              QWEN2,   DECODER("", NO_BIAS, "")};
