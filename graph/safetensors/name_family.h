/* Names that other programs give the weights of well-known networks: a registry of rules, one file
 * for each family. The model's names are those of examples/. */
#ifndef SMP_GRAPH_SAFETENSORS_NAME_FAMILY_H
#define SMP_GRAPH_SAFETENSORS_NAME_FAMILY_H

#include "graph/base/text.h"
#include "graph/safetensors/name_rules.h"

typedef struct smp_name_family {
    const char *name;
    const char *summary; /* one line, for --help */
    const char *rules;   /* name_rules.h */
} smp_name_family;

/* Ends with NULL. */
const smp_name_family *const *smp_name_families(void);
/* A line for each, as --help has it. */
void smp_name_families_put(smp_text *text);

/* The rules of a map file, then those of a family; each may be NULL. SMP_ERR_INPUT names the
 * families. *rules starts zeroed; smp_name_rules_free, also after an error. */
smp_status smp_name_rules_open(smp_name_rules *rules, const char *map, const char *family);

extern const smp_name_family smp__names_gpt2, smp__names_llama, smp__names_mixtral,
    smp__names_gemma2, smp__names_qwen_moe, smp__names_bert, smp__names_roberta,
    smp__names_distilbert, smp__names_t5, smp__names_bart, smp__names_vit, smp__names_resnet;

#endif
