/* The GEMM algorithms of a device: graph/math/gemm_algorithms.h. Jobs have some dozens of different
 * products, so names are looked for one by one. */
#include "graph/math/gemm_algorithms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "graph/math/attention.h"

void smp_gemms_free(smp_gemms *products)
{
    for (int i = 0; i < products->n; i++)
        free(products->product[i]);
    free(products->product);
    *products = (smp_gemms){0};
}

static smp_gemm *find(const smp_gemms *products, const char *name)
{
    for (int i = 0; i < products->n; i++)
        if (strcmp(products->product[i]->name, name) == 0)
            return products->product[i];
    return NULL;
}

const smp_gemm_choice *smp_gemm_choices_find(const smp_gemm_choices *choices, const char *product)
{
    for (int i = 0; choices && i < choices->n; i++)
        if (strcmp(choices->choice[i].product, product) == 0)
            return &choices->choice[i];
    return NULL;
}

smp_status smp_gemms_get(smp_gemms *products, const char *name, smp_gemm **out)
{
    *out = find(products, name);
    if (*out)
        return SMP_OK;
    SMP_TRY(smp_array_reserve(&products->product, &products->capacity, sizeof(smp_gemm *),
                              (size_t)products->n + 1));
    smp_gemm *product = calloc(1, sizeof *product);
    if (!product)
        return smp_fail_memory(sizeof *product);
    snprintf(product->name, sizeof product->name, "%s", name);
    const smp_gemm_choice *asked = smp_gemm_choices_find(products->choices, name);
    product->asked = asked && smp_gemm_add(product, asked->algorithm);
    products->product[products->n++] = product;
    *out = product;
    return SMP_OK;
}

bool smp_gemm_add(smp_gemm *product, const char *algorithm)
{
    for (int i = 0; i < product->n_algorithm; i++)
        if (strcmp(product->algorithm[i], algorithm) == 0)
            return false;
    if (product->n_algorithm == SMP_GEMM_ALGORITHMS || strlen(algorithm) >= SMP_ALGORITHM_BYTES ||
        algorithm[strcspn(algorithm, "\t\n")])
        return false;
    strcpy(product->algorithm[product->n_algorithm++], algorithm);
    return true;
}

bool smp_gemm_is_apart(const smp_gemm *product)
{
    return strcmp(product->algorithm[product->chosen], SMP_GEMM_APART) == 0;
}

static smp_status copy_choice(const smp_gemm_choice *choice, smp_arena *arena, smp_gemm_choice *out)
{
    *out = (smp_gemm_choice){.product = smp_arena_strdup(arena, choice->product),
                             .algorithm = smp_arena_strdup(arena, choice->algorithm),
                             .us = choice->us,
                             .first_us = choice->first_us};
    return out->product && out->algorithm ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status open_choices(const char *device, const char *library, int n, smp_arena *arena,
                               smp_gemm_choices *out, smp_gemm_choice **choice)
{
    *choice = SMP_ARENA_NEW(arena, smp_gemm_choice, (size_t)n);
    *out = (smp_gemm_choices){.device = smp_arena_strdup(arena, device),
                              .library = smp_arena_strdup(arena, library),
                              .n = n,
                              .choice = *choice};
    return out->device && out->library && *choice ? SMP_OK : SMP_ERR_NO_MEMORY;
}

smp_status smp_gemms_choices(const smp_gemms *products, const char *device, smp_arena *arena,
                             smp_gemm_choices *out)
{
    smp_gemm_choice *choice;
    SMP_TRY(open_choices(device, products->library, products->n, arena, out, &choice));
    out->n = 0;
    for (int i = 0; i < products->n; i++) {
        const smp_gemm *product = products->product[i];
        const smp_gemm_choice own = {product->name, product->algorithm[product->chosen],
                                     product->us, product->first_us};
        if (product->used)
            SMP_TRY(copy_choice(&own, arena, &choice[out->n++]));
    }
    return SMP_OK;
}

smp_status smp_gemm_choices_copy(const smp_gemm_choices *choices, smp_arena *arena,
                                 smp_gemm_choices *out)
{
    smp_gemm_choice *choice;
    *out = (smp_gemm_choices){0};
    if (!choices->device)
        return SMP_OK;
    SMP_TRY(open_choices(choices->device, choices->library, choices->n, arena, out, &choice));
    for (int i = 0; i < choices->n; i++)
        SMP_TRY(copy_choice(&choices->choice[i], arena, &choice[i]));
    return SMP_OK;
}

smp_status smp_gemm_choices_give(const smp_gemm_choices *choices, smp_graph *graph)
{
    smp_gemm_choices *own = SMP_ARENA_NEW(graph->arena, smp_gemm_choices, 1);
    if (!own)
        return SMP_ERR_NO_MEMORY;
    graph->products = own;
    return smp_gemm_choices_copy(choices, graph->arena, own);
}

smp_status smp_gemm_choices_give_lean(const smp_gemm_choices *choices, smp_graph *graph, int *n)
{
    static const char about[] = SMP__ATTENTION_BACKWARD ", ";
    smp_gemm_choices lean = *choices;
    smp_gemm_choice *own = SMP_ARENA_NEW(graph->arena, smp_gemm_choice, (size_t)choices->n);
    if (!own)
        return SMP_ERR_NO_MEMORY;
    *n = 0;
    for (int i = 0; i < choices->n; i++) {
        own[i] = choices->choice[i];
        if (strncmp(own[i].product, about, sizeof about - 1) != 0 ||
            strcmp(own[i].algorithm, SMP__ATTENTION_TILED) == 0)
            continue;
        own[i].algorithm = SMP__ATTENTION_TILED;
        (*n)++;
    }
    lean.choice = own;
    return smp_gemm_choices_give(&lean, graph);
}

void smp_gemms_list(const smp_gemms *products, smp_text *text)
{
    for (int i = 0; i < products->n; i++) {
        const smp_gemm *product = products->product[i];
        if (!product->here)
            continue;
        smp_text_append(text, "%s", product->name);
        for (int a = 0; a < product->n_algorithm; a++)
            smp_text_append(text, "\t%s", product->algorithm[a]);
        smp_text_append(text, "\n");
    }
}

/* Cuts the next line, or the next word of one, off; NULL: there is none. */
static char *cut(char **rest, char at)
{
    char *begin = *rest, *end = strchr(begin, at);
    if (!*begin)
        return NULL;
    *rest = end ? end + 1 : begin + strlen(begin);
    if (end)
        *end = '\0';
    return begin;
}

static void take_list(smp_gemm *product, char *words)
{
    smp_gemm taken = {.asked = product->asked};
    for (char *word; (word = cut(&words, '\t'));)
        (void)smp_gemm_add(&taken, word);
    if (taken.n_algorithm == product->n_algorithm &&
        memcmp(taken.algorithm, product->algorithm, sizeof taken.algorithm) == 0)
        return;
    memcpy(product->algorithm, taken.algorithm, sizeof taken.algorithm);
    product->n_algorithm = taken.n_algorithm;
    product->chosen = 0;
    product->version++;
}

smp_status smp_gemms_take(smp_gemms *products, char *lines)
{
    for (char *line; (line = cut(&lines, '\n'));) {
        smp_gemm *product;
        SMP_TRY(smp_gemms_get(products, cut(&line, '\t'), &product));
        if (!product->listed)
            take_list(product, line);
        product->listed = true;
    }
    return SMP_OK;
}

void smp_gemms_say(const smp_gemms *products, smp_text *text)
{
    for (int i = 0; i < products->n; i++) {
        const smp_gemm *product = products->product[i];
        if (product->runs > 0)
            smp_text_append(text, "%s\t%d\t%s\n", product->name, product->chosen, product->refusal);
    }
}

bool smp_gemms_agree(smp_gemms *products, char *lines)
{
    bool changed = false;
    for (char *line; (line = cut(&lines, '\n'));) {
        smp_gemm *product = find(products, cut(&line, '\t'));
        const int chosen = (int)strtol(cut(&line, '\t'), NULL, 10);
        product->used = true;
        if (chosen <= product->chosen)
            continue;
        product->chosen = chosen;
        changed = changed || product->runs > 0;
        if (!product->refusal[0])
            snprintf(product->refusal, sizeof product->refusal, "%s", line);
    }
    return changed;
}

void smp_gemms_describe(const smp_gemms *products, char *text, size_t size)
{
    int n = 0, asked = 0, other = 0;
    const smp_gemm *refused = NULL;
    for (int i = 0; i < products->n; i++) {
        const smp_gemm *product = products->product[i];
        if (!product->used)
            continue;
        n++;
        asked += product->asked && product->chosen == 0;
        other += product->chosen > 0;
        if (product->chosen > 0 && !refused)
            refused = product;
    }
    char plan[64] = "", others[448] = "";
    if (products->choices)
        snprintf(plan, sizeof plan, ", %d as the plan says", asked);
    if (refused)
        snprintf(others, sizeof others,
                 ", %d not by the first algorithm, which was refused (%s: %s)", other,
                 refused->name, refused->refusal);
    text[0] = '\0';
    if (n > 0)
        snprintf(text, size, "%d matrix products by %s%s%s", n, products->library, plan, others);
}
