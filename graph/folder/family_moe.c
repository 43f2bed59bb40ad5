/* Mixtral, Qwen2-MoE and Qwen3-MoE: LLaMA and its kin, whose layers are mixtures of experts. All
 * tokens have room at the experts they choose, as there. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

/* Losses that balance experts are by sample and layer here (load_balance), there over all of both;
 * they train nothing unless asked for. */
#define ROUTED(top_k)                                                                              \
    {"num_experts_per_tok", NULL, "top_k", top_k, NULL, NULL},                                     \
        {"output_router_logits", "false", NULL, NULL, NULL, NULL},                                 \
    {                                                                                              \
        "router_aux_loss_coef", NULL, NULL, "0", NULL, NULL                                        \
    }

static const smp__config_key MIXTRAL[] = {
    SIZES_OF("32000", "131072", "8", "0", "1e-05"),
    ROUTED("2"),
    {"num_local_experts", NULL, "experts", "8", NULL, NULL},
    {"router_jitter_noise", "0", NULL, NULL, NULL, NULL},
    {"sliding_window", NULL, "window", "0", ", window: #", ""},
    {"rope_theta", NULL, NULL, "1000000", NULL, NULL},
    {0},
};

/* In some layers a layer as LLaMA has it is in the mixture's place ($sparse). */
#define QWEN_MOE(kv_heads, top_k, moe_hidden)                                                      \
    SIZES("151936", "32768", kv_heads), ROUTED(top_k),                                             \
        {"moe_intermediate_size", NULL, "moe_hidden", moe_hidden, NULL, NULL},                     \
        {"norm_topk_prob", NULL, "gates", "0", "chosen", "all"},                                   \
        {"use_sliding_window", "false", NULL, NULL, NULL, NULL},                                   \
    {                                                                                              \
        "sliding_window", NULL, "window", "0", NULL, "" /* which is then unused */                 \
    }

static const smp__config_key QWEN3_MOE[] = {
    QWEN_MOE("4", "8", "768"),
    {"num_local_experts", NULL, NULL, "128", NULL, NULL},
    {"num_experts", NULL, "experts", "num_local_experts", NULL, NULL},
    {"attention_bias", NULL, "bias", "0", "", NO_BIAS},
    {0},
};

/* Beside the chosen experts one that all tokens share, with a gate. */
static const smp__config_key QWEN2_MOE[] = {
    QWEN_MOE("16", "4", "1408"),
    {"num_experts", NULL, "experts", "60", NULL, NULL},
    {"shared_expert_intermediate_size", NULL, "shared_hidden", "5632", NULL, NULL},
    {"qkv_bias", NULL, "bias", "1", "", NO_BIAS},
    {0},
};

#define MIXTURE(in, hidden, gates)                                                                 \
    in "- {op: linear, name: \"h{i}.router\", in: m, out: r, features: $experts, bias: "           \
       "false}\n" in                                                                               \
       "- {op: expert_dispatch, name: \"h{i}.dispatch\", in: [m, r], out: e, top_k: $top_k, "      \
       "capacity: 0, gates: " gates "}\n" in                                                       \
       "- {op: expert_linear, name: \"h{i}.experts.gate_up\", in: e, out: e, features: 2 "         \
       "* " hidden "}\n" in "- {op: split, name: \"h{i}.experts.split\", in: e, out: [g, u]}\n" in \
       "- {op: silu, name: \"h{i}.experts.act\", in: g, out: g}\n" in                              \
       "- {op: mul, name: \"h{i}.experts.gated\", in: [g, u], out: e}\n" in                        \
       "- {op: expert_linear, name: \"h{i}.experts.down\", in: e, out: e, features: d}\n" in       \
       "- {op: expert_combine, name: \"h{i}.combine\", in: [e, r], out: m, top_k: $top_k, "        \
       "capacity: 0, gates: " gates "}\n"

#define DEEPER "          "

const smp__folder_family smp__family_mixtral = {
    "mixtral",
    "MixtralForCausalLM",
    "hf-mixtral",
    "null",
    MIXTRAL,
    LET "}\n" INPUTS LAYERS QKV(NO_BIAS) ROPE ATTEND("$window", NO_BIAS)
        BETWEEN MIXTURE(IN, "hidden", "chosen") END HEAD};
/* mixture: what stands for the layer where it is one. */
#define QWEN_MOE_TEXT(qk_norm, o_bias, mixture)                                                    \
    LET ", sparse: [$sparse]}\n" INPUTS LAYERS QKV("$bias") qk_norm ROPE ATTEND("", o_bias)        \
    BETWEEN IN "- when: \"sparse[i]\"\n" IN "  ops:\n" mixture IN                                  \
               "- when: \"sparse[i] == 0\"\n" IN "  ops:\n" GATE_UP(DEEPER) DOWN(DEEPER, "silu")   \
                   END HEAD

#define SHARED(in)                                                                                 \
    in "- {op: linear, name: \"h{i}.shared.gate\", in: m, out: g, features: $shared_hidden, "      \
       "bias: "                                                                                    \
       "false}\n" in                                                                               \
       "- {op: linear, name: \"h{i}.shared.up\", in: m, out: u, features: $shared_hidden, bias: "  \
       "false}\n" in "- {op: silu, name: \"h{i}.shared.act\", in: g, out: g}\n" in                 \
       "- {op: mul, name: \"h{i}.shared.gated\", in: [g, u], out: u}\n" in                         \
       "- {op: linear, name: \"h{i}.shared.down\", in: u, out: u, features: d, bias: false}\n" in  \
       "- {op: linear, name: \"h{i}.shared_gate\", in: m, out: g, features: 1, bias: false}\n" in  \
       "- {op: sigmoid, name: \"h{i}.shared.sigmoid\", in: g, out: g}\n" in                        \
       "- {op: mul_rows, name: \"h{i}.shared.weighed\", in: [u, g], out: s}\n"

#define WITH_SHARED(in) in "- {op: add, name: \"h{i}.experts.sum\", in: [m, s], out: m}\n"

const smp__folder_family smp__family_qwen3_moe = {
    "qwen3_moe",   "Qwen3MoeForCausalLM",
    "hf-qwen-moe", "null",
    QWEN3_MOE,     QWEN_MOE_TEXT(QK_NORM, "$bias", MIXTURE(DEEPER, "$moe_hidden", "$gates"))};
const smp__folder_family smp__family_qwen2_moe = {
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    "hf-qwen-moe",
    "null",
    QWEN2_MOE,
    QWEN_MOE_TEXT("", NO_BIAS,
                  SHARED(DEEPER) MIXTURE(DEEPER, "$moe_hidden", "$gates") WITH_SHARED(DEEPER))};
