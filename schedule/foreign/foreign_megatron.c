/* megatron-layout: the string of Megatron-LM's --pipeline-model-parallel-layout. Stages are divided
 * by '|'; E is the embedding, t a transformer layer, m one of multi-token prediction, L the loss;
 * x*n is n times x, of one letter or a group in brackets; a group may hold '|'. Commas and blanks
 * mean nothing. Stages are dealt out to the ranks in turn, which run 1F1B, interleaved where they
 * have several. */
#include <ctype.h>
#include <string.h>

#include "schedule/foreign/foreign_readers.h"

enum { MAX_LAYERS = 1 << 20, MAX_DEPTH = 16 };

typedef struct layout {
    const smp_foreign *foreign;
    const char *text, *at;
    double *layers; /* of stages so far; NULL: they are counted */
    int n_stage;    /* the one that is being filled */
    int n_embedding, n_loss;
    int64_t work;
} layout;

static bool recognise(const char *text)
{
    size_t n = strspn(text, "EtmL|*(), \t\r\n0123456789");
    return n > 0 && !text[n] && strpbrk(text, "tEL");
}

static smp_status fail(const layout *l, const char *expected)
{
    return smp_fail_at((smp_where){l->foreign->file, 1, (int)(l->at - l->text) + 1},
                       "got '%.20s', expected %s", *l->at ? l->at : "the end", expected);
}

static void skip(layout *l)
{
    l->at += strspn(l->at, ", \t\r\n");
}

static smp_status put_layer(layout *l, char what)
{
    if (++l->work > MAX_LAYERS || l->n_stage >= SMP_FOREIGN_MAX_STAGES)
        return fail(l, "a layout of at most a million layers");
    if (what == '|')
        l->n_stage++;
    else if (l->layers && (what == 't' || what == 'm'))
        l->layers[l->n_stage]++;
    l->n_embedding += what == 'E';
    l->n_loss += what == 'L';
    return SMP_OK;
}

static smp_status read_times(layout *l, int64_t *times)
{
    *times = 1;
    skip(l);
    if (*l->at != '*')
        return SMP_OK;
    l->at++;
    skip(l);
    if (!isdigit((unsigned char)*l->at))
        return fail(l, "how many times");
    for (*times = 0; isdigit((unsigned char)*l->at); l->at++) {
        *times = 10 * *times + (*l->at - '0');
        if (*times > MAX_LAYERS)
            return fail(l, "at most a million times");
    }
    return SMP_OK;
}

/* Items up to the end, or up to the bracket that ends a group. */
static smp_status read_items(layout *l, int depth)
{
    for (skip(l); *l->at && *l->at != ')'; skip(l)) {
        const char *begin = l->at;
        int64_t times;
        if (*l->at == '(') {
            if (depth == MAX_DEPTH)
                return fail(l, "groups nested less deeply");
            l->at++;
            SMP_TRY(read_items(l, depth + 1));
            if (*l->at != ')')
                return fail(l, "')'");
            l->at++;
            SMP_TRY(read_times(l, &times));
            const char *end = l->at;
            for (int64_t i = 1; i < times; i++) { /* the first time it is read already */
                if (++l->work > MAX_LAYERS)
                    return fail(l, "a layout of at most a million layers");
                l->at = begin + 1;
                SMP_TRY(read_items(l, depth + 1));
            }
            l->at = end;
            continue;
        }
        if (!strchr("EtmL|", *l->at))
            return fail(l, "E, t, m, L, | or a group");
        l->at++;
        SMP_TRY(read_times(l, &times));
        for (int64_t i = 0; i < times; i++)
            SMP_TRY(put_layer(l, *begin));
    }
    return SMP_OK;
}

static smp_status read_whole(layout *l)
{
    SMP_TRY(read_items(l, 0));
    return *l->at ? fail(l, "nothing more") : SMP_OK;
}

static smp_status read(smp_foreign *foreign, const char *text, int ranks, int microbatches)
{
    layout l = {.foreign = foreign, .text = text, .at = text};
    SMP_TRY(read_whole(&l));
    int n = l.n_stage + 1;
    if (l.n_embedding > 1 || l.n_loss > 1)
        return smp_fail_at((smp_where){foreign->file, 1, 1},
                           "got %d embeddings and %d losses, expected one each", l.n_embedding,
                           l.n_loss);
    ranks = ranks > 0 ? ranks : n;
    if (n % ranks != 0)
        return smp_fail_at((smp_where){foreign->file, 1, 1},
                           "got %d stages, which %d ranks do not divide", n, ranks);
    double *layers = SMP_ARENA_NEW(foreign->arena, double, (size_t)n);
    if (!layers)
        return SMP_ERR_NO_MEMORY;
    l = (layout){.foreign = foreign, .text = text, .at = text, .layers = layers};
    SMP_TRY(read_whole(&l));
    foreign->n_stage = n;
    foreign->layers = layers;
    foreign->n_rank = ranks;
    foreign->microbatches = microbatches > 0 ? microbatches : 4 * ranks;
    return smp__foreign_order_1f1b(foreign);
}

const smp_foreign_reader smp__foreign_megatron_layout = {
    .name = "megatron-layout",
    .summary = "Megatron-LM's --pipeline-model-parallel-layout",
    .recognise = recognise,
    .read = read,
};
