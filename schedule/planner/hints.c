/* What would help most, by trying it: the best plan is evaluated again with one thing changed, and
 * the gain is the share of its time per sample that this saves. Each change is something that the
 * owner of a model or a cluster can do. A handful of simulations. */
#include "schedule/planner/hints.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"
#include "schedule/planner/search_state.h"

#define LEAST_GAIN 1e-3

typedef struct trial {
    smp__planner *planner;
    const smp_search_request *request; /* the planner's */
    const smp_candidate *best;
    double time; /* of the best, per sample */
    smp_hint *hint;
    int n;
} trial;

static void destroy_copy(smp_candidate *copy)
{
    if (copy->partition)
        free(copy->partition->load);
    free(copy->partition);
    free(copy->rank_peak_bytes);
}

/* A copy of the best whose numbers may be changed; the rest is shared. */
static smp_status copy_best(const trial *t, smp_candidate *copy)
{
    const smp_partition *from = t->best->partition;
    size_t n_stage = (size_t)from->n_stage, n_rank = (size_t)t->best->pipeline;
    *copy = *t->best;
    copy->partition = malloc(sizeof *copy->partition);
    copy->rank_peak_bytes = calloc(n_rank, sizeof *copy->rank_peak_bytes);
    smp_stage_load *load = malloc(n_stage * sizeof *load);
    if (copy->partition)
        *copy->partition = *from;
    if (!copy->partition || !copy->rank_peak_bytes || !load) {
        free(copy->partition);
        free(copy->rank_peak_bytes);
        free(load);
        *copy = (smp_candidate){0};
        return smp_fail_memory(n_stage * sizeof *load);
    }
    memcpy(load, from->load, n_stage * sizeof *load);
    copy->partition->load = load;
    return SMP_OK;
}

static smp_hint *add_hint(trial *t, smp_hint_kind kind, double gain)
{
    if (t->n == SMP_HINTS_MAX || !(gain >= LEAST_GAIN))
        return NULL;
    smp_hint *hint = &t->hint[t->n++];
    *hint = (smp_hint){.kind = kind, .gain = gain};
    return hint;
}

static double gain_of(const trial *t, double time)
{
    return t->time > 0.0 ? 1.0 - time / t->time : 0.0;
}

static smp_status measure(const trial *t, smp_candidate *copy, double *gain)
{
    SMP_TRY(smp__planner_judge(t->planner, copy));
    *gain = gain_of(t, smp__search_time(t->request, copy));
    return SMP_OK;
}

/* Loads of ranks, as the objective counts them. */
static void sum_ranks(const smp_candidate *candidate, double *rank_us)
{
    memset(rank_us, 0, (size_t)candidate->pipeline * sizeof *rank_us);
    for (int s = 0; s < candidate->partition->n_stage; s++)
        rank_us[candidate->stage_rank[s]] += candidate->partition->load[s].load_us;
}

static void scale_load(smp_stage_load *load, double factor)
{
    load->forward_us *= factor;
    load->backward_us *= factor;
    load->recompute_us *= factor;
    load->load_us *= factor;
}

/* No rank is slower than `target`: the time of the slower ones shrinks. */
static void cap_ranks(smp_candidate *copy, const double *rank_us, double target)
{
    for (int s = 0; s < copy->partition->n_stage; s++) {
        double us = rank_us[copy->stage_rank[s]];
        if (us > target)
            scale_load(&copy->partition->load[s], target / us);
    }
    copy->bottleneck_us = fmin(copy->bottleneck_us, target);
}

static int slowest_of(const double *rank_us, int n)
{
    int slowest = 0;
    for (int r = 1; r < n; r++)
        slowest = rank_us[r] > rank_us[slowest] ? r : slowest;
    return slowest;
}

/* Share of a stage's compute that its largest op takes; *op: that op. */
static double largest_share(const trial *t, int stage, int32_t *op)
{
    double sum = 0.0, largest = -1.0;
    for (int32_t i = 0; i < t->request->graph->n_op; i++) {
        if (t->best->partition->stage[i] != stage)
            continue;
        const smp_op_cost *cost = &t->planner->costs->op[i];
        double us = cost->forward_us + cost->backward_us;
        sum += us;
        if (us > largest) {
            largest = us;
            *op = i;
        }
    }
    return sum > 0.0 ? largest / sum : 1.0;
}

/* The slowest rank is one op, or nearly: in two halves, of which it keeps one, the rank takes half
 * of it less, and the next slowest counts. */
static smp_status hint_split(trial *t, const double *rank_us)
{
    const smp_candidate *best = t->best;
    int slowest = slowest_of(rank_us, best->pipeline), stage = -1;
    double next_us = 0.0, gain, mean_us = 0.0;
    int32_t op = -1;
    for (int s = 0; s < best->partition->n_stage; s++) {
        if (best->stage_rank[s] == slowest &&
            (stage < 0 || best->partition->load[s].load_us > best->partition->load[stage].load_us))
            stage = s;
    }
    double share = largest_share(t, stage, &op);
    if (share < 0.5)
        return SMP_OK;
    for (int r = 0; r < best->pipeline; r++) {
        mean_us += rank_us[r] / best->pipeline;
        if (r != slowest)
            next_us = fmax(next_us, rank_us[r]);
    }
    double half_us = rank_us[slowest] - 0.5 * share * best->partition->load[stage].load_us;
    double target = fmax(fmax(half_us, next_us), mean_us);
    if (target >= rank_us[slowest])
        return SMP_OK;
    smp_candidate copy;
    SMP_TRY(copy_best(t, &copy));
    cap_ranks(&copy, rank_us, target);
    smp_status status = measure(t, &copy, &gain);
    smp_hint *hint = status == SMP_OK ? add_hint(t, SMP_HINT_SPLIT_OP, gain) : NULL;
    if (hint)
        snprintf(hint->text, sizeof hint->text,
                 "split op '%.120s' in two: it takes %.0f %% of stage %d on the slowest rank",
                 t->request->graph->op[op].name, 100.0 * share, stage);
    destroy_copy(&copy);
    return status;
}

/* Smaller ops, or other groups and pins, that let all ranks take the same time. */
static smp_status hint_balance(trial *t, const double *rank_us)
{
    double mean_us = 0.0, gain;
    smp_candidate copy;
    for (int r = 0; r < t->best->pipeline; r++)
        mean_us += rank_us[r] / t->best->pipeline;
    SMP_TRY(copy_best(t, &copy));
    for (int s = 0; s < copy.partition->n_stage; s++) {
        double us = rank_us[copy.stage_rank[s]];
        if (us > 0.0)
            scale_load(&copy.partition->load[s], mean_us / us);
    }
    copy.bottleneck_us = mean_us;
    smp_status status = measure(t, &copy, &gain);
    smp_hint *hint = status == SMP_OK ? add_hint(t, SMP_HINT_BALANCE, gain) : NULL;
    if (hint) {
        char mean[32], most[32];
        smp_format_us(mean, sizeof mean, mean_us);
        smp_format_us(most, sizeof most, rank_us[slowest_of(rank_us, t->best->pipeline)]);
        snprintf(hint->text, sizeof hint->text,
                 "finer ops, or fewer groups and pins: %s per micro-batch on every rank instead of "
                 "up to %s",
                 mean, most);
    }
    destroy_copy(&copy);
    return status;
}

/* Twice the micro-batches: the pipeline fills and drains once for twice the samples. */
static smp_status hint_microbatches(trial *t)
{
    const smp_candidate *best = t->best;
    double gain;
    smp_candidate copy;
    if (best->microbatches > INT32_MAX / 2)
        return SMP_OK;
    smp_schedule_shape shape =
        smp__planner_shape(t->planner, best->pipeline, best->chunks, 2 * best->microbatches);
    if (smp__planner_check(smp_schedule_find(best->schedule), &shape) != SMP_OK)
        return SMP_OK;
    SMP_TRY(copy_best(t, &copy));
    copy.microbatches = 2 * best->microbatches;
    smp_status status = measure(t, &copy, &gain);
    smp_hint *hint = status == SMP_OK ? add_hint(t, SMP_HINT_MICROBATCHES, gain) : NULL;
    if (hint) {
        char peak[32];
        snprintf(hint->text, sizeof hint->text, "%d micro-batches instead of %d%s%s",
                 copy.microbatches, best->microbatches, copy.fits ? "" : ", with devices of ",
                 copy.fits ? "" : smp_format_bytes(peak, sizeof peak, copy.peak_bytes));
    }
    destroy_copy(&copy);
    return status;
}

/* Without recomputation, and what memory that needs. */
static smp_status hint_recompute(trial *t)
{
    double gain;
    smp_candidate copy;
    if (t->best->n_recompute == 0)
        return SMP_OK;
    SMP_TRY(copy_best(t, &copy));
    double *rank_us = calloc((size_t)copy.pipeline, sizeof *rank_us);
    smp_status status = rank_us ? SMP_OK : smp_fail_memory(sizeof *rank_us);
    for (int s = 0; s < copy.partition->n_stage && status == SMP_OK; s++) {
        smp_stage_load *load = &copy.partition->load[s];
        double compute_us = load->forward_us + load->backward_us;
        load->load_us = t->request->cluster->overlap ? fmax(compute_us, load->transfer_us)
                                                     : compute_us + load->transfer_us;
        load->recompute = false;
        load->recompute_us = 0.0;
    }
    if (status == SMP_OK) {
        sum_ranks(&copy, rank_us);
        copy.bottleneck_us = rank_us[slowest_of(rank_us, copy.pipeline)];
        status = measure(t, &copy, &gain);
    }
    smp_hint *hint = status == SMP_OK ? add_hint(t, SMP_HINT_MEMORY, gain) : NULL;
    if (hint) {
        char peak[32];
        snprintf(hint->text, sizeof hint->text,
                 "%s of memory per device: then no stage has to recompute",
                 smp_format_bytes(peak, sizeof peak, copy.peak_bytes));
    }
    free(rank_us);
    destroy_copy(&copy);
    return status;
}

/* A configuration that was simulated, is faster and needs a little more memory: the one that gains
 * most for its bytes. */
static void hint_other(trial *t, const smp_search_result *result)
{
    const smp_candidate *found = NULL;
    double best_worth = 0.0, best_gain = 0.0;
    for (int i = 0; i < result->n_tried; i++) {
        const smp_candidate *c = result->tried[i];
        double gain = gain_of(t, smp__search_time(t->request, c));
        double worth = gain / fmax((double)-c->room_bytes, 1.0);
        if (c->fits || gain < LEAST_GAIN || worth <= best_worth)
            continue;
        best_worth = worth;
        best_gain = gain;
        found = c;
    }
    smp_hint *hint = found ? add_hint(t, SMP_HINT_MEMORY, best_gain) : NULL;
    if (hint) {
        char peak[32];
        snprintf(hint->text, sizeof hint->text,
                 "%s of memory per device: then %d stages * %d replicas, %d micro-batches, %s fit",
                 smp_format_bytes(peak, sizeof peak, found->peak_bytes),
                 found->pipeline * found->chunks, found->ddp, found->microbatches, found->schedule);
    }
}

/* The same cluster with links `factor` times as fast; `points`: [2] curves of theirs. */
static smp_status speed_up(const smp_link_spec *from, double factor, double **points,
                           smp_link_spec *to)
{
    *to = *from;
    to->latency_us = from->latency_us / factor;
    to->bytes_per_s = from->bytes_per_s * factor;
    *points = NULL;
    if (from->n_point == 0)
        return SMP_OK;
    *points = malloc((size_t)from->n_point * sizeof **points);
    if (!*points)
        return smp_fail_memory((size_t)from->n_point * sizeof **points);
    for (int i = 0; i < from->n_point; i++)
        (*points)[i] = from->point_us[i] / factor;
    to->point_us = *points;
    return SMP_OK;
}

/* The slowest rank of the best's stages on another cluster. */
static smp_status bottleneck_on(const trial *t, const smp_cluster *cluster, double *bottleneck_us)
{
    const smp_candidate *best = t->best;
    size_t n = (size_t)best->partition->n_stage;
    int64_t *limit = calloc(n, sizeof *limit);
    double *live = calloc(n, sizeof *live);
    smp_partition *partition = NULL;
    smp_status status = limit && live ? SMP_OK : smp_fail_memory(n * sizeof *limit);
    for (size_t s = 0; s < n && status == SMP_OK; s++) {
        limit[s] = best->partition->load[s].recompute ? 0 : INT64_MAX;
        live[s] = best->microbatches; /* so that recomputing saves something */
    }
    if (status == SMP_OK) {
        smp_problem problem = {.graph = t->request->graph,
                               .costs = t->planner->costs,
                               .cluster = cluster,
                               .n_stage = best->partition->n_stage,
                               .pipeline = best->pipeline,
                               .stage_rank = best->stage_rank,
                               .device = best->device,
                               .n_replica = best->ddp,
                               .state_factor = 1.0,
                               .live = live,
                               .memory_limit = limit,
                               .pin = t->request->pin,
                               .pin_where = t->request->pin_where,
                               .together = t->request->together,
                               .recompute = SMP_RECOMPUTE_AUTO};
        status = smp_partition_evaluate(&problem, best->partition->stage, &partition);
    }
    if (status == SMP_OK)
        *bottleneck_us = partition->bottleneck_us;
    smp_partition_destroy(partition);
    free(limit);
    free(live);
    return status;
}

/* Transfers of a stage cost less by what the links of the model's tensors do: simulated for the
 * step; for the bottleneck the stages are evaluated anew. */
static smp_status hint_links(trial *t, smp_hint_kind kind, double intra, double inter,
                             const char *text)
{
    const smp_cluster *real = t->request->cluster;
    smp_cluster cluster = *real;
    double *intra_points = NULL, *inter_points = NULL, gain = 0.0;
    smp_candidate copy = {0};
    smp_status status = speed_up(&real->intra_node, intra, &intra_points, &cluster.intra_node);
    if (status == SMP_OK)
        status = speed_up(&real->inter_node, inter, &inter_points, &cluster.inter_node);
    if (status == SMP_OK)
        status = copy_best(t, &copy);
    if (status == SMP_OK && t->request->objective == SMP_OBJECTIVE_BOTTLENECK) {
        status = bottleneck_on(t, &cluster, &copy.bottleneck_us);
        gain = status == SMP_OK ? gain_of(t, smp__search_time(t->request, &copy)) : 0.0;
    } else if (status == SMP_OK) {
        t->planner->request.cluster = &cluster;
        status = measure(t, &copy, &gain);
        t->planner->request.cluster = real;
    }
    smp_hint *hint = status == SMP_OK ? add_hint(t, kind, gain) : NULL;
    if (hint)
        snprintf(hint->text, sizeof hint->text, "%s", text);
    if (copy.partition)
        destroy_copy(&copy);
    free(intra_points);
    free(inter_points);
    return status;
}

static int compare_hints(const void *left, const void *right)
{
    const smp_hint *a = left, *b = right;
    int order = (a->gain < b->gain) - (a->gain > b->gain);
    return order ? order : (int)a->kind - (int)b->kind;
}

smp_status smp__search_hints(smp__planner *planner, const smp_search_result *result, smp_hint *hint,
                             int *n)
{
    const smp_search_request *request = &planner->request;
    trial t = {.planner = planner, .request = request, .best = result->best, .hint = hint};
    t.time = smp__search_time(request, result->best);
    double *rank_us = calloc((size_t)result->best->pipeline, sizeof *rank_us);
    if (!rank_us)
        return smp_fail_memory((size_t)result->best->pipeline * sizeof *rank_us);
    sum_ranks(result->best, rank_us);
    smp_status status = hint_split(&t, rank_us);
    if (status == SMP_OK)
        status = hint_balance(&t, rank_us);
    if (status == SMP_OK && request->objective == SMP_OBJECTIVE_STEP)
        status = hint_microbatches(&t);
    if (status == SMP_OK)
        status = hint_recompute(&t);
    if (status == SMP_OK)
        hint_other(&t, result);
    if (status == SMP_OK)
        status = hint_links(&t, SMP_HINT_INTRA_LINK, 2.0, 1.0, "links within nodes twice as fast");
    if (status == SMP_OK && request->cluster->nodes > 1)
        status = hint_links(&t, SMP_HINT_INTER_LINK, 1.0, 2.0, "links between nodes twice as fast");
    if (status == SMP_OK)
        status = hint_links(&t, SMP_HINT_FREE_LINKS, 1e9, 1e9,
                            "transfers and reductions that cost nothing: the most that links give");
    free(rank_us);
    if (status != SMP_OK)
        return status;
    qsort(hint, (size_t)t.n, sizeof *hint, compare_hints);
    *n = t.n;
    return SMP_OK;
}
