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
    smp_arena *arena; /* scratch */
} trial;

/* A copy of the best whose numbers may be changed; the rest is shared. */
static smp_status copy_best(const trial *t, smp_candidate *copy)
{
    const smp_partition *from = t->best->partition;
    size_t n_stage = (size_t)from->n_stage, n_rank = (size_t)t->best->pipeline;
    *copy = *t->best;
    copy->partition = SMP_ARENA_NEW(t->arena, smp_partition, 1);
    copy->rank_peak_bytes = SMP_ARENA_NEW(t->arena, int64_t, n_rank);
    size_t n_op = (size_t)t->request->graph->n_op;
    smp_stage_load *load = SMP_ARENA_NEW(t->arena, smp_stage_load, n_stage);
    bool *recompute = SMP_ARENA_NEW(t->arena, bool, n_op);
    if (!copy->partition || !copy->rank_peak_bytes || !load || !recompute)
        return SMP_ERR_NO_MEMORY;
    memcpy(load, from->load, n_stage * sizeof *load);
    memcpy(recompute, from->recompute, n_op * sizeof *recompute);
    *copy->partition = *from;
    copy->partition->load = load;
    copy->partition->recompute = recompute;
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

static void scale_load(smp_stage_load *load, double factor)
{
    load->forward_us *= factor;
    load->backward_us *= factor;
    load->recompute_us *= factor;
    load->load_us *= factor;
}

/* No rank is slower than `target`: the time of the slower ones shrinks. */
static void cap_ranks(smp_candidate *copy, double target)
{
    const double *rank_us = copy->partition->rank_us;
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
static smp_status hint_split(trial *t)
{
    const smp_candidate *best = t->best;
    const double *rank_us = best->partition->rank_us;
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
    cap_ranks(&copy, target);
    SMP_TRY(measure(t, &copy, &gain));
    smp_hint *hint = add_hint(t, SMP_HINT_SPLIT_OP, gain);
    if (hint)
        snprintf(hint->text, sizeof hint->text,
                 "split op '%.120s' in two: it takes %.0f %% of stage %d on the slowest rank",
                 t->request->graph->op[op].name, 100.0 * share, stage);
    return SMP_OK;
}

/* Smaller ops, or other groups and pins, that let all ranks take the same time. */
static smp_status hint_balance(trial *t)
{
    const double *rank_us = t->best->partition->rank_us;
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
    SMP_TRY(measure(t, &copy, &gain));
    smp_hint *hint = add_hint(t, SMP_HINT_BALANCE, gain);
    if (hint) {
        char mean[32], most[32];
        smp_format_us(mean, sizeof mean, mean_us);
        smp_format_us(most, sizeof most, rank_us[slowest_of(rank_us, t->best->pipeline)]);
        snprintf(hint->text, sizeof hint->text,
                 "finer ops, or fewer groups and pins: %s per micro-batch on every rank instead of "
                 "up to %s",
                 mean, most);
    }
    return SMP_OK;
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
    SMP_TRY(measure(t, &copy, &gain));
    smp_hint *hint = add_hint(t, SMP_HINT_MICROBATCHES, gain);
    if (hint) {
        char peak[32];
        snprintf(hint->text, sizeof hint->text, "%d micro-batches instead of %d%s%s",
                 copy.microbatches, best->microbatches, copy.fits ? "" : ", with devices of ",
                 copy.fits ? "" : smp_format_bytes(peak, sizeof peak, copy.peak_bytes));
    }
    return SMP_OK;
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

/* The same links `factor` times as fast. */
static smp_status speed_up(const trial *t, double factor, smp_link_spec *link)
{
    double *point_us = SMP_ARENA_NEW(t->arena, double, (size_t)link->n_point);
    if (!point_us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < link->n_point; i++)
        point_us[i] = link->point_us[i] / factor;
    link->point_us = point_us;
    link->latency_us /= factor;
    link->bytes_per_s *= factor;
    return SMP_OK;
}

/* The slowest rank of the best's stages on another cluster, or without recomputation. */
static smp_status bottleneck_on(const trial *t, const smp_cluster *cluster, bool recompute,
                                double *bottleneck_us)
{
    const smp_candidate *best = t->best;
    size_t n = (size_t)best->partition->n_stage;
    smp_search_request request = *t->request;
    smp__mapping mapping = {.pipeline = best->pipeline, .ddp = best->ddp, .device = best->device};
    smp_problem problem = {.graph = request.graph,
                           .costs = t->planner->costs,
                           .cluster = cluster,
                           .n_stage = (int)n,
                           .pipeline = best->pipeline,
                           .stage_rank = best->stage_rank,
                           .state_factor = 1.0,
                           .pin = request.pin,
                           .pin_where = request.pin_where,
                           .together = request.together};
    const bool *none = SMP_ARENA_NEW(t->arena, bool, (size_t)request.graph->n_op);
    smp_partition *partition = NULL;
    problem.live = SMP_ARENA_NEW(t->arena, double, n); /* what fits does not matter here */
    problem.memory_limit = SMP_ARENA_NEW(t->arena, int64_t, n);
    if (!none || !problem.live || !problem.memory_limit)
        return SMP_ERR_NO_MEMORY;
    problem.recomputes = recompute ? best->partition->recompute : none;
    request.cluster = cluster;
    SMP_TRY(smp__mapping_count(&mapping, &request, t->arena));
    problem.device = mapping.counting;
    problem.n_replica = mapping.n_replica;
    SMP_TRY(smp_partition_evaluate(&problem, best->partition->stage, &partition));
    *bottleneck_us = partition->bottleneck_us;
    smp_partition_destroy(partition);
    return SMP_OK;
}

/* Transfers of a stage cost less by what the links of the model's tensors do: simulated for the
 * step; for the bottleneck the stages are evaluated anew. */
static smp_status hint_links(trial *t, smp_hint_kind kind, double intra, double inter,
                             const char *text)
{
    const smp_cluster *real = t->request->cluster;
    smp_cluster cluster = *real;
    double gain;
    smp_candidate copy;
    SMP_TRY(speed_up(t, intra, &cluster.intra_node));
    SMP_TRY(speed_up(t, inter, &cluster.inter_node));
    SMP_TRY(copy_best(t, &copy));
    if (t->request->objective == SMP_OBJECTIVE_BOTTLENECK) {
        SMP_TRY(bottleneck_on(t, &cluster, true, &copy.bottleneck_us));
        gain = gain_of(t, smp__search_time(t->request, &copy));
    } else {
        t->planner->request.cluster = &cluster;
        smp_status status = measure(t, &copy, &gain);
        t->planner->request.cluster = real;
        SMP_TRY(status);
    }
    smp_hint *hint = add_hint(t, kind, gain);
    if (hint)
        snprintf(hint->text, sizeof hint->text, "%s", text);
    return SMP_OK;
}

/* Without recomputation, and what memory that needs. */
static smp_status hint_recompute(trial *t)
{
    double gain;
    smp_candidate copy;
    if (t->best->n_recompute == 0)
        return SMP_OK;
    SMP_TRY(copy_best(t, &copy));
    for (int s = 0; s < copy.partition->n_stage; s++) {
        copy.partition->load[s].recompute = false;
        copy.partition->load[s].recompute_us = 0.0;
    }
    memset(copy.partition->recompute, 0, (size_t)t->request->graph->n_op);
    SMP_TRY(bottleneck_on(t, t->request->cluster, false, &copy.bottleneck_us));
    SMP_TRY(measure(t, &copy, &gain));
    smp_hint *hint = add_hint(t, SMP_HINT_MEMORY, gain);
    if (hint) {
        char peak[32];
        snprintf(hint->text, sizeof hint->text,
                 "%s of memory per device: then no stage has to recompute",
                 smp_format_bytes(peak, sizeof peak, copy.peak_bytes));
    }
    return SMP_OK;
}

static int compare_hints(const void *left, const void *right)
{
    const smp_hint *a = left, *b = right;
    int order = (a->gain < b->gain) - (a->gain > b->gain);
    return order ? order : (int)a->kind - (int)b->kind;
}

static smp_status try_all(trial *t, const smp_search_result *result)
{
    SMP_TRY(hint_split(t));
    SMP_TRY(hint_balance(t));
    if (t->request->objective == SMP_OBJECTIVE_STEP)
        SMP_TRY(hint_microbatches(t));
    SMP_TRY(hint_recompute(t));
    hint_other(t, result);
    SMP_TRY(hint_links(t, SMP_HINT_INTRA_LINK, 2.0, 1.0, "links within nodes twice as fast"));
    if (t->request->cluster->nodes > 1)
        SMP_TRY(hint_links(t, SMP_HINT_INTER_LINK, 1.0, 2.0, "links between nodes twice as fast"));
    return hint_links(t, SMP_HINT_FREE_LINKS, 1e9, 1e9,
                      "transfers and reductions that cost nothing: the most that links give");
}

smp_status smp__search_hints(smp__planner *planner, const smp_search_result *result, smp_hint *hint,
                             int *n)
{
    trial t = {.planner = planner,
               .request = &planner->request,
               .best = result->best,
               .time = smp__search_time(&planner->request, result->best),
               .hint = hint,
               .arena = smp_arena_create()};
    smp_status status = t.arena ? try_all(&t, result) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(t.arena);
    if (status != SMP_OK)
        return status;
    qsort(hint, (size_t)t.n, sizeof *hint, compare_hints);
    *n = t.n;
    return SMP_OK;
}
