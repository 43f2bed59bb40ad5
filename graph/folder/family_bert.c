/* BERT, RoBERTa and DistilBERT: they differ in positions, segments and names of keys. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

#define WORDS ", weight: embed.word.weight" /* of the output layer, where it is tied */

static const smp__config_key BERT[] = {
    {"vocab_size", NULL, "vocab", "30522", NULL, NULL},
    ENCODER,
    DROPS("hidden_dropout_prob"),
    DROPS("attention_probs_dropout_prob"),
    {"max_position_embeddings", NULL, "T", "512", NULL, NULL},
    {"type_vocab_size", NULL, "types", "2", NULL, NULL},
    {"tie_word_embeddings", "true", NULL, NULL, NULL, NULL},
    {"position_embedding_type", "\"absolute\"", NULL, NULL, NULL, NULL},
    {0},
};

static const smp__config_key ROBERTA[] = {
    {"vocab_size", NULL, "vocab", "50265", NULL, NULL},
    ENCODER,
    DROPS("hidden_dropout_prob"),
    DROPS("attention_probs_dropout_prob"),
    {"max_position_embeddings", NULL, "positions", "512", NULL, NULL},
    {"pad_token_id", NULL, "first", "1", NULL, NULL},
    {"type_vocab_size", NULL, "types", "2", NULL, NULL},
    {"tie_word_embeddings", "true", NULL, NULL, NULL, NULL},
    {"position_embedding_type", "\"absolute\"", NULL, NULL, NULL, NULL},
    {0},
};

static const smp__config_key DISTILBERT[] = {
    {"vocab_size", NULL, "vocab", "30522", NULL, NULL},
    {"dim", NULL, "d", "768", NULL, NULL},
    {"n_layers", NULL, "layers", "6", NULL, NULL},
    {"n_heads", NULL, "heads", "12", NULL, NULL},
    {"hidden_dim", NULL, "hidden", "3072", NULL, NULL},
    {"max_position_embeddings", NULL, "T", "512", NULL, NULL},
    {"tie_word_embeddings", NULL, "tied", "1", WORDS, ""},
    {"activation", "\"gelu\"", NULL, NULL, NULL, NULL},
    DROPS("dropout"),
    DROPS("attention_dropout"),
    {"sinusoidal_pos_embds", "false", NULL, NULL, NULL, NULL},
    {0},
};

/* positions: how many there are, of `let`; inputs besides tokens and mask; embedded: what words,
 * segments and positions make. */
#define TEXT(positions, inputs, embedded, eps, tied)                                               \
    "let: {" positions                                                                             \
    ", d: $d, heads: $heads, layers: $layers, hidden: $hidden, vocab: $vocab}\n"                   \
    "inputs:\n"                                                                                    \
    "  tokens: {dtype: int32, shape: [T]}\n" inputs                                                \
    "  mask: {dtype: int32, shape: [T]} # 1, and 0 for padding\n"                                  \
    "[train]  targets: {dtype: int32, shape: [T]} # -1: not asked for\n"                           \
    "ops:\n"                                                                                       \
    "  - {op: embedding, name: embed.word, in: tokens, out: word, rows: vocab, features: "         \
    "d$pad}\n" embedded "  - {op: layernorm, name: embed.ln, in: x, out: x, eps: " eps "}\n"       \
    "  - repeat: layers\n"                                                                         \
    "    as: i\n"                                                                                  \
    "    ops:\n"                                                                                   \
    "      - {op: linear, name: \"h{i}.attn.qkv\", in: x, out: a, features: 3 * d}\n"              \
    "      - {op: attention, name: \"h{i}.attn\", in: [a, mask], out: a, heads: heads}\n"          \
    "      - {op: linear, name: \"h{i}.attn.proj\", in: a, out: a, features: d}\n"                 \
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"                                \
    "      - {op: layernorm, name: \"h{i}.ln_1\", in: x, out: x, eps: " eps "}\n"                  \
    "      - {op: linear, name: \"h{i}.mlp.fc\", in: x, out: m, features: hidden}\n"               \
    "      - {op: gelu, name: \"h{i}.mlp.gelu\", in: m, out: m, approximate: erf}\n"               \
    "      - {op: linear, name: \"h{i}.mlp.proj\", in: m, out: m, features: d}\n"                  \
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"                                \
    "      - {op: layernorm, name: \"h{i}.ln_2\", in: x, out: x, eps: " eps "}\n"                  \
    "  - {op: linear, name: head.dense, in: x, out: x, features: d}\n"                             \
    "  - {op: gelu, name: head.gelu, in: x, out: x, approximate: erf}\n"                           \
    "  - {op: layernorm, name: head.ln, in: x, out: x, eps: " eps "}\n"                            \
    "  - {op: linear, name: head.words, in: x, out: logits, features: vocab" tied "}\n"            \
    "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"               \
    "[train]loss: loss\n"

#define SEGMENTS "  segments: {dtype: int32, shape: [T]}\n"
#define SEGMENT                                                                                    \
    "  - {op: embedding, name: embed.segment, in: segments, out: segment, rows: $types, "          \
    "features: d}\n"
#define POSITION "  - {op: parameter, name: embed.position, out: position, shape: [T, d]}\n"
#define SUM(parts) "  - {op: add, name: embed.sum, in: [" parts "], out: x}\n"

const smp__folder_family smp__family_bert = {
    "bert",
    "BertForMaskedLM",
    "hf-bert",
    "0",
    BERT,
    TEXT("T: $T", SEGMENTS, SEGMENT POSITION SUM("word, segment, position"), "$eps", WORDS)};

/* Positions are those of tokens that are no padding, wherever it lies: an input says them. */
const smp__folder_family smp__family_roberta = {
    "roberta",
    "RobertaForMaskedLM",
    "hf-roberta",
    "1",
    ROBERTA,
    TEXT("pad: $first, rows: $positions, T: rows - pad - 1",
         SEGMENTS "  positions: {dtype: int32, shape: [T]} # tokens count from pad + 1 on; "
                  "of padding: pad\n",
         SEGMENT "  - {op: embedding, name: embed.position, in: positions, out: position, rows: "
                 "rows, features: d$pad}\n" SUM("word, segment, position"),
         "$eps", WORDS)};

const smp__folder_family smp__family_distilbert = {
    "distilbert",    "DistilBertForMaskedLM",
    "hf-distilbert", "0",
    DISTILBERT,      TEXT("T: $T", "", POSITION SUM("word, position"), "1e-12", "$tied")};
