/* The table of partitioners, and the default, which runs them in turn and keeps the best. */
#include "partition/solve/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/problem/coarse.h"

#define SMP_PARTITIONER_ENTRY(id) &smp__partitioner_##id,
static const smp_partitioner *const partitioners[] = {SMP_PARTITIONER_LIST(SMP_PARTITIONER_ENTRY)
                                                          NULL};
#undef SMP_PARTITIONER_ENTRY

const smp_partitioner *const *smp_partitioners(void)
{
    return partitioners;
}

const smp_partitioner *smp_partitioner_find(const char *name)
{
    for (int i = 0; partitioners[i]; i++) {
        if (strcmp(partitioners[i]->name, name) == 0)
            return partitioners[i];
    }
    return NULL;
}

void smp_partitioner_put_names(smp_text *text)
{
    for (int i = 0; partitioners[i]; i++)
        smp_text_append(text, "%s, ", partitioners[i]->name);
    smp_text_append(text, "or auto");
}

smp_status smp_partitioner_check(const char *what, const char *name)
{
    smp_text known = {0};
    if (!name || smp_partitioner_find(name))
        return SMP_OK;
    smp_partitioner_put_names(&known);
    smp_status status =
        known.failed ? SMP_ERR_NO_MEMORY
                     : smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected %s", what, name, known.data);
    smp_text_free(&known);
    return status;
}

static double total_load(const smp_partition *partition)
{
    double total_us = 0.0;
    for (int s = 0; s < partition->n_stage; s++)
        total_us += partition->load[s].load_us;
    return total_us;
}

static double worst_excess(const smp_problem *problem, const smp_partition *partition)
{
    double worst = 0.0;
    for (int s = 0; s < partition->n_stage; s++)
        worst =
            fmax(worst, (double)partition->load[s].memory_bytes - (double)problem->memory_limit[s]);
    return worst;
}

/* a is better by more than rounding. */
static bool beats(const smp_problem *problem, const smp_partition *a, double a_us,
                  const smp_partition *b, double b_us)
{
    if (a->fits != b->fits)
        return a->fits;
    if (!a->fits)
        return worst_excess(problem, a) < worst_excess(problem, b);
    if (fabs(a_us - b_us) > 1e-12 * b_us)
        return a_us < b_us;
    return total_load(a) < total_load(b) * (1.0 - 1e-12);
}

/* Whether the default runs it, or the caller asked for it. */
static bool is_wanted(const smp_partitioner *partitioner, const char *name)
{
    if (name)
        return strcmp(partitioner->name, name) == 0;
    return !partitioner->baseline && !partitioner->prover;
}

/* *best becomes the better of the two, with what either has proven; takes `found` over. */
static void keep_better(const smp_problem *problem, smp_partition *found, smp_partition **best)
{
    smp_partition *old = *best, *other = found;
    if (!old || beats(problem, found, found->bottleneck_us, old, old->bottleneck_us)) {
        *best = found;
        other = old;
    }
    if (other && other->lower_bound_us > (*best)->lower_bound_us) {
        (*best)->lower_bound_us = fmin(other->lower_bound_us, (*best)->bottleneck_us);
        (*best)->bound = other->bound;
    }
    (*best)->timed_out |= other && other->timed_out;
    smp_partition_destroy(other);
}

static bool is_proven(const smp_problem *problem, const smp_partition *partition)
{
    return partition->fits &&
           smp__close_enough(problem, partition->bottleneck_us, partition->lower_bound_us);
}

/* The partitioners in turn on one problem, each from the best so far. */
static smp_status solve_in_turn(const smp_problem *problem, const char *name, smp_partition **out)
{
    smp_partition *best = NULL;
    smp_status status = SMP_OK;
    for (int i = 0; partitioners[i] && status == SMP_OK; i++) {
        smp_partition *found = NULL;
        if (!is_wanted(partitioners[i], name) ||
            (best && (problem->first_look || is_proven(problem, best))))
            continue;
        status = partitioners[i]->solve(problem, best, &found);
        if (status == SMP_OK)
            keep_better(problem, found, &best);
    }
    if (status == SMP_OK) {
        best->timed_out &= !is_proven(problem, best);
        *out = best;
    } else {
        smp_partition_destroy(best);
    }
    return status;
}

/* On runs of ops; what is proven is proven for the ops. */
static smp_status solve_coarse(const smp_problem *problem, const char *name, smp_partition **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_problem coarse = *problem;
    smp_arena *scratch = smp_arena_create();
    int32_t *label = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)problem->graph->n_op) : NULL;
    if (label) {
        smp__coarse_label_runs(problem, label);
        coarse.together = label;
        status = solve_in_turn(&coarse, name, out);
    }
    smp_arena_destroy(scratch);
    if (status == SMP_OK)
        (*out)->lower_bound_us =
            fmin(smp__coarse_bound(problem, &(*out)->bound), (*out)->bottleneck_us);
    return status;
}

/* One variant of the problem. */
static smp_status solve_all(const smp_problem *problem, const char *name, smp_partition **out)
{
    return smp__coarse_is_enough(problem) ? solve_coarse(problem, name, out)
                                          : solve_in_turn(problem, name, out);
}

/* Every holder of a split tie exchanges the weight's gradient with the first one once per step. */
static smp_status charge_ties(const smp_problem *problem, const smp_partition *partition,
                              int microbatches, double *bottleneck_us)
{
    const smp_graph *graph = problem->graph;
    *bottleneck_us = partition->bottleneck_us;
    if (!graph->training)
        return SMP_OK;
    size_t n_stage = (size_t)problem->n_stage;
    double *rank_us = calloc((size_t)problem->pipeline, sizeof *rank_us);
    bool *holds = calloc(n_stage, sizeof *holds);
    if (!rank_us || !holds) {
        free(rank_us);
        free(holds);
        return smp_fail_memory(n_stage * sizeof *rank_us);
    }
    memcpy(rank_us, partition->rank_us, (size_t)problem->pipeline * sizeof *rank_us);
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        if (param->use_end - param->use_begin < 2)
            continue;
        memset(holds, 0, n_stage * sizeof *holds);
        int owner = problem->stage_rank[partition->stage[graph->use[param->use_begin].op]];
        double owner_us = 0.0;
        for (int32_t u = param->use_begin; u < param->use_end; u++) {
            int s = partition->stage[graph->use[u].op];
            smp__link link = smp__farthest_link(problem, owner, problem->stage_rank[s]);
            if (holds[s] || link == SMP__LINK_SAME)
                continue;
            holds[s] = true;
            double us = smp__link_us(problem, link, param->elements * 4) / microbatches;
            rank_us[problem->stage_rank[s]] += us;
            owner_us = fmax(owner_us, us);
        }
        rank_us[owner] += owner_us;
    }
    for (int r = 0; r < problem->pipeline; r++)
        *bottleneck_us = fmax(*bottleneck_us, rank_us[r]);
    free(rank_us);
    free(holds);
    return SMP_OK;
}

void smp__variants_destroy(smp__variants *variants)
{
    smp_partition_destroy(variants->together);
    smp_partition_destroy(variants->split);
    *variants = (smp__variants){0};
}

/* A variant that no pipeline exists for is no failure while the other has one. */
static smp_status optional(smp_status status)
{
    return status == SMP_ERR_NO_FIT ? SMP_OK : status;
}

smp_status smp__variants_solve(const smp_problem *problem, const char *name, smp__variants *out)
{
    *out = (smp__variants){0};
    SMP_TRY(smp_partitioner_check("partitioner", name));
    bool ties = smp_problem_has_ties(problem);
    smp_problem variant = *problem;
    variant.tie_together = ties;
    smp_status status = SMP_OK;
    if (!ties || problem->tie_together) {
        status = solve_all(&variant, name, &out->together);
    } else {
        variant.optional = true;
        status = optional(solve_all(&variant, name, &out->together));
        variant.tie_together = variant.optional = false;
        if (status == SMP_OK)
            status = solve_all(&variant, name, &out->split);
        if (status == SMP_ERR_NO_FIT && out->together)
            status = SMP_OK;
    }
    if (status != SMP_OK) {
        smp__variants_destroy(out);
        return status;
    }
    if (out->together && out->split) { /* the bound that holds for both */
        double bound = fmin(out->split->lower_bound_us, out->together->bottleneck_us);
        out->together->lower_bound_us = bound;
        out->split->lower_bound_us = bound;
    }
    return SMP_OK;
}

smp_status smp__variants_choose(const smp_problem *problem, const smp__variants *variants,
                                int microbatches, const smp_partition **out)
{
    *out = variants->together ? variants->together : variants->split;
    if (!variants->together || !variants->split)
        return SMP_OK;
    double split_us;
    SMP_TRY(charge_ties(problem, variants->split, microbatches, &split_us));
    if (beats(problem, variants->split, split_us, variants->together,
              variants->together->bottleneck_us))
        *out = variants->split;
    return SMP_OK;
}

smp_status smp_partition_solve(const smp_problem *problem, const char *name, int microbatches,
                               smp_partition **out)
{
    smp__variants variants;
    const smp_partition *chosen = NULL;
    SMP_TRY(smp__variants_solve(problem, name, &variants));
    smp_status status =
        smp__variants_choose(problem, &variants, microbatches > 0 ? microbatches : 1, &chosen);
    if (status == SMP_OK && chosen == variants.together) {
        *out = variants.together;
        variants.together = NULL;
    } else if (status == SMP_OK) {
        *out = variants.split;
        variants.split = NULL;
    }
    smp__variants_destroy(&variants);
    return status;
}
