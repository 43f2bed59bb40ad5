/* ResNet in Hugging Face's transformers: ResNetForImageClassification, with basic blocks or
 * bottlenecks. num_batches_tracked, which decides nothing here, is neither read nor written. */
#include "graph/safetensors/name_family.h"

#define STAGE "resnet.encoder.stages.{s}.layers."

const smp_name_family smp__names_resnet = {
    "hf-resnet", "residual networks",
    "stem.conv.weight = resnet.embedder.embedder.convolution.weight\n"
    "stem.norm.* = resnet.embedder.embedder.normalization.*\n"
    "s{s}.b{b}.conv_{c}.weight = " STAGE "{b}.layer.{c-1}.convolution.weight\n"
    "s{s}.b{b}.norm_{c}.* = " STAGE "{b}.layer.{c-1}.normalization.*\n"
    "s{s}.shortcut.conv.weight = " STAGE "0.shortcut.convolution.weight\n"
    "s{s}.shortcut.norm.* = " STAGE "0.shortcut.normalization.*\n"
    "head.* = classifier.1.*\n"};
