/* deepspeed-parts: the boundaries of a PipelineModule's stages in its list of layers, [0, 5, 9].
 * DeepSpeed runs 1F1B with a stage on each rank. */
#include <ctype.h>
#include <string.h>

#include "schedule/foreign/foreign_readers.h"

enum { MAX_LAYERS = 1 << 24 };

static bool recognise(const char *text)
{
    text += strspn(text, " \t\r\n");
    return *text == '[';
}

static smp_where where(const smp_foreign *foreign, const char *text, const char *at)
{
    int line = 1;
    const char *begin = text;
    for (const char *c = text; c < at; c++) {
        if (*c == '\n') {
            line++;
            begin = c + 1;
        }
    }
    return (smp_where){foreign->file, line, (int)(at - begin) + 1};
}

/* The next boundary after '[' or ','; *at stands after it. */
static smp_status read_boundary(const smp_foreign *foreign, const char *text, const char **at,
                                int64_t *out)
{
    const char *c = *at + 1;
    c += strspn(c, " \t\r\n");
    if (!isdigit((unsigned char)*c))
        return smp_fail_at(where(foreign, text, c), "expected a number of layers, as in [0, 5, 9]");
    for (*out = 0; isdigit((unsigned char)*c) && *out <= MAX_LAYERS; c++)
        *out = 10 * *out + (*c - '0');
    if (*out > MAX_LAYERS)
        return smp_fail_at(where(foreign, text, c), "got more than %d layers", (int)MAX_LAYERS);
    *at = c + strspn(c, " \t\r\n");
    return SMP_OK;
}

static smp_status read(smp_foreign *foreign, const char *text, int ranks, int microbatches)
{
    const char *at = strchr(text, '[');
    int64_t before, next;
    size_t n = 1;
    (void)ranks;
    for (const char *c = text; *c; c++)
        n += *c == ',';
    double *layers = SMP_ARENA_NEW(foreign->arena, double, n);
    if (!layers)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_boundary(foreign, text, &at, &before));
    if (before != 0)
        return smp_fail_at(where(foreign, text, at), "got a first boundary of %lld, expected 0",
                           (long long)before);
    while (*at == ',') {
        SMP_TRY(read_boundary(foreign, text, &at, &next));
        if (next <= before)
            return smp_fail_at(where(foreign, text, at),
                               "got boundary %lld after %lld: a stage without layers",
                               (long long)next, (long long)before);
        layers[foreign->n_stage++] = (double)(next - before);
        before = next;
    }
    if (*at != ']' || at[1 + strspn(at + 1, " \t\r\n")] || foreign->n_stage == 0)
        return smp_fail_at(where(foreign, text, at), "expected boundaries, as in [0, 5, 9]");
    foreign->layers = layers;
    foreign->n_rank = foreign->n_stage;
    foreign->microbatches = microbatches > 0 ? microbatches : 4 * foreign->n_rank;
    return smp__foreign_order_1f1b(foreign);
}

const smp_foreign_reader smp__foreign_deepspeed_parts = {
    .name = "deepspeed-parts",
    .summary = "boundaries of DeepSpeed's PipelineModule in its list of layers",
    .recognise = recognise,
    .read = read,
};
