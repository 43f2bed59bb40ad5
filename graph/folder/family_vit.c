/* ViT. */
#include <stddef.h>

#include "graph/folder/family.h"
#include "graph/folder/family_text.h"

static const smp__config_key VIT[] = {
    {"image_size", NULL, "size", "224", NULL, NULL},
    {"patch_size", NULL, "patch", "16", NULL, NULL},
    {"num_channels", NULL, "channels", "3", NULL, NULL},
    ENCODER,
    {"id2label", NULL, "classes", "2", NULL, NULL},
    {"qkv_bias", "true", NULL, NULL, NULL, NULL},
    {0},
};

static const char VIT_TEXT[] =
    "let: {size: $size, d: $d, heads: $heads, layers: $layers, hidden: $hidden, classes: "
    "$classes}\n"
    "inputs:\n"
    "  image: {dtype: float32, shape: [$channels, size, size]}\n"
    "[train]  targets: {dtype: int32, shape: []}\n"
    "ops:\n"
    "  - {op: patchify, name: patches, in: image, out: x, patch: $patch}\n"
    "  - {op: linear, name: embed, in: x, out: x, features: d}\n"
    "  - {op: parameter, name: class, out: token, shape: [1, d]}\n"
    "  - {op: concat, name: tokens, in: [token, x], out: x, axis: 0}\n"
    "  - {op: position_embedding, name: position, in: x, out: x}\n" BLOCK(
        "", "erf") "  - {op: slice, name: first, in: x, out: x, axis: 0, end: 1}\n"
                   "  - {op: layernorm, name: ln_f, in: x, out: x, eps: $eps}\n"
                   "  - {op: reshape, name: class.vector, in: x, out: x, shape: [d]}\n"
                   "  - {op: linear, name: head, in: x, out: logits, features: classes}\n"
                   "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
                   "[train]loss: loss\n";

const smp__folder_family smp__family_vit = {
    "vit", "ViTForImageClassification", "hf-vit", NULL, VIT, VIT_TEXT};
