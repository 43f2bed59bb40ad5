/* T5, and T5 1.1 with gates. transformers scales what the table as output layer gets where
 * `tie_word_embeddings` was true; without that the output layer may be the table or its own, as the
 * weights have it. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

static const smp__config_key T5[] = {
    {"vocab_size", NULL, "vocab", "32128", NULL, NULL},
    {"d_model", NULL, "d", "512", NULL, NULL},
    {"d_model", NULL, "root", "512", "#^-0.5", NULL},
    {"d_kv", NULL, "width", "64", NULL, NULL},
    {"d_ff", NULL, "hidden", "2048", NULL, NULL},
    {"num_layers", NULL, "layers", "6", NULL, NULL},
    {"num_decoder_layers", NULL, "decoder_layers", "num_layers", NULL, NULL},
    {"num_heads", NULL, "heads", "8", NULL, NULL},
    {"n_positions", NULL, "T", "512", NULL, NULL},
    {"relative_attention_num_buckets", NULL, "buckets", "32", NULL, NULL},
    {"relative_attention_max_distance", NULL, "distance", "128", NULL, NULL},
    {"layer_norm_epsilon", NULL, "eps", "1e-06", NULL, NULL},
    {"feed_forward_proj", "[\"relu\", \"gated-gelu\"]", "gated", NULL, NULL, NULL},
    {"dense_act_fn", "[\"relu\", \"gelu_new\"]", NULL, "feed_forward_proj", NULL, NULL},
    {"is_gated_act", "[false, true]", NULL, "feed_forward_proj", NULL, NULL},
    DROPS("dropout_rate"),
    {"is_encoder_decoder", "true", NULL, NULL, NULL, NULL},
    {"tie_word_embeddings", NULL, NULL, "1", NULL, NULL},
    {"scale_decoder_outputs", NULL, "scaled", "tie_word_embeddings", NULL, NULL},
    {"@lm_head.weight", NULL, "own", "1", "", ", weight: embed.weight"},
    {0},
};

#define MLP(layer, x, ln)                                                                          \
    "      - {op: rmsnorm, name: \"" layer ".ln_" ln "\", in: " x ", out: m, eps: $eps}\n"         \
    "[!gated]      - {op: linear, name: \"" layer                                                  \
    ".mlp.wi\", in: m, out: m, features: hidden, bias: false}\n"                                   \
    "[!gated]      - {op: relu, name: \"" layer ".mlp.relu\", in: m, out: m}\n"                    \
    "[gated]      - {op: linear, name: \"" layer                                                   \
    ".mlp.wi_0\", in: m, out: g, features: hidden, bias: false}\n"                                 \
    "[gated]      - {op: gelu, name: \"" layer ".mlp.gelu\", in: g, out: g, approximate: tanh}\n"  \
    "[gated]      - {op: linear, name: \"" layer                                                   \
    ".mlp.wi_1\", in: m, out: m, features: hidden, bias: false}\n"                                 \
    "[gated]      - {op: mul, name: \"" layer ".mlp.gated\", in: [g, m], out: m}\n"                \
    "      - {op: linear, name: \"" layer ".mlp.wo\", in: m, out: m, features: d, bias: false}\n"  \
    "      - {op: add, name: \"" layer ".res_" ln "\", in: [" x ", m], out: " x "}\n"

#define SELF(stack, layer, x, mask, causal)                                                        \
    "      - {op: rmsnorm, name: \"" layer ".ln_1\", in: " x ", out: a, eps: $eps}\n"              \
    "      - {op: linear, name: \"" layer                                                          \
    ".attn.qkv\", in: a, out: a, features: 3 * heads * width, bias: false}\n"                      \
    "      - {op: attention, name: \"" layer ".attn\", in: " mask ", out: a, heads: heads, "       \
    "scale: 1, buckets: $buckets, max_distance: $distance" causal ", weight: " stack               \
    "0.attn.relative_bias}\n"                                                                      \
    "      - {op: linear, name: \"" layer ".attn.o\", in: a, out: a, features: d, bias: false}\n"  \
    "      - {op: add, name: \"" layer ".res_1\", in: [" x ", a], out: " x "}\n"

static const char T5_TEXT[] =
    "let: {T: $T, U: T, d: $d, heads: $heads, width: $width, hidden: $hidden, layers: $layers, "
    "decoder_layers: $decoder_layers, vocab: $vocab}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  mask: {dtype: int32, shape: [T]} # 1, and 0 for padding\n"
    "  decoder_tokens: {dtype: int32, shape: [U]} # the targets, shifted by one\n"
    "[train]  targets: {dtype: int32, shape: [U]} # -1: not asked for\n"
    "ops:\n"
    "  - {op: embedding, name: embed, in: tokens, out: e, rows: vocab, features: d}\n"
    "  - repeat: layers\n"
    "    as: i\n"
    "    ops:\n" SELF("enc", "enc{i}", "e", "[a, mask]", "") MLP(
        "enc{i}", "e",
        "2") "  - {op: rmsnorm, name: encoder.ln_f, in: e, out: e, eps: $eps}\n"
             "  - {op: embedding, name: decoder.embed, in: decoder_tokens, out: x, rows: vocab, "
             "features: d, tie: {weight: embed.weight}}\n"
             "  - repeat: decoder_layers\n"
             "    as: i\n"
             "    ops:\n" SELF(
                 "dec", "dec{i}", "x", "a",
                 ", causal: true") "      - {op: rmsnorm, name: \"dec{i}.ln_2\", in: x, out: q, "
                                   "eps: $eps}\n"
                                   "      - {op: linear, name: \"dec{i}.cross.q\", in: q, out: q, "
                                   "features: heads * "
                                   "width, bias: false}\n"
                                   "      - {op: linear, name: \"dec{i}.cross.kv\", in: e, out: k, "
                                   "features: 2 * heads * "
                                   "width, bias: false}\n"
                                   "      - {op: split, name: \"dec{i}.cross.split\", in: k, out: "
                                   "[k, v]}\n"
                                   "      - {op: attention, name: \"dec{i}.cross\", in: [q, k, v, "
                                   "mask], out: c, heads: "
                                   "heads, scale: 1}\n"
                                   "      - {op: linear, name: \"dec{i}.cross.o\", in: c, out: c, "
                                   "features: d, bias: "
                                   "false}\n"
                                   "      - {op: add, name: \"dec{i}.res_2\", in: [x, c], out: "
                                   "x}\n" MLP("dec{i}", "x",
                                              "3") "  - {op: rmsnorm, name: decoder.ln_f, in: x, "
                                                   "out: x, eps: $eps}\n"
                                                   "[scaled]  - {op: scale, name: decoder.scale, "
                                                   "in: x, out: x, factor: $root}\n"
                                                   "[scaled]  - {op: linear, name: lm_head, in: x, "
                                                   "out: logits, features: vocab, "
                                                   "bias: false, weight: embed.weight}\n"
                                                   "[!scaled]  - {op: linear, name: lm_head, in: "
                                                   "x, out: logits, features: vocab, "
                                                   "bias: false$own}\n"
                                                   "[train]  - {op: cross_entropy, name: loss, in: "
                                                   "[logits, targets], out: loss}\n"
                                                   "[train]loss: loss\n";

const smp__folder_family smp__family_t5 = {"t5",   "T5ForConditionalGeneration", "hf-t5", NULL, T5,
                                           T5_TEXT};
