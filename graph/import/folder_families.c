/* Families of Hugging Face's transformers, a row each. A key of a config that stands in no row is
 * refused by name, but for those that change nothing of the network (folder.c). */
#include <stddef.h>

#include "graph/import/folder.h"

#define HEAD                                                                                       \
    "  - {op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false$tied}\n"     \
    "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"               \
    "[train]loss: loss\n"

#define INPUTS                                                                                     \
    "inputs:\n"                                                                                    \
    "  tokens: {dtype: int32, shape: [T]}\n"                                                       \
    "[train]  targets: {dtype: int32, shape: [T]}\n"                                               \
    "ops:\n"                                                                                       \
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}\n"

#define TIED ", weight: wte.weight", ""

/* A block that normalises before it attends; of GPT-2 and ViT. */
#define BLOCK(attention, gelu)                                                                     \
    "  - repeat: layers\n"                                                                         \
    "    as: i\n"                                                                                  \
    "    ops:\n"                                                                                   \
    "      - {op: layernorm, name: \"h{i}.ln_1\", in: x, out: a, eps: $eps}\n"                     \
    "      - {op: linear, name: \"h{i}.attn.qkv\", in: a, out: a, features: 3 * d}\n"              \
    "      - {op: attention, name: \"h{i}.attn\", in: a, out: a, heads: heads" attention "}\n"     \
    "      - {op: linear, name: \"h{i}.attn.proj\", in: a, out: a, features: d}\n"                 \
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"                                \
    "      - {op: layernorm, name: \"h{i}.ln_2\", in: x, out: m, eps: $eps}\n"                     \
    "      - {op: linear, name: \"h{i}.mlp.fc\", in: m, out: m, features: hidden}\n"               \
    "      - {op: gelu, name: \"h{i}.mlp.gelu\", in: m, out: m, approximate: " gelu "}\n"          \
    "      - {op: linear, name: \"h{i}.mlp.proj\", in: m, out: m, features: d}\n"                  \
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"

static const smp__config_key GPT2[] = {
    {"vocab_size", NULL, "vocab", "50257", NULL, NULL},
    {"n_positions", NULL, "T", "1024", NULL, NULL},
    {"n_embd", NULL, "d", "768", NULL, NULL},
    {"n_layer", NULL, "layers", "12", NULL, NULL},
    {"n_head", NULL, "heads", "12", NULL, NULL},
    {"n_inner", NULL, "hidden", "0", "#", "4 * d"},
    {"layer_norm_epsilon", NULL, "eps", "1e-05", NULL, NULL},
    {"tie_word_embeddings", NULL, "tied", "1", TIED},
    {"is_causal", "true", NULL, NULL, NULL, NULL},
    {"activation_function", "\"gelu_new\"", NULL, NULL, NULL, NULL},
    {"scale_attn_weights", "true", NULL, NULL, NULL, NULL},
    {"scale_attn_by_inverse_layer_idx", "false", NULL, NULL, NULL, NULL},
    {"reorder_and_upcast_attn", "false", NULL, NULL, NULL, NULL},
    {0},
};

static const char GPT2_TEXT[] =
    "let: {T: $T, d: $d, heads: $heads, layers: $layers, hidden: $hidden, vocab: $vocab}\n" INPUTS
    "  - {op: position_embedding, name: wpe, in: x, out: x}\n" BLOCK(
        ", causal: true",
        "tanh") "  - {op: layernorm, name: ln_f, in: x, out: x, eps: $eps}\n" HEAD;

/* LLaMA and its kin; with what a config means that lacks these keys, NULL: it may not. */
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

/* Of BERT and ViT. */
#define ENCODER                                                                                    \
    {"hidden_size", NULL, "d", "768", NULL, NULL},                                                 \
        {"num_hidden_layers", NULL, "layers", "12", NULL, NULL},                                   \
        {"num_attention_heads", NULL, "heads", "12", NULL, NULL},                                  \
        {"intermediate_size", NULL, "hidden", "3072", NULL, NULL},                                 \
        {"layer_norm_eps", NULL, "eps", "1e-12", NULL, NULL},                                      \
    {                                                                                              \
        "hidden_act", "\"gelu\"", NULL, NULL, NULL, NULL                                           \
    }

static const smp__config_key BERT[] = {
    {"vocab_size", NULL, "vocab", "30522", NULL, NULL},
    ENCODER,
    {"max_position_embeddings", NULL, "T", "512", NULL, NULL},
    {"type_vocab_size", NULL, "types", "2", NULL, NULL},
    {"tie_word_embeddings", NULL, "tied", "1", ", weight: embed.word.weight", ""},
    {"position_embedding_type", "\"absolute\"", NULL, NULL, NULL, NULL},
    {0},
};

static const char BERT_TEXT[] =
    "let: {T: $T, d: $d, heads: $heads, layers: $layers, hidden: $hidden, vocab: $vocab}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  segments: {dtype: int32, shape: [T]}\n"
    "  mask: {dtype: int32, shape: [T]} # 1, and 0 for padding\n"
    "[train]  targets: {dtype: int32, shape: [T]} # -1: not asked for\n"
    "ops:\n"
    "  - {op: embedding, name: embed.word, in: tokens, out: word, rows: vocab, features: d}\n"
    "  - {op: embedding, name: embed.segment, in: segments, out: segment, rows: $types, features: "
    "d}\n"
    "  - {op: parameter, name: embed.position, out: position, shape: [T, d]}\n"
    "  - {op: add, name: embed.sum, in: [word, segment, position], out: x}\n"
    "  - {op: layernorm, name: embed.ln, in: x, out: x, eps: $eps}\n"
    "  - repeat: layers\n"
    "    as: i\n"
    "    ops:\n"
    "      - {op: linear, name: \"h{i}.attn.qkv\", in: x, out: a, features: 3 * d}\n"
    "      - {op: attention, name: \"h{i}.attn\", in: [a, mask], out: a, heads: heads}\n"
    "      - {op: linear, name: \"h{i}.attn.proj\", in: a, out: a, features: d}\n"
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"
    "      - {op: layernorm, name: \"h{i}.ln_1\", in: x, out: x, eps: $eps}\n"
    "      - {op: linear, name: \"h{i}.mlp.fc\", in: x, out: m, features: hidden}\n"
    "      - {op: gelu, name: \"h{i}.mlp.gelu\", in: m, out: m, approximate: erf}\n"
    "      - {op: linear, name: \"h{i}.mlp.proj\", in: m, out: m, features: d}\n"
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"
    "      - {op: layernorm, name: \"h{i}.ln_2\", in: x, out: x, eps: $eps}\n"
    "  - {op: linear, name: head.dense, in: x, out: x, features: d}\n"
    "  - {op: gelu, name: head.gelu, in: x, out: x, approximate: erf}\n"
    "  - {op: layernorm, name: head.ln, in: x, out: x, eps: $eps}\n"
    "  - {op: linear, name: head.words, in: x, out: logits, features: vocab$tied}\n"
    "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
    "[train]loss: loss\n";

static const smp__config_key VIT[] = {
    {"image_size", NULL, "size", "224", NULL, NULL},
    {"patch_size", NULL, "patch", "16", NULL, NULL},
    {"num_channels", NULL, "channels", "3", NULL, NULL},
    ENCODER,
    {"id2label", NULL, "classes", "2", NULL, NULL},
    {"qkv_bias", "true", NULL, NULL, NULL, NULL},
    {0},
};

static const char VIT_TEXT[] =
    "let: {size: $size, d: $d, heads: $heads, layers: $layers, hidden: $hidden, classes: "
    "$classes}\n"
    "inputs:\n"
    "  image: {dtype: float32, shape: [$channels, size, size]}\n"
    "[train]  targets: {dtype: int32, shape: []}\n"
    "ops:\n"
    "  - {op: patchify, name: patches, in: image, out: x, patch: $patch}\n"
    "  - {op: linear, name: embed, in: x, out: x, features: d}\n"
    "  - {op: parameter, name: class, out: token, shape: [1, d]}\n"
    "  - {op: concat, name: tokens, in: [token, x], out: x, axis: 0}\n"
    "  - {op: position_embedding, name: position, in: x, out: x}\n" BLOCK(
        "", "erf") "  - {op: slice, name: first, in: x, out: x, axis: 0, end: 1}\n"
                   "  - {op: layernorm, name: ln_f, in: x, out: x, eps: $eps}\n"
                   "  - {op: reshape, name: class.vector, in: x, out: x, shape: [d]}\n"
                   "  - {op: linear, name: head, in: x, out: logits, features: classes}\n"
                   "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
                   "[train]loss: loss\n";

const smp__folder_family smp__folder_families[] = {
    {"gpt2", "GPT2LMHeadModel", "hf-gpt2", false, GPT2, GPT2_TEXT},
    {"llama", "LlamaForCausalLM", "hf-llama", true, LLAMA, DECODER("$bias", "$bias", "")},
    {"mistral", "MistralForCausalLM", "hf-llama", true, MISTRAL,
     DECODER(NO_BIAS, NO_BIAS, "$window")},
    {"qwen2", "Qwen2ForCausalLM", "hf-llama", true, QWEN2, DECODER("", NO_BIAS, "")},
    {"bert", "BertForMaskedLM", "hf-bert", true, BERT, BERT_TEXT},
    {"vit", "ViTForImageClassification", "hf-vit", false, VIT, VIT_TEXT},
    {0},
};
