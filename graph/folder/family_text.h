/* Pieces of text and keys that families share. */
#ifndef SMP_GRAPH_FOLDER_FAMILY_TEXT_H
#define SMP_GRAPH_FOLDER_FAMILY_TEXT_H

#define HEAD                                                                                       \
    "  - {op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false$tied}\n"     \
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

#endif
