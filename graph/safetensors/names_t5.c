/* T5 in Hugging Face's transformers: T5ForConditionalGeneration. One table, one relative bias for
 * each of the two stacks, matrices without biases; gated forms (v1.1) have wi_0 and wi_1. */
#include "graph/safetensors/name_family.h"

#define RULES                                                                                      \
    "embed.weight = shared.weight\n"                                                               \
    "enc{i}.ln_1.weight = encoder.block.{i}.layer.0.layer_norm.weight\n"                           \
    "enc{i}.attn.qkv.weight = encoder.block.{i}.layer.0.SelfAttention.q.weight + "                 \
    "encoder.block.{i}.layer.0.SelfAttention.k.weight + "                                          \
    "encoder.block.{i}.layer.0.SelfAttention.v.weight\n"                                           \
    "enc{i}.attn.q.weight = encoder.block.{i}.layer.0.SelfAttention.q.weight\n"                    \
    "enc{i}.attn.k.weight = encoder.block.{i}.layer.0.SelfAttention.k.weight\n"                    \
    "enc{i}.attn.v.weight = encoder.block.{i}.layer.0.SelfAttention.v.weight\n"                    \
    "enc{i}.attn.o.weight = encoder.block.{i}.layer.0.SelfAttention.o.weight\n"                    \
    "enc{i}.attn.relative_bias = "                                                                 \
    "encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight\n"                     \
    "enc{i}.ln_2.weight = encoder.block.{i}.layer.1.layer_norm.weight\n"                           \
    "enc{i}.mlp.wi.weight = encoder.block.{i}.layer.1.DenseReluDense.wi.weight\n"                  \
    "enc{i}.mlp.wi_0.weight = encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight\n"              \
    "enc{i}.mlp.wi_1.weight = encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight\n"              \
    "enc{i}.mlp.wo.weight = encoder.block.{i}.layer.1.DenseReluDense.wo.weight\n"                  \
    "encoder.ln_f.weight = encoder.final_layer_norm.weight\n"                                      \
    "dec{i}.ln_1.weight = decoder.block.{i}.layer.0.layer_norm.weight\n"                           \
    "dec{i}.attn.qkv.weight = decoder.block.{i}.layer.0.SelfAttention.q.weight + "                 \
    "decoder.block.{i}.layer.0.SelfAttention.k.weight + "                                          \
    "decoder.block.{i}.layer.0.SelfAttention.v.weight\n"                                           \
    "dec{i}.attn.q.weight = decoder.block.{i}.layer.0.SelfAttention.q.weight\n"                    \
    "dec{i}.attn.k.weight = decoder.block.{i}.layer.0.SelfAttention.k.weight\n"                    \
    "dec{i}.attn.v.weight = decoder.block.{i}.layer.0.SelfAttention.v.weight\n"                    \
    "dec{i}.attn.o.weight = decoder.block.{i}.layer.0.SelfAttention.o.weight\n"                    \
    "dec{i}.attn.relative_bias = "                                                                 \
    "decoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight\n"                     \
    "dec{i}.ln_2.weight = decoder.block.{i}.layer.1.layer_norm.weight\n"                           \
    "dec{i}.cross.q.weight = decoder.block.{i}.layer.1.EncDecAttention.q.weight\n"                 \
    "dec{i}.cross.kv.weight = decoder.block.{i}.layer.1.EncDecAttention.k.weight + "               \
    "decoder.block.{i}.layer.1.EncDecAttention.v.weight\n"                                         \
    "dec{i}.cross.k.weight = decoder.block.{i}.layer.1.EncDecAttention.k.weight\n"                 \
    "dec{i}.cross.v.weight = decoder.block.{i}.layer.1.EncDecAttention.v.weight\n"                 \
    "dec{i}.cross.o.weight = decoder.block.{i}.layer.1.EncDecAttention.o.weight\n"                 \
    "dec{i}.ln_3.weight = decoder.block.{i}.layer.2.layer_norm.weight\n"                           \
    "dec{i}.mlp.wi.weight = decoder.block.{i}.layer.2.DenseReluDense.wi.weight\n"                  \
    "dec{i}.mlp.wi_0.weight = decoder.block.{i}.layer.2.DenseReluDense.wi_0.weight\n"              \
    "dec{i}.mlp.wi_1.weight = decoder.block.{i}.layer.2.DenseReluDense.wi_1.weight\n"              \
    "dec{i}.mlp.wo.weight = decoder.block.{i}.layer.2.DenseReluDense.wo.weight\n"                  \
    "decoder.ln_f.weight = decoder.final_layer_norm.weight\n"                                      \
    "lm_head.weight = lm_head.weight\n"                                                            \
    "lm_head.weight = shared.weight\n"

const smp_name_family smp__names_t5 = {"hf-t5", "T5", RULES};
