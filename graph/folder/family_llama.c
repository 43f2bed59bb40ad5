/* LLaMA 1 to 3.2, Mistral, Qwen2 and 3, Phi-3: RMSNorm, rotary positions, SwiGLU. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

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
    {"use_sliding_window", NULL, NULL, "0", NULL, NULL},
    {"sliding_window", NULL, NULL, "4096", NULL, ""},
    {0},
};

/* Biases as LLaMA has them; q and k are normalised. */
static const smp__config_key QWEN3[] = {
    SIZES_OF("151936", "32768", "32", "128", "1e-06"),
    {"attention_bias", NULL, "bias", "0", "", NO_BIAS},
    {"use_sliding_window", NULL, NULL, "0", NULL, NULL},
    {"sliding_window", NULL, NULL, "4096", NULL, ""},
    {0},
};

/* q, k and v are one matrix, gate and up another. */
static const smp__config_key PHI3[] = {
    SIZES_OF("32064", "4096", "num_attention_heads", "0", "1e-05"),
    {"sliding_window", NULL, "window", "0", ", window: #", ""},
    {"original_max_position_embeddings", NULL, NULL, "4096", NULL, NULL},
    {"partial_rotary_factor", "1", NULL, NULL, NULL, NULL},
    {0},
};

#define PHI3_TEXT                                                                                  \
    LET "}\n" INPUTS LAYERS                                                                        \
        "      - {op: linear, name: \"h{i}.qkv_proj\", in: a, out: a, features: (heads + 2 * "     \
        "kv_heads) * width, bias: false}\n"                                                        \
        "      - {op: split, name: \"h{i}.qkv_split\", in: a, out: [q, k, v], sizes: [heads * "    \
        "width, kv_heads * width, kv_heads * width]}\n" ROPE ATTEND("$window", NO_BIAS) BETWEEN    \
        "      - {op: linear, name: \"h{i}.gate_up\", in: m, out: m, features: 2 * hidden, bias: " \
        "false}\n"                                                                                 \
        "      - {op: split, name: \"h{i}.gate_up_split\", in: m, out: [g, u]}\n" DOWN(IN, "silu") \
            END HEAD

const smp__folder_family smp__family_llama = {
    "llama", "LlamaForCausalLM", "hf-llama", "null", LLAMA, DECODER("$bias", "", "$bias", "", "")};
const smp__folder_family smp__family_mistral = {
    "mistral",  "MistralForCausalLM",
    "hf-llama", "null",
    MISTRAL,    DECODER(NO_BIAS, "", NO_BIAS, "", "$window")};
const smp__folder_family smp__family_qwen2 = {
    "qwen2",    "Qwen2ForCausalLM",
    "hf-llama", "null",
    QWEN2,      DECODER("", "", NO_BIAS, "$windows", "$layer_window")};
const smp__folder_family smp__family_qwen3 = {
    "qwen3",    "Qwen3ForCausalLM",
    "hf-llama", "null",
    QWEN3,      DECODER("$bias", QK_NORM, "$bias", "$windows", "$layer_window")};
const smp__folder_family smp__family_phi3 = {"phi3", "Phi3ForCausalLM", "hf-llama", "32000",
                                             PHI3,   PHI3_TEXT};
