/* BART in Hugging Face's transformers: BartForConditionalGeneration. One table for both stacks and
 * the output; final_logits_bias, which is not trained, is neither read nor written. */
#include "graph/safetensors/name_family.h"

#define PACKED(here, there, what)                                                                  \
    here ".attn.qkv." what " = " there "self_attn.q_proj." what " + " there                        \
         "self_attn.k_proj." what " + " there "self_attn.v_proj." what "\n"

#define STACK(here, stack, ln_mlp)                                                                 \
    stack ".position.weight = model." stack ".embed_positions.weight\n" stack                      \
          ".ln.* = model." stack                                                                   \
          ".layernorm_embedding.*\n" LAYER(here "{i}", "model." stack ".layers.{i}.", ln_mlp)

#define LAYER(here, there, ln_mlp)                                                                 \
    PACKED(here, there, "weight")                                                                  \
    PACKED(here, there, "bias")                                                                    \
    here ".attn.q.* = " there "self_attn.q_proj.*\n" here ".attn.k.* = " there                     \
         "self_attn.k_proj.*\n" here ".attn.v.* = " there "self_attn.v_proj.*\n" here              \
         ".attn.o.* = " there "self_attn.out_proj.*\n" here ".ln_1.* = " there                     \
         "self_attn_layer_norm.*\n" here ".mlp.fc.* = " there "fc1.*\n" here                       \
         ".mlp.proj.* = " there "fc2.*\n" here "." ln_mlp ".* = " there "final_layer_norm.*\n"

#define CROSS "model.decoder.layers.{i}.encoder_attn."

const smp_name_family smp__names_bart = {
    "hf-bart", "BART",
    "embed.weight = model.shared.weight\n" STACK("enc", "encoder", "ln_2")
        STACK("dec", "decoder",
              "ln_3") "dec{i}.cross.q.* = " CROSS "q_proj.*\n"
                      "dec{i}.cross.kv.weight = " CROSS "k_proj.weight + " CROSS "v_proj.weight\n"
                      "dec{i}.cross.kv.bias = " CROSS "k_proj.bias + " CROSS "v_proj.bias\n"
                      "dec{i}.cross.k.* = " CROSS "k_proj.*\n"
                      "dec{i}.cross.v.* = " CROSS "v_proj.*\n"
                      "dec{i}.cross.o.* = " CROSS "out_proj.*\n"
                      "dec{i}.ln_2.* = "
                      "model.decoder.layers.{i}.encoder_attn_layer_norm.*\n"};
