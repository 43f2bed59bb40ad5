/* Pieces of text and keys that families share. */
#ifndef SMP_GRAPH_FOLDER_FAMILY_TEXT_H
#define SMP_GRAPH_FOLDER_FAMILY_TEXT_H

#define HEAD HEAD_AND("")
/* more: lines after the logits. */
#define HEAD_AND(more)                                                                             \
    "  - {op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false$tied}" more  \
    "\n"                                                                                           \
    "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"               \
    "[train]loss: loss\n"

#define INPUTS                                                                                     \
    "inputs:\n"                                                                                    \
    "  tokens: {dtype: int32, shape: [T]}\n"                                                       \
    "[train]  targets: {dtype: int32, shape: [T]}\n"                                               \
    "ops:\n"                                                                                       \
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d$pad}\n"

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

/* With what a config means that lacks these keys, NULL: it may not. */
#define SIZES(vocab_size, positions, kv_heads)                                                     \
    SIZES_OF(vocab_size, positions, kv_heads, "0", "1e-06")
#define SIZES_OF(vocab_size, positions, kv_heads, head_dim, eps)                                   \
    {"vocab_size", NULL, "vocab", vocab_size, NULL, NULL},                                         \
        {"hidden_size", NULL, "d", NULL, NULL, NULL},                                              \
        {"intermediate_size", NULL, "hidden", NULL, NULL, NULL},                                   \
        {"num_hidden_layers", NULL, "layers", NULL, NULL, NULL},                                   \
        {"num_attention_heads", NULL, "heads", NULL, NULL, NULL},                                  \
        {"num_key_value_heads", NULL, "kv_heads", kv_heads, "#", "heads"},                         \
        {"head_dim", NULL, "width", head_dim, "#", "d / heads"},                                   \
        {"max_position_embeddings", NULL, "T", positions, NULL, NULL},                             \
        {"rms_norm_eps", NULL, "eps", eps, NULL, NULL},                                            \
        {"tie_word_embeddings", NULL, "tied", "0", TIED},                                          \
        {"hidden_act", "\"silu\"", NULL, NULL, NULL, NULL},                                        \
    {                                                                                              \
        "is_causal", "true", NULL, NULL, NULL, NULL                                                \
    }

/* A probability of dropout that a class has of itself. */
#define DROPS(key)                                                                                 \
    {                                                                                              \
        key, NULL, NULL, "0.1", NULL, NULL                                                         \
    }

#define NO_BIAS ", bias: false"

/* A block of a decoder: what its layers are made of; of LLaMA and its kin. */
#define LET                                                                                        \
    "let: {T: $T, d: $d, heads: $heads, kv_heads: $kv_heads, width: $width, layers: $layers, "     \
    "vocab: $vocab, hidden: $hidden"

#define LAYERS                                                                                     \
    "  - repeat: layers\n"                                                                         \
    "    as: i\n"                                                                                  \
    "    ops:\n"                                                                                   \
    "      - {op: rmsnorm, name: \"h{i}.norm_1\", in: x, out: a, eps: $eps}\n"

#define QKV(bias)                                                                                  \
    "      - {op: linear, name: \"h{i}.q\", in: a, out: q, features: heads * width" bias "}\n"     \
    "      - {op: linear, name: \"h{i}.k\", in: a, out: k, features: kv_heads * width" bias "}\n"  \
    "      - {op: linear, name: \"h{i}.v\", in: a, out: v, features: kv_heads * width" bias "}\n"

/* Every head of q or k by itself, by one weight. */
#define HEAD_NORM(x, heads)                                                                        \
    "      - {op: reshape, name: \"h{i}." x "_heads\", in: " x ", out: " x ", shape: [T, " heads   \
    ", width]}\n"                                                                                  \
    "      - {op: rmsnorm, name: \"h{i}." x "_norm\", in: " x ", out: " x ", eps: $eps}\n"         \
    "      - {op: reshape, name: \"h{i}." x "_rows\", in: " x ", out: " x ", shape: [T, " heads    \
    " * width]}\n"

#define QK_NORM HEAD_NORM("q", "heads") HEAD_NORM("k", "kv_heads")

#define ROPE ROPE_OF("", "$rope") ROPE_OF("[long_rope]", "$long_rope")
#define ROPE_OF(stands, rope)                                                                      \
    stands "      - {op: rope, name: \"h{i}.q_rope\", in: q, out: q, heads: heads" rope            \
           "}\n" stands                                                                            \
           "      - {op: rope, name: \"h{i}.k_rope\", in: k, out: k, heads: kv_heads" rope "}\n"

#define ATTEND(more, o_bias)                                                                       \
    "      - {op: attention, name: \"h{i}.attn\", in: [q, k, v], out: a, heads: heads, kv_heads: " \
    "kv_heads, causal: true" more "}\n"                                                            \
    "      - {op: linear, name: \"h{i}.o\", in: a, out: a, features: d" o_bias "}\n"

#define BETWEEN                                                                                    \
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"                                \
    "      - {op: rmsnorm, name: \"h{i}.norm_2\", in: x, out: m, eps: $eps}\n"

/* in: how far the lines stand from the left. */
#define GATE_UP(in)                                                                                \
    in "- {op: linear, name: \"h{i}.gate\", in: m, out: g, features: hidden, bias: false}\n" in    \
       "- {op: linear, name: \"h{i}.up\", in: m, out: u, features: hidden, bias: false}\n"

#define DOWN(in, act)                                                                              \
    in "- {op: " act ", name: \"h{i}.act\", in: g, out: g}\n" in                                   \
       "- {op: mul, name: \"h{i}.gated\", in: [g, u], out: m}\n" in                                \
       "- {op: linear, name: \"h{i}.down\", in: m, out: m, features: d, bias: false}\n"

#define IN "      "

#define END                                                                                        \
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"                                \
    "  - {op: rmsnorm, name: norm, in: x, out: x, eps: $eps}\n"

#define DECODER(qkv_bias, qk_norm, o_bias, windows, window)                                        \
    LET windows "}\n" INPUTS LAYERS QKV(qkv_bias)                                                  \
    qk_norm ROPE ATTEND(window, o_bias)                                                            \
    BETWEEN GATE_UP(IN) DOWN(IN, "silu") END HEAD

#endif
