/* The registry of names; see the header. */
#include "graph/safetensors/name_family.h"

#include <string.h>

#include "graph/base/text.h"

static const smp_name_family *const families[] = {
    &smp__names_gpt2,
    &smp__names_llama,
    &smp__names_gemma2,
    &smp__names_mixtral,
    &smp__names_qwen_moe,
    &smp__names_bert,
    &smp__names_roberta,
    &smp__names_distilbert,
    &smp__names_t5,
    &smp__names_bart,
    &smp__names_vit,
    &smp__names_resnet,
    NULL,
};
enum { N_FAMILY = sizeof families / sizeof families[0] - 1 };

const smp_name_family *const *smp_name_families(void)
{
    return families;
}

void smp_name_families_put(smp_text *text)
{
    for (const smp_name_family *const *f = smp_name_families(); *f; f++)
        smp_text_append(text, "\n%s: %s", (*f)->name, (*f)->summary);
}

smp_status smp_name_rules_open(smp_name_rules *rules, const char *map, const char *family)
{
    const char *names[N_FAMILY];
    if (map)
        SMP_TRY(smp_name_rules_read(rules, map));
    for (int i = 0; family && i < N_FAMILY; i++) {
        names[i] = families[i]->name;
        if (strcmp(names[i], family) == 0) {
            rules->family = names[i];
            return smp_name_rules_add(rules, family, families[i]->rules);
        }
    }
    return family ? smp_fail_choice((smp_where){0}, "--names", family, names, N_FAMILY) : SMP_OK;
}
