/* BERT. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

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

const smp__folder_family smp__family_bert = {"bert", "BertForMaskedLM", "hf-bert", true,
                                             BERT,   BERT_TEXT};
