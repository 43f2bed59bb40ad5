/* GPT-2 in Hugging Face's transformers: GPT2LMHeadModel, or, without `transformer.`, GPT2Model as
 * OpenAI's files have it. Their Conv1D keeps matrices with inputs as rows. The output layer is the
 * table of tokens, and is not in the file. For models with one qkv, or with q, k and v. */
#include "graph/safetensors/name_family.h"

/* In both forms. */
#define BLOCK(p)                                                                                   \
    "wte.weight = " p "wte.weight\n"                                                               \
    "wpe.weight = " p "wpe.weight\n"                                                               \
    "h{i}.ln_1.* = " p "h.{i}.ln_1.*\n"                                                            \
    "h{i}.attn.qkv.weight = " p "h.{i}.attn.c_attn.weight transposed\n"                            \
    "h{i}.attn.qkv.bias = " p "h.{i}.attn.c_attn.bias\n"                                           \
    "h{i}.attn.q.weight = " p "h.{i}.attn.c_attn.weight transposed part 0/3\n"                     \
    "h{i}.attn.k.weight = " p "h.{i}.attn.c_attn.weight transposed part 1/3\n"                     \
    "h{i}.attn.v.weight = " p "h.{i}.attn.c_attn.weight transposed part 2/3\n"                     \
    "h{i}.attn.q.bias = " p "h.{i}.attn.c_attn.bias part 0/3\n"                                    \
    "h{i}.attn.k.bias = " p "h.{i}.attn.c_attn.bias part 1/3\n"                                    \
    "h{i}.attn.v.bias = " p "h.{i}.attn.c_attn.bias part 2/3\n"                                    \
    "h{i}.attn.proj.weight = " p "h.{i}.attn.c_proj.weight transposed\n"                           \
    "h{i}.attn.proj.bias = " p "h.{i}.attn.c_proj.bias\n"                                          \
    "h{i}.ln_2.* = " p "h.{i}.ln_2.*\n"                                                            \
    "h{i}.mlp.fc.weight = " p "h.{i}.mlp.c_fc.weight transposed\n"                                 \
    "h{i}.mlp.fc.bias = " p "h.{i}.mlp.c_fc.bias\n"                                                \
    "h{i}.mlp.proj.weight = " p "h.{i}.mlp.c_proj.weight transposed\n"                             \
    "h{i}.mlp.proj.bias = " p "h.{i}.mlp.c_proj.bias\n"                                            \
    "ln_f.* = " p "ln_f.*\n"

const smp_name_family smp__names_gpt2 = {"hf-gpt2", "GPT-2",
                                         BLOCK("transformer.")
                                             BLOCK("") "lm_head.weight = lm_head.weight\n"
                                                       "lm_head.weight = transformer.wte.weight\n"
                                                       "lm_head.weight = wte.weight\n"};
