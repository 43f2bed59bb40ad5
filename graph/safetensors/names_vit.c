/* The vision transformer in Hugging Face's transformers: ViTForImageClassification. Patches of
 * three channels come out of a convolution, here `patchify` and `linear` (the same order of
 * values); class token and positions have a dimension of one before them. */
#include "graph/safetensors/name_family.h"

#define LAYER "vit.encoder.layer.{i}."
#define SELF LAYER "attention.attention."
#define PACKED(what)                                                                               \
    "h{i}.attn.qkv." what " = " SELF "query." what " + " SELF "key." what " + " SELF "value." what \
    "\n"

const smp_name_family smp__names_vit = {
    "hf-vit", "vision transformers",
    "embed.weight = vit.embeddings.patch_embeddings.projection.weight shaped d0x3x?x?\n"
    "embed.bias = vit.embeddings.patch_embeddings.projection.bias\n"
    "class.weight = vit.embeddings.cls_token shaped 1xd0xd1\n"
    "position.weight = vit.embeddings.position_embeddings shaped 1xd0xd1\n"
    "h{i}.ln_1.* = " LAYER "layernorm_before.*\n" PACKED("weight")
        PACKED("bias") "h{i}.attn.q.* = " SELF "query.*\n"
                       "h{i}.attn.k.* = " SELF "key.*\n"
                       "h{i}.attn.v.* = " SELF "value.*\n"
                       "h{i}.attn.proj.* = " LAYER "attention.output.dense.*\n"
                       "h{i}.ln_2.* = " LAYER "layernorm_after.*\n"
                       "h{i}.mlp.fc.* = " LAYER "intermediate.dense.*\n"
                       "h{i}.mlp.proj.* = " LAYER "output.dense.*\n"
                       "ln_f.* = vit.layernorm.*\n"
                       "head.* = classifier.*\n"};
