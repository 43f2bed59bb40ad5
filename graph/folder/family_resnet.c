/* ResNet, with basic blocks or bottlenecks. No config says the size of images. */
#include <stddef.h>

#include "graph/folder/family.h"

static const smp__config_key RESNET[] = {
    {"num_channels", NULL, "channels", "3", NULL, NULL},
    {"embedding_size", NULL, "stem", "64", NULL, NULL},
    {"hidden_sizes", NULL, "sizes", "[256, 512, 1024, 2048]", NULL, NULL},
    {"depths", NULL, "depths", "[3, 4, 6, 3]", NULL, NULL},
    {"depths", NULL, "stages", "[3, 4, 6, 3]", "#", NULL},
    {"layer_type", "[\"basic\", \"bottleneck\"]", "narrow", "1", NULL, NULL},
    {"downsample_in_first_stage", NULL, "first", "0", NULL, NULL},
    {"downsample_in_bottleneck", NULL, "early", "0", NULL, NULL},
    {"hidden_act", "\"relu\"", NULL, NULL, NULL, NULL},
    {"id2label", NULL, "classes", "2", NULL, NULL},
    {0},
};

/* there: before each of its lines. */
#define CONVOLUTION(there, n, x, channels, kernel, padding, stride)                                \
    there "          - {op: conv2d, name: \"s{s}.b{b}.conv_" n "\", in: " x                        \
          ", out: a, channels: \"" channels "\", kernel: " kernel ", stride: \"" stride            \
          "\", padding: " padding ", bias: false}\n" there                                         \
          "          - {op: batchnorm, name: \"s{s}.b{b}.norm_" n "\", in: a, out: a}\n"
#define RELU(there, n)                                                                             \
    there "          - {op: relu, name: \"s{s}.b{b}.relu_" n "\", in: a, out: a}\n"
#define BASIC "[!narrow]"
#define NARROW "[narrow]"

/* The first block of a stage halves the image, that of the first stage where the config says so. */
#define HALVED "(s + first > 0)"
#define IF_FIRST "(b == 0) * " HALVED

static const char RESNET_TEXT[] =
    "let: {size: 224, c: $sizes, depths: $depths, stem: $stem, first: $first, early: $early, "
    "classes: $classes}\n"
    "inputs:\n"
    "  image: {dtype: float32, shape: [$channels, size, size]}\n"
    "[train]  targets: {dtype: int32, shape: []}\n"
    "ops:\n"
    "  - {op: conv2d, name: stem.conv, in: image, out: x, channels: stem, kernel: 7, stride: 2, "
    "padding: 3, bias: false}\n"
    "  - {op: batchnorm, name: stem.norm, in: x, out: x}\n"
    "  - {op: relu, name: stem.relu, in: x, out: x}\n"
    "  - {op: max_pool, name: stem.pool, in: x, out: x, kernel: 3, stride: 2, padding: 1}\n"
    "  - repeat: $stages\n"
    "    as: s\n"
    "    ops:\n"
    "      - repeat: \"depths[s]\"\n"
    "        as: b\n"
    "        ops:\n" CONVOLUTION(BASIC, "1", "x", "c[s]", "3", "1", "1 + " IF_FIRST)
        RELU(BASIC, "1") CONVOLUTION(BASIC, "2", "a", "c[s]", "3", "1", "1") CONVOLUTION(
            NARROW, "1", "x", "c[s] / 4", "1", "0", "1 + early * " IF_FIRST) RELU(NARROW, "1")
            CONVOLUTION(NARROW, "2", "a", "c[s] / 4", "3", "1", "1 + (1 - early) * " IF_FIRST)
                RELU(NARROW, "2") CONVOLUTION(
                    NARROW, "3", "a", "c[s]", "1", "0",
                    "1") "          - when: \"(b == 0) * (" HALVED " + (c[0] != stem))\"\n"
                         "            ops:\n"
                         "              - {op: conv2d, name: \"s{s}.shortcut.conv\", in: x, out: "
                         "x, channels: \"c[s]\", "
                         "kernel: 1, stride: \"1 + " HALVED "\", bias: false}\n"
                         "              - {op: batchnorm, name: \"s{s}.shortcut.norm\", in: x, "
                         "out: x}\n"
                         "          - {op: add, name: \"s{s}.b{b}.sum\", in: [x, a], out: x}\n"
                         "          - {op: relu, name: \"s{s}.b{b}.relu\", in: x, out: x}\n"
                         "  - {op: global_avg_pool, name: pool, in: x, out: x}\n"
                         "  - {op: linear, name: head, in: x, out: logits, features: classes}\n"
                         "[train]  - {op: cross_entropy, name: loss, in: [logits, targets], out: "
                         "loss}\n"
                         "[train]loss: loss\n";

const smp__folder_family smp__family_resnet = {
    "resnet", "ResNetForImageClassification", "hf-resnet", NULL, RESNET, RESNET_TEXT};
