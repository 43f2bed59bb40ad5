/* Terms of sums; see the header. */
#include "schedule/plan/sum_terms.h"

#include <stdlib.h>

static smp_status reserve_terms(smp_sum_terms *t)
{
    const size_t n = (size_t)t->n;
    t->to = calloc(3 * n, sizeof *t->to);
    if (!t->to)
        return smp_fail_memory(3 * n * sizeof *t->to);
    t->from = t->to + n;
    t->left = t->from + n;
    return SMP_OK;
}

/* The nodes that a member's blocks make; how many. */
static int member_nodes(int blocks, int ddp, smp_sum_members of, int member,
                        smp_gradient_node *node)
{
    const int first = of.first + member * of.each;
    return smp_gradient_nodes(blocks, smp_gradient_begin(blocks, ddp, first),
                              smp_gradient_begin(blocks, ddp, first + of.each), node);
}

/* Adds up term by term what can be; a node is where its leftmost term is. */
static void list_additions(smp_sum_terms *t, int blocks, int ddp, smp_sum_members of)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES], came[SMP_MAX_GRADIENT_NODES];
    int place[SMP_MAX_GRADIENT_NODES], n = 0;
    for (int member = 0; member < t->members; member++) {
        member_nodes(blocks, ddp, of, member, came);
        for (int i = t->first[member]; i < t->first[member + 1]; i++) {
            int term = i;
            const int left = smp_gradient_append(blocks, node, n, came[i - t->first[member]]);
            for (; n >= left; n--) {
                t->to[t->n_add] = place[n - 1];
                t->from[t->n_add++] = term;
                term = place[n - 1];
            }
            place[n++] = term;
        }
    }
    t->n_left = n;
    for (int i = 0; i < n; i++)
        t->left[i] = place[i];
}

smp_status smp__sum_terms_make(smp_sum_terms *t, int blocks, int ddp, smp_sum_members of)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    *t = (smp_sum_terms){.members = of.n};
    t->first = calloc((size_t)of.n + 1, sizeof *t->first);
    if (!t->first)
        return smp_fail_memory(((size_t)of.n + 1) * sizeof *t->first);
    for (int i = 0; i < of.n; i++) {
        const int n = member_nodes(blocks, ddp, of, i, node);
        t->first[i + 1] = t->first[i] + n;
        t->width = n > t->width ? n : t->width;
    }
    t->n = t->first[of.n];
    SMP_TRY(reserve_terms(t));
    list_additions(t, blocks, ddp, of);
    t->width = t->n_left > t->width ? t->n_left : t->width;
    return SMP_OK;
}

void smp__sum_terms_free(smp_sum_terms *t)
{
    free(t->first);
    free(t->to);
    *t = (smp_sum_terms){0};
}

int64_t smp__sum_terms_piece(const smp_sum_terms *t, int64_t floats)
{
    enum { ALIGNED = 32 };
    const int64_t most = floats / ((int64_t)t->members * t->width);
    return most < ALIGNED ? most : most / ALIGNED * ALIGNED;
}
