/* BART. Its positions begin at row 2 of their tables. The bias of its logits is no weight in
 * transformers, and zeroes in what is published. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

static const smp__config_key BART[] = {
    {"vocab_size", NULL, "vocab", "50265", NULL, NULL},
    {"d_model", NULL, "d", "1024", NULL, NULL},
    {"max_position_embeddings", NULL, "T", "1024", NULL, NULL},
    {"encoder_layers", NULL, "layers", "12", NULL, NULL},
    {"encoder_attention_heads", NULL, "heads", "16", NULL, NULL},
    {"encoder_ffn_dim", NULL, "hidden", "4096", NULL, NULL},
    {"decoder_layers", NULL, "decoder_layers", "12", NULL, NULL},
    {"decoder_attention_heads", NULL, "decoder_heads", "16", NULL, NULL},
    {"decoder_ffn_dim", NULL, "decoder_hidden", "4096", NULL, NULL},
    {"num_hidden_layers", NULL, NULL, "0", NULL, NULL}, /* encoder_layers once more */
    {"activation_function", "\"gelu\"", NULL, NULL, NULL, NULL},
    DROPS("dropout"),
    {"scale_embedding", "false", NULL, NULL, NULL, NULL},
    {"tie_word_embeddings", "true", NULL, NULL, NULL, NULL},
    {"is_encoder_decoder", "true", NULL, NULL, NULL, NULL},
    {"normalize_embedding", "true", NULL, NULL, NULL, NULL},
    {"extra_pos_embeddings", "2", NULL, NULL, NULL, NULL},
    {"@final_logits_bias", "0", NULL, "0", NULL, NULL},
    {0},
};

/* Words and positions, normalised. */
#define EMBEDDED(stack, x, length)                                                                 \
    "  - {op: parameter, name: " stack ".position, out: p, shape: [$T + 2, d]}\n"                  \
    "  - {op: slice, name: " stack                                                                 \
    ".positions, in: p, out: p, axis: 0, begin: 2, end: 2 + " length "}\n"                         \
    "  - {op: add, name: " stack ".sum, in: [" x ", p], out: " x "}\n"                             \
    "  - {op: layernorm, name: " stack ".ln, in: " x ", out: " x "}\n"

#define ADDED(layer, x, y, n)                                                                      \
    "      - {op: add, name: \"" layer ".res_" n "\", in: [" x ", " y "], out: " x "}\n"           \
    "      - {op: layernorm, name: \"" layer ".ln_" n "\", in: " x ", out: " x "}\n"

#define SELF(layer, x, mask, heads)                                                                \
    "      - {op: linear, name: \"" layer ".attn.qkv\", in: " x ", out: a, features: 3 * d}\n"     \
    "      - {op: attention, name: \"" layer ".attn\", in: " mask ", out: a, heads: " heads "}\n"  \
    "      - {op: linear, name: \"" layer                                                          \
    ".attn.o\", in: a, out: a, features: d}\n" ADDED(layer, x, "a", "1")

#define MLP(layer, x, hidden, n)                                                                   \
    "      - {op: linear, name: \"" layer ".mlp.fc\", in: " x ", out: m, features: " hidden "}\n"  \
    "      - {op: gelu, name: \"" layer ".mlp.gelu\", in: m, out: m, approximate: erf}\n"          \
    "      - {op: linear, name: \"" layer                                                          \
    ".mlp.proj\", in: m, out: m, features: d}\n" ADDED(layer, x, "m", n)

static const char BART_TEXT[] =
    "let: {T: $T, U: T, d: $d, layers: $layers, decoder_layers: $decoder_layers, vocab: $vocab}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  mask: {dtype: int32, shape: [T]} # 1, and 0 for padding\n"
    "  decoder_tokens: {dtype: int32, shape: [U]} # the targets, shifted by one\n"
    "[train]  targets: {dtype: int32, shape: [U]} # -1: not asked for\n"
    "ops:\n"
    "  - {op: embedding, name: embed, in: tokens, out: e, rows: vocab, features: d$pad}\n" EMBEDDED(
        "encoder", "e",
        "T") "  - repeat: layers\n"
             "    as: i\n"
             "    ops:\n" SELF("enc{i}", "e", "[a, mask]", "$heads") MLP(
                 "enc{i}", "e", "$hidden",
                 "2") "  - {op: embedding, name: decoder.embed, in: decoder_tokens, out: x, rows: "
                      "vocab, features: d, "
                      "tie: {weight: embed.weight}$pad}\n" EMBEDDED(
                          "decoder", "x",
                          "U") "  - repeat: decoder_layers\n"
                               "    as: i\n"
                               "    ops:\n" SELF(
                                   "dec{i}", "x", "a",
                                   "$decoder_heads, causal: true") "      - {op: linear, name: "
                                                                   "\"dec{i}.cross.q\", in: x, "
                                                                   "out: q, features: d}\n"
                                                                   "      - {op: linear, name: "
                                                                   "\"dec{i}.cross.kv\", in: e, "
                                                                   "out: k, features: 2 * d}\n"
                                                                   "      - {op: split, name: "
                                                                   "\"dec{i}.cross.split\", in: k, "
                                                                   "out: [k, v]}\n"
                                                                   "      - {op: attention, name: "
                                                                   "\"dec{i}.cross\", in: [q, k, "
                                                                   "v, mask], out: c, heads: "
                                                                   "$decoder_heads}\n"
                                                                   "      - {op: linear, name: "
                                                                   "\"dec{i}.cross.o\", in: c, "
                                                                   "out: c, features: d}\n" ADDED(
                                                                       "dec{i}", "x", "c", "2")
                                                                       MLP("dec{i}", "x",
                                                                           "$decoder_hidden",
                                                                           "3") "  - {op: linear, "
                                                                                "name: lm_head, "
                                                                                "in: x, out: "
                                                                                "logits, features: "
                                                                                "vocab, bias: "
                                                                                "false, weight: "
                                                                                "embed.weight}\n"
                                                                                "[train]  - {op: "
                                                                                "cross_entropy, "
                                                                                "name: loss, in: "
                                                                                "[logits, "
                                                                                "targets], out: "
                                                                                "loss}\n"
                                                                                "[train]loss: "
                                                                                "loss\n";

const smp__folder_family smp__family_bart = {
    "bart", "BartForConditionalGeneration", "hf-bart", "1", BART, BART_TEXT};
