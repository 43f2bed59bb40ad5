/* BERT, RoBERTa and DistilBERT in Hugging Face's transformers: BertForMaskedLM and its kin. Older
 * files of BERT call the weight and bias of a layer norm gamma and beta; those are read, too. The
 * output layer is the table of words, and has a bias of its own. */
#include "graph/safetensors/name_family.h"

#define SEGMENTS(p) "embed.segment.weight = " p "embeddings.token_type_embeddings.weight\n"

#define EMBEDDED(p)                                                                                \
    "embed.word.weight = " p "embeddings.word_embeddings.weight\n"                                 \
    "embed.position.weight = " p "embeddings.position_embeddings.weight\n"                         \
    "embed.ln.* = " p "embeddings.LayerNorm.*\n"

/* q, k and v in one, or each for itself. */
#define PACKED(what, q, k, v)                                                                      \
    "h{i}.attn.qkv." what " = " q "." what " + " k "." what " + " v "." what "\n"
#define ATTENTION(q, k, v)                                                                         \
    PACKED("weight", q, k, v)                                                                      \
    PACKED("bias", q, k, v)                                                                        \
    "h{i}.attn.q.* = " q ".*\n"                                                                    \
    "h{i}.attn.k.* = " k ".*\n"                                                                    \
    "h{i}.attn.v.* = " v ".*\n"

#define LAYERS(layer)                                                                              \
    ATTENTION(layer "attention.self.query", layer "attention.self.key",                            \
              layer "attention.self.value")                                                        \
    "h{i}.attn.proj.* = " layer "attention.output.dense.*\n"                                       \
    "h{i}.ln_1.* = " layer "attention.output.LayerNorm.*\n"                                        \
    "h{i}.mlp.fc.* = " layer "intermediate.dense.*\n"                                              \
    "h{i}.mlp.proj.* = " layer "output.dense.*\n"                                                  \
    "h{i}.ln_2.* = " layer "output.LayerNorm.*\n"

#define LAYER "bert.encoder.layer.{i}."
#define OLDER(here, there) here ".weight = " there ".gamma\n" here ".bias = " there ".beta\n"

const smp_name_family smp__names_bert = {
    "hf-bert", "BERT",
    SEGMENTS("bert.") EMBEDDED("bert.")
        LAYERS(LAYER) "head.dense.* = cls.predictions.transform.dense.*\n"
                      "head.ln.* = cls.predictions.transform.LayerNorm.*\n"
                      "head.words.bias = cls.predictions.bias\n"
                      "head.words.weight = cls.predictions.decoder.weight\n"
                      "head.words.weight = bert.embeddings.word_embeddings.weight\n" OLDER(
                          "embed.ln", "bert.embeddings.LayerNorm")
                          OLDER("h{i}.ln_1", LAYER "attention.output.LayerNorm")
                              OLDER("h{i}.ln_2", LAYER "output.LayerNorm")
                                  OLDER("head.ln", "cls.predictions.transform.LayerNorm")};

const smp_name_family smp__names_roberta = {
    "hf-roberta", "RoBERTa",
    SEGMENTS("roberta.") EMBEDDED("roberta.")
        LAYERS("roberta.encoder.layer.{i}.") "head.dense.* = lm_head.dense.*\n"
                                             "head.ln.* = lm_head.layer_norm.*\n"
                                             "head.words.bias = lm_head.bias\n"};

#define DISTILLED "distilbert.transformer.layer.{i}."

const smp_name_family smp__names_distilbert = {
    "hf-distilbert", "DistilBERT",
    EMBEDDED("distilbert.") ATTENTION(
        DISTILLED "attention.q_lin", DISTILLED "attention.k_lin",
        DISTILLED
        "attention.v_lin") "h{i}.attn.proj.* = " DISTILLED "attention.out_lin.*\n"
                           "h{i}.ln_1.* = " DISTILLED "sa_layer_norm.*\n"
                           "h{i}.mlp.fc.* = " DISTILLED "ffn.lin1.*\n"
                           "h{i}.mlp.proj.* = " DISTILLED "ffn.lin2.*\n"
                           "h{i}.ln_2.* = " DISTILLED "output_layer_norm.*\n"
                           "head.dense.* = vocab_transform.*\n"
                           "head.ln.* = vocab_layer_norm.*\n"
                           "head.words.bias = vocab_projector.bias\n"
                           "head.words.weight = vocab_projector.weight\n"
                           "head.words.weight = distilbert.embeddings.word_embeddings.weight\n"};
