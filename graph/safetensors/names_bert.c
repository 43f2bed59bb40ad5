/* BERT in Hugging Face's transformers: BertForMaskedLM. Older files call the weight and bias of a
 * layer norm gamma and beta; those are read, too. The output layer is the table of words, and has a
 * bias of its own. */
#include "graph/safetensors/name_family.h"

#define LAYER "bert.encoder.layer.{i}."
#define SELF LAYER "attention.self."
#define PACKED(what)                                                                               \
    "h{i}.attn.qkv." what " = " SELF "query." what " + " SELF "key." what " + " SELF "value." what \
    "\n"
#define NORM(ours, theirs)                                                                         \
    ours ".* = " theirs ".*\n" ours ".weight = " theirs ".gamma\n" ours ".bias = " theirs ".beta"  \
         "\n"

const smp_name_family smp__names_bert = {
    "hf-bert", "BERT",
    "embed.word.weight = bert.embeddings.word_embeddings.weight\n"
    "embed.segment.weight = bert.embeddings.token_type_embeddings.weight\n"
    "embed.position.weight = bert.embeddings.position_embeddings.weight\n" NORM(
        "embed.ln", "bert.embeddings.LayerNorm") PACKED("weight")
        PACKED("bias") "h{i}.attn.q.* = " SELF "query.*\n"
                       "h{i}.attn.k.* = " SELF "key.*\n"
                       "h{i}.attn.v.* = " SELF "value.*\n"
                       "h{i}.attn.proj.* = " LAYER "attention.output.dense.*\n" NORM(
                           "h{i}.ln_1", LAYER
                           "attention.output.LayerNorm") "h{i}.mlp.fc.* = " LAYER
                                                         "intermediate.dense.*\n"
                                                         "h{i}.mlp.proj.* = " LAYER
                                                         "output.dense.*\n" NORM(
                                                             "h{i}.ln_2", LAYER
                                                             "output.LayerNorm") "head.dense.* = "
                                                                                 "cls.predictions."
                                                                                 "transform.dense.*"
                                                                                 "\n" NORM(
                                                                                     "head.ln",
                                                                                     "cls."
                                                                                     "predictio"
                                                                                     "ns."
                                                                                     "transform"
                                                                                     ".LayerNor"
                                                                                     "m") "head"
                                                                                          ".wor"
                                                                                          "ds."
                                                                                          "bias"
                                                                                          " = "
                                                                                          "cls."
                                                                                          "pred"
                                                                                          "icti"
                                                                                          "ons."
                                                                                          "bias"
                                                                                          "\n"
                                                                                          "head"
                                                                                          ".wor"
                                                                                          "ds."
                                                                                          "weig"
                                                                                          "ht "
                                                                                          "= "
                                                                                          "cls."
                                                                                          "pred"
                                                                                          "icti"
                                                                                          "ons."
                                                                                          "deco"
                                                                                          "der."
                                                                                          "weig"
                                                                                          "ht\n"
                                                                                          "head"
                                                                                          ".wor"
                                                                                          "ds."
                                                                                          "weig"
                                                                                          "ht "
                                                                                          "= "
                                                                                          "bert"
                                                                                          ".emb"
                                                                                          "eddi"
                                                                                          "ngs."
                                                                                          "word"
                                                                                          "_emb"
                                                                                          "eddi"
                                                                                          "ngs."
                                                                                          "weig"
                                                                                          "ht"
                                                                                          "\n"};
