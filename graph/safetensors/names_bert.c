/* BERT in Hugging Face's transformers: BertForMaskedLM. Older files call the weight and bias of a
 * layer norm gamma and beta; those are read, too. The output layer is the table of words, and has a
 * bias of its own. */
#include "graph/safetensors/name_family.h"

#define RULES                                                                                      \
    "embed.word.weight = bert.embeddings.word_embeddings.weight\n"                                 \
    "embed.segment.weight = bert.embeddings.token_type_embeddings.weight\n"                        \
    "embed.position.weight = bert.embeddings.position_embeddings.weight\n"                         \
    "embed.ln.* = bert.embeddings.LayerNorm.*\n"                                                   \
    "embed.ln.weight = bert.embeddings.LayerNorm.gamma\n"                                          \
    "embed.ln.bias = bert.embeddings.LayerNorm.beta\n"                                             \
    "h{i}.attn.qkv.weight = bert.encoder.layer.{i}.attention.self.query.weight + "                 \
    "bert.encoder.layer.{i}.attention.self.key.weight + "                                          \
    "bert.encoder.layer.{i}.attention.self.value.weight\n"                                         \
    "h{i}.attn.qkv.bias = bert.encoder.layer.{i}.attention.self.query.bias + "                     \
    "bert.encoder.layer.{i}.attention.self.key.bias + "                                            \
    "bert.encoder.layer.{i}.attention.self.value.bias\n"                                           \
    "h{i}.attn.q.* = bert.encoder.layer.{i}.attention.self.query.*\n"                              \
    "h{i}.attn.k.* = bert.encoder.layer.{i}.attention.self.key.*\n"                                \
    "h{i}.attn.v.* = bert.encoder.layer.{i}.attention.self.value.*\n"                              \
    "h{i}.attn.proj.* = bert.encoder.layer.{i}.attention.output.dense.*\n"                         \
    "h{i}.ln_1.* = bert.encoder.layer.{i}.attention.output.LayerNorm.*\n"                          \
    "h{i}.ln_1.weight = bert.encoder.layer.{i}.attention.output.LayerNorm.gamma\n"                 \
    "h{i}.ln_1.bias = bert.encoder.layer.{i}.attention.output.LayerNorm.beta\n"                    \
    "h{i}.mlp.fc.* = bert.encoder.layer.{i}.intermediate.dense.*\n"                                \
    "h{i}.mlp.proj.* = bert.encoder.layer.{i}.output.dense.*\n"                                    \
    "h{i}.ln_2.* = bert.encoder.layer.{i}.output.LayerNorm.*\n"                                    \
    "h{i}.ln_2.weight = bert.encoder.layer.{i}.output.LayerNorm.gamma\n"                           \
    "h{i}.ln_2.bias = bert.encoder.layer.{i}.output.LayerNorm.beta\n"                              \
    "head.dense.* = cls.predictions.transform.dense.*\n"                                           \
    "head.ln.* = cls.predictions.transform.LayerNorm.*\n"                                          \
    "head.ln.weight = cls.predictions.transform.LayerNorm.gamma\n"                                 \
    "head.ln.bias = cls.predictions.transform.LayerNorm.beta\n"                                    \
    "head.words.bias = cls.predictions.bias\n"                                                     \
    "head.words.weight = cls.predictions.decoder.weight\n"                                         \
    "head.words.weight = bert.embeddings.word_embeddings.weight\n"

const smp_name_family smp__names_bert = {"hf-bert", "BERT", RULES};
