/* T5 in Hugging Face's transformers: T5ForConditionalGeneration. One table, one relative bias for
 * each of the two stacks, matrices without biases; gated forms (v1.1) have wi_0 and wi_1. */
#include "graph/safetensors/name_family.h"

#define ENCODER "encoder.block.{i}.layer."
#define DECODER "decoder.block.{i}.layer."
#define SELF(ours, p)                                                                              \
    ours ".qkv.weight = " p "q.weight + " p "k.weight + " p "v.weight\n" ours ".q.weight = " p     \
         "q.weight\n" ours ".k.weight = " p "k.weight\n" ours ".v.weight = " p "v.weight\n" ours   \
         ".o.weight = " p "o.weight\n" ours ".relative_bias = " p                                  \
         "relative_attention_bias.weight\n"
#define MLP(ours, p)                                                                               \
    ours ".wi.weight = " p "wi.weight\n" ours ".wi_0.weight = " p "wi_0.weight\n" ours             \
         ".wi_1.weight = " p "wi_1.weight\n" ours ".wo.weight = " p "wo.weight\n"

const smp_name_family smp__names_t5 = {
    "hf-t5", "T5",
    "embed.weight = shared.weight\n"
    "enc{i}.ln_1.weight = " ENCODER "0.layer_norm.weight\n" SELF(
        "enc{i}.attn", ENCODER
        "0.SelfAttention.") "enc{i}.ln_2.weight = " ENCODER
                            "1.layer_norm.weight\n" MLP(
                                "enc{i}.mlp", ENCODER
                                "1.DenseReluDense.") "encoder.ln_f.weight = "
                                                     "encoder.final_layer_norm.weight\n"
                                                     "dec{i}.ln_1.weight = " DECODER
                                                     "0.layer_norm.weight\n" SELF(
                                                         "dec{i}.attn", DECODER
                                                         "0.SelfAttention.") "dec{i}.ln_2."
                                                                             "weight = " DECODER
                                                                             "1.layer_norm."
                                                                             "weight\n"
                                                                             "dec{i}.cross.q."
                                                                             "weight = " DECODER
                                                                             "1."
                                                                             "EncDecAttention."
                                                                             "q.weight\n"
                                                                             "dec{i}.cross.kv."
                                                                             "weight = " DECODER
                                                                             "1."
                                                                             "EncDecAttention."
                                                                             "k.weight "
                                                                             "+ " DECODER "1."
                                                                             "EncDecAttention."
                                                                             "v.weight\n"
                                                                             "dec{i}.cross.k."
                                                                             "weight = " DECODER
                                                                             "1."
                                                                             "EncDecAttention."
                                                                             "k.weight\n"
                                                                             "dec{i}.cross.v."
                                                                             "weight = " DECODER
                                                                             "1."
                                                                             "EncDecAttention."
                                                                             "v.weight\n"
                                                                             "dec{i}.cross.o."
                                                                             "weight = " DECODER
                                                                             "1."
                                                                             "EncDecAttention."
                                                                             "o.weight\n"
                                                                             "dec{i}.ln_3."
                                                                             "weight = " DECODER
                                                                             "2.layer_norm."
                                                                             "weight\n" MLP(
                                                                                 "dec{i}.mlp",
                                                                                 DECODER
                                                                                 "2."
                                                                                 "DenseReluDens"
                                                                                 "e.") "decoder"
                                                                                       ".ln_f."
                                                                                       "weight "
                                                                                       "= "
                                                                                       "decoder"
                                                                                       ".final_"
                                                                                       "layer_"
                                                                                       "norm."
                                                                                       "weight"
                                                                                       "\n"
                                                                                       "lm_"
                                                                                       "head."
                                                                                       "weight "
                                                                                       "= "
                                                                                       "lm_"
                                                                                       "head."
                                                                                       "weight"
                                                                                       "\n"
                                                                                       "lm_"
                                                                                       "head."
                                                                                       "weight "
                                                                                       "= "
                                                                                       "shared."
                                                                                       "weight"
                                                                                       "\n"};
