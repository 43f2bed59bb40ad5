/* Gemma 1 and 2: LLaMA and its kin with weights of norms that count from 1, gelu in silu's place,
 * and an embedding that is scaled. Gemma 2 has norms after attention and after the rest of a layer
 * besides, caps scores and logits, and looks at a window in every other layer. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

#define GEMMA(heads, kv_heads)                                                                     \
    {"vocab_size", NULL, "vocab", "256000", NULL, NULL},                                           \
        {"hidden_size", NULL, "d", NULL, NULL, NULL},                                              \
        {"hidden_size", NULL, "root", NULL, "#^0.5", NULL},                                        \
        {"intermediate_size", NULL, "hidden", NULL, NULL, NULL},                                   \
        {"num_hidden_layers", NULL, "layers", NULL, NULL, NULL},                                   \
        {"num_attention_heads", NULL, "heads", heads, NULL, NULL},                                 \
        {"num_key_value_heads", NULL, "kv_heads", kv_heads, NULL, NULL},                           \
        {"head_dim", NULL, "width", "256", NULL, NULL},                                            \
        {"max_position_embeddings", NULL, "T", "8192", NULL, NULL},                                \
        {"rms_norm_eps", NULL, "eps", "1e-06", "#, offset: 1", "0, offset: 1"},                    \
        {"tie_word_embeddings", NULL, "tied", "1", TIED},                                          \
        {"attention_bias", NULL, "bias", "0", "", NO_BIAS},                                        \
        {"use_bidirectional_attention", "false", NULL, NULL, NULL, NULL},                          \
    {                                                                                              \
        "hidden_activation", "\"gelu_pytorch_tanh\"", NULL, NULL, NULL, NULL                       \
    }

/* "gelu" means the same there. */
static const smp__config_key GEMMA1[] = {
    GEMMA("16", "16"),
    {"hidden_act", "[\"gelu_pytorch_tanh\", \"gelu\"]", NULL, NULL, NULL, NULL},
    {0},
};

/* Of the logits. */
#define CAPPED                                                                                     \
    "\n  - {op: scale, name: head.share, in: logits, out: logits, factor: #^-1}\n"                 \
    "  - {op: tanh, name: head.tanh, in: logits, out: logits}\n"                                   \
    "  - {op: scale, name: head.cap, in: logits, out: logits, factor: #}"

static const smp__config_key GEMMA2[] = {
    GEMMA("8", "4"),
    {"hidden_act", "\"gelu_pytorch_tanh\"", NULL, NULL, NULL, NULL},
    {"query_pre_attn_scalar", NULL, "scale", "256", "#^-0.5", NULL},
    {"attn_logit_softcapping", NULL, "cap", "50", ", softcap: #", ""},
    {"final_logit_softcapping", NULL, "head_cap", "30", CAPPED, ""},
    {"sliding_window", NULL, "window", "4096", NULL, NULL},
    {"sliding_window_size", "4096", NULL, NULL, NULL, NULL}, /* beside it, in the first configs */
    {0},
};

#define SCALED "  - {op: scale, name: wte.scale, in: x, out: x, factor: $root}\n"
#define GELU "gelu, approximate: tanh"

const smp__folder_family smp__family_gemma = {"gemma",
                                              "GemmaForCausalLM",
                                              "hf-llama",
                                              "0",
                                              GEMMA1,
                                              LET "}\n" INPUTS SCALED LAYERS QKV("$bias")
                                                  ROPE ATTEND("", "$bias") BETWEEN GATE_UP(IN)
                                                      DOWN(IN, GELU) END HEAD};

#define NORM(name, x)                                                                              \
    "      - {op: rmsnorm, name: \"h{i}." name "\", in: " x ", out: " x ", eps: $eps}\n"

const smp__folder_family smp__family_gemma2 = {
    "gemma2",
    "Gemma2ForCausalLM",
    "hf-gemma2",
    "0",
    GEMMA2,
    LET "$windows}\n" INPUTS SCALED LAYERS QKV("$bias")
        ROPE ATTEND("$layer_window, scale: $scale$cap", "$bias") NORM("post_1", "a")
            BETWEEN GATE_UP(IN) DOWN(IN, GELU) NORM("post_2", "m") END HEAD_AND("$head_cap")};
