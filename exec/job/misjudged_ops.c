/* Which operators a plan misjudges: what they took, as a profile of the run says, beside what the
 * plan's cluster says of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/training.h"
#include "exec/state/handle.h"
#include "exec/step/stepping.h"
#include "graph/model/op.h"
#include "profile/costs.h"

enum { MOST_KINDS = 256, MOST_NAMED = 4 };

/* All operators of a kind, of a micro-batch. */
typedef struct kind_time {
    const smp_op_kind *kind;
    double taken_us, said_us;
} kind_time;

static double missed_us(const kind_time *t)
{
    return fabs(t->taken_us - t->said_us);
}

static int compare_missed(const void *left, const void *right)
{
    const double a = missed_us(left), b = missed_us(right);
    return (a < b) - (a > b);
}

/* Those beyond MOST_KINDS are left out. */
static kind_time *find_kind(kind_time *of, int *n, const smp_op_kind *kind)
{
    for (int i = 0; i < *n; i++)
        if (of[i].kind == kind)
            return &of[i];
    if (*n == MOST_KINDS)
        return NULL;
    of[*n] = (kind_time){.kind = kind};
    return &of[(*n)++];
}

static void put_kinds(const smp_graph *graph, const smp_profile *profile, const smp_costs *costs,
                      smp_text *out)
{
    kind_time of[MOST_KINDS];
    double all_us = 0;
    int n = 0;
    for (int32_t i = 0; i < graph->n_op; i++) {
        kind_time *t = find_kind(of, &n, graph->op[i].kind);
        if (!t)
            continue;
        t->taken_us += profile->op[i].forward_us + profile->op[i].backward_us;
        t->said_us += costs->op[i].forward_us + costs->op[i].backward_us;
    }
    for (int i = 0; i < n; i++)
        all_us += missed_us(&of[i]);
    qsort(of, (size_t)n, sizeof *of, compare_missed);
    for (int i = 0; i < n && i < MOST_NAMED && missed_us(&of[i]) > 0.05 * all_us; i++) {
        char taken[32], said[32];
        smp_text_append(out, "%s%s %s (%s)", i > 0 ? ", " : "", of[i].kind->name,
                        smp_format_us(taken, sizeof taken, of[i].taken_us),
                        smp_format_us(said, sizeof said, of[i].said_us));
    }
}

smp_status smp__job_misjudged_ops(const smp *s, const char *profile, smp_text *out)
{
    const char *source = s->plan->predicted.costs;
    smp_profile *taken = NULL;
    smp_costs *said = NULL;
    if (!source || strncmp(source, "estimated", strlen("estimated")) != 0 || !s->plan->cluster ||
        s->plan->rank_begin)
        return SMP_OK;
    smp_status status = smp_profile_read(profile, s->graph, &taken);
    if (status == SMP_OK)
        status = smp_costs_build(s->graph, s->plan->cluster, NULL, s->work->batch, &said);
    if (status == SMP_OK && taken->n_op == s->graph->n_op)
        put_kinds(s->graph, taken, said, out);
    smp_costs_destroy(said);
    smp_profile_destroy(taken);
    return status == SMP_OK && out->failed ? SMP_ERR_NO_MEMORY : status;
}
