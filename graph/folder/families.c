/* The families that there are. A key of a config that stands in no family is refused by name, but
 * for those that change nothing of the network (folder.c). */
#include "graph/folder/family.h"

#include <stddef.h>

#define SMP_FAMILIES(X)                                                                            \
    X(gpt2)                                                                                        \
    X(llama)                                                                                       \
    X(mistral)                                                                                     \
    X(qwen2)                                                                                       \
    X(qwen3)                                                                                       \
    X(phi3)                                                                                        \
    X(mixtral)                                                                                     \
    X(qwen2_moe)                                                                                   \
    X(qwen3_moe)                                                                                   \
    X(gemma)                                                                                       \
    X(gemma2)                                                                                      \
    X(bert)                                                                                        \
    X(roberta)                                                                                     \
    X(distilbert)                                                                                  \
    X(t5)                                                                                          \
    X(bart)                                                                                        \
    X(vit)                                                                                         \
    X(resnet)

#define DECLARED(name) extern const smp__folder_family smp__family_##name;
SMP_FAMILIES(DECLARED)

#define LISTED(name) &smp__family_##name,
const smp__folder_family *const smp__folder_families[] = {SMP_FAMILIES(LISTED) NULL};
