/* From the partition with the least bottleneck to that with the least step.
 *
 * Two means, each judged by the simulated step. The stand-in: from its first backward on, rank r
 * has a_r forwards and m - 1 more backwards to do in its order, and what comes before and after
 * that is the way of one micro-batch through the pipeline and back. So the step of a chain is at
 * least
 *
 *     sum of all f + b  +  max over r of (a_r f_r + (m - 1) b_r),
 *
 * and the least of that is a bottleneck again, of ranks that count differently: under 1F1B a_r is
 * m - p + r, so that the first ranks, which have more forwards behind them by then, may hold more.
 * And the search itself: single units moved to other stages for as long as that helps; in a problem
 * small enough every partition that its bound does not rule out. */
#include <math.h>
#include <string.h>

#include "schedule/planner/search/search_state.h"

/* For one configuration: partitions that are simulated, and what they may cost; what is small
 * enough to look at every partition, and the units placed for that. */
enum {
    MOST_TRIALS = 20000,
    SMALL_UNITS = 128,
    MOST_PLACED = 100000,
    FITTING_TRIALS = 9, /* what choosing ops to recompute counts as, and */
    FITTING_OPS = 500   /* one more for so many ops */
};
#define MOST_WORK 3e6
#define PLACE_WORK 0.25 /* of a unit, in ops */
#define BETTER (1.0 - 1e-9)

/* What bounds the step and the memory below, of a unit and of all units of a rank. */
typedef struct load {
    double work_us;     /* compute of a micro-batch */
    double chain_us;    /* the longest that leads through one of the ops */
    double state_bytes; /* kept for ever, but for weights that units share */
    smp__op_times sum;
} load;

typedef struct step_search {
    smp__configs *configs;
    smp__config *config;
    smp_candidate **best, *first; /* that was given */
    double limit_us;              /* of a step as long as the best does not fit, */
    double close_us;              /* and of any that is worth a look */
    smp_problem problem;
    smp__units *units;
    int32_t *place;      /* [units->n] stage of each unit now */
    int32_t *stage;      /* [n_op] scratch */
    int32_t *n_in_stage; /* [n_stage] units */
    load *unit;          /* [units->n] */
    load *rank;          /* [pipeline] of the units placed there */
    smp__step_floor floor;
    double trial_work; /* ops and actions of a simulation */
    double work_left;
    int64_t placed_left;
    bool left_out; /* a partition that another choice of what recomputes might have made better */
} step_search;

/* Share of a backward that an action is; half of it the gradient of the input. */
static double backward_share(smp_action_kind kind)
{
    return kind == SMP_ACTION_B ? 1.0 : kind == SMP_ACTION_I || kind == SMP_ACTION_W ? 0.5 : 0.0;
}

/* What the rank does after its first backward, of what it does in all; by the model's mean of
 * forward to backward. */
static double share_after(const smp_program *program, double backward_part)
{
    double all = 0.0, after = 0.0;
    bool begun = false;
    for (int64_t i = 0; i < program->n; i++) {
        smp_action_kind kind = program->action[i].kind;
        double backward = backward_share(kind);
        double us = backward > 0.0 ? backward * backward_part : 1.0 - backward_part;
        all += us;
        after += begun ? us : 0.0;
        begun |= backward > 0.0;
    }
    return all > 0.0 ? after / all : 0.0;
}

/* [pipeline]; *alike: they are the same, or there is nothing after. */
static smp_status weigh_ranks(const smp__configs *configs, const smp__config *config,
                              double *weight, bool *alike)
{
    const smp_graph *graph = configs->request->graph;
    smp_schedule_shape shape = smp__config_shape(configs, config);
    double forward_us = 0.0, all_us = 0.0;
    for (int32_t op = 0; op < graph->n_op; op++) {
        forward_us += configs->costs->op[op].forward_us;
        all_us += configs->costs->op[op].forward_us + configs->costs->op[op].backward_us;
    }
    *alike = true;
    if (!graph->training || !(all_us > 0.0))
        return SMP_OK;
    for (int r = 0; r < shape.pipeline; r++) {
        smp_program program = {0};
        smp_status status = config->schedule->order(&shape, r, &program);
        weight[r] = share_after(&program, 1.0 - forward_us / all_us);
        smp_program_free(&program);
        SMP_TRY(status);
    }
    for (int r = 0; r < shape.pipeline; r++) {
        if (!(weight[r] > 0.0)) {
            *alike = true;
            return SMP_OK;
        }
        *alike = *alike && fabs(weight[r] - weight[0]) <= 1e-9;
    }
    return SMP_OK;
}

/* What a step has to stay below. */
static double limit_of(const step_search *s)
{
    return fmin(s->close_us, (*s->best)->fits ? (*s->best)->step_us : s->limit_us) * BETTER;
}

/* A partition is judged; it takes the place of the best if it fits and its step is shorter. */
static smp_status judge_partition(step_search *s, smp_partition *partition, bool *better)
{
    const smp_partition *old = (*s->best)->partition;
    smp_candidate *trial = NULL;
    double least_us, limit_us = limit_of(s);
    double samples = (*s->best)->replicas * (double)(*s->best)->microbatch_size;
    *better = false;
    s->work_left -= s->problem.graph->n_op;
    smp_status status = smp__config_least_us(s->configs, s->config, partition, &least_us);
    if (status != SMP_OK || least_us * samples * s->config->microbatches >= limit_us) {
        smp_partition_destroy(partition);
        return status;
    }
    s->work_left -= s->trial_work - s->problem.graph->n_op;
    partition->solver = old->solver;
    partition->bound = old->bound;
    partition->timed_out = old->timed_out;
    partition->lower_bound_us = fmin(old->lower_bound_us, partition->bottleneck_us);
    SMP_TRY(smp__config_evaluate(s->configs, s->config, partition,
                                 isfinite(limit_us) ? limit_us : 0.0, &trial));
    *better = trial->step_us < limit_us && trial->fits;
    s->left_out |= trial->n_recompute > 0 || trial->n_offload > 0 ||
                   (!trial->fits && (s->config->recompute == SMP_RECOMPUTE_AUTO ||
                                     smp__may_offload(s->configs->request)));
    const smp_search_request *request = s->configs->request;
    if ((trial->n_recompute > 0 && request->options.recompute == SMP_RECOMPUTE_AUTO) ||
        (trial->n_offload > 0 && request->options.offload == SMP_OFFLOAD_AUTO)) /* it was fitted */
        s->work_left -= s->trial_work * (FITTING_TRIALS + s->problem.graph->n_op / FITTING_OPS);
    if (*better) {
        smp_candidate *worse = *s->best;
        *s->best = trial;
        trial = worse == s->first ? NULL : worse;
    }
    smp_candidate_destroy(trial);
    return SMP_OK;
}

static void add_load(load *sum, const load *unit)
{
    sum->work_us += unit->work_us;
    sum->chain_us = fmax(sum->chain_us, unit->chain_us);
    sum->state_bytes += unit->state_bytes;
    sum->sum.forward_us += unit->sum.forward_us;
    sum->sum.input_us += unit->sum.input_us;
    sum->sum.weight_us += unit->sum.weight_us;
}

/* A rank keeps its states whatever recomputes; it computes every micro-batch, and beside the chain
 * of one of them what its rule leaves to do. */
static bool may_be_better(const step_search *s, int rank)
{
    const load *l = &s->rank[rank];
    if (l->state_bytes > (double)smp__config_memory(s->config, rank))
        return false;
    const smp__segment *times = &s->floor.times[rank];
    double all_us =
        s->config->microbatches * smp_problem_rank_slowdown(&s->problem, rank) * l->work_us;
    double rule_us = l->chain_us + times->forwards * l->sum.forward_us +
                     times->inputs * l->sum.input_us + times->weights * l->sum.weight_us;
    return fmax(all_us, rule_us) < limit_of(s);
}

static bool place_may_be_better(step_search *s)
{
    memset(s->rank, 0, (size_t)s->problem.pipeline * sizeof *s->rank);
    for (int32_t u = 0; u < s->units->n; u++)
        add_load(&s->rank[s->problem.stage_rank[s->place[u]]], &s->unit[u]);
    for (int r = 0; r < s->problem.pipeline; r++)
        if (!may_be_better(s, r))
            return false;
    return true;
}

static smp_status judge_place(step_search *s, bool *better)
{
    smp_partition *partition = NULL;
    for (int32_t op = 0; op < s->problem.graph->n_op; op++)
        s->stage[op] = s->place[s->units->unit_of_op[op]];
    SMP_TRY(smp_partition_evaluate(&s->problem, s->stage, &partition));
    return judge_partition(s, partition, better);
}

/* The solvers' answer to the stand-in. */
static smp_status try_stand_in(step_search *s, smp_arena *arena)
{
    bool alike, better;
    double *weight = SMP_ARENA_NEW(arena, double, (size_t)s->problem.pipeline);
    if (!weight)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(weigh_ranks(s->configs, s->config, weight, &alike));
    if (alike)
        return SMP_OK;
    smp_problem weighed = s->problem;
    smp_partition *found = NULL, *partition = NULL;
    weighed.weight = weight;
    weighed.recomputes = NULL;
    weighed.deadline_s = s->configs->planner->budget.part_s;
    weighed.first_look = s->problem.graph->n_op <= SMP__SMALL_OPS; /* many configurations */
    SMP_TRY(smp_partition_solve(&weighed, NULL, s->config->microbatches, &found));
    smp_status status = smp_partition_evaluate(&s->problem, found->stage, &partition);
    smp_partition_destroy(found);
    return status == SMP_OK ? judge_partition(s, partition, &better) : status;
}

/* Stages that a unit may be in while all others stay. */
static void range_of(const step_search *s, int32_t u, int32_t *lo, int32_t *hi)
{
    const smp__units *units = s->units;
    *lo = units->lo[u];
    *hi = units->hi[u];
    for (int64_t i = units->in_begin[u]; i < units->in_begin[u + 1]; i++) {
        int32_t from = s->place[units->net_unit[units->in_net[i]]];
        *lo = from > *lo ? from : *lo;
    }
    for (int64_t i = units->out_begin[u]; i < units->out_begin[u + 1]; i++) {
        int32_t net = units->out_net[i];
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            int32_t to = s->place[units->net_consumer[c]];
            *hi = to < *hi ? to : *hi;
        }
    }
}

/* True as long as trials are left. */
static bool may_go_on(const step_search *s)
{
    return s->work_left > 0.0 && !smp__budget_is_over(&s->configs->planner->budget);
}

static void take_best(step_search *s)
{
    memset(s->n_in_stage, 0, (size_t)s->problem.n_stage * sizeof *s->n_in_stage);
    for (int32_t u = 0; u < s->units->n; u++) {
        s->place[u] = (*s->best)->partition->stage[s->units->op_list[s->units->op_begin[u]]];
        s->n_in_stage[s->place[u]]++;
    }
}

/* One unit to one of its other stages. */
static smp_status move_unit(step_search *s, int32_t u, bool *moved)
{
    int32_t lo, hi, from = s->place[u];
    range_of(s, u, &lo, &hi);
    for (int32_t to = lo; to <= hi && s->n_in_stage[from] > 1 && may_go_on(s); to++) {
        bool better = false;
        if (to == from)
            continue;
        s->place[u] = to;
        s->work_left -= PLACE_WORK * s->units->n;
        if (place_may_be_better(s))
            SMP_TRY(judge_place(s, &better));
        if (better) {
            s->n_in_stage[from]--;
            s->n_in_stage[to]++;
            *moved = true;
            return SMP_OK;
        }
        s->place[u] = from;
    }
    return SMP_OK;
}

static smp_status descend(step_search *s)
{
    take_best(s);
    for (bool moved = true; moved && may_go_on(s);) {
        moved = false;
        for (int32_t u = 0; u < s->units->n; u++)
            SMP_TRY(move_unit(s, u, &moved));
    }
    return SMP_OK;
}

/* Every way to place the units from u on, which stand in topological order, that may be better. */
static smp_status place_all(step_search *s, int32_t u, int empty)
{
    const smp__units *units = s->units;
    bool better;
    if (u == units->n)
        return empty == 0 ? judge_place(s, &better) : SMP_OK;
    if (empty > units->n - u || s->placed_left-- <= 0 || !may_go_on(s))
        return SMP_OK;
    s->work_left -= PLACE_WORK;
    int32_t lo = units->lo[u];
    for (int64_t i = units->in_begin[u]; i < units->in_begin[u + 1]; i++) {
        int32_t from = s->place[units->net_unit[units->in_net[i]]];
        lo = from > lo ? from : lo;
    }
    for (int32_t to = lo; to <= units->hi[u]; to++) {
        int rank = s->problem.stage_rank[to];
        load before = s->rank[rank];
        add_load(&s->rank[rank], &s->unit[u]);
        s->place[u] = to;
        if (may_be_better(s, rank)) {
            SMP_TRY(place_all(s, u + 1, empty - (s->n_in_stage[to]++ == 0)));
            s->n_in_stage[to]--;
        }
        s->rank[rank] = before;
    }
    return SMP_OK;
}

static smp_status weigh_units(step_search *s, smp_arena *arena)
{
    const smp__units *units = s->units;
    s->unit = SMP_ARENA_NEW(arena, load, (size_t)units->n);
    s->rank = SMP_ARENA_NEW(arena, load, (size_t)s->problem.pipeline);
    if (!s->unit || !s->rank)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__step_floor_make(s->configs, s->config, arena, &s->floor));
    for (int32_t op = 0; op < s->problem.graph->n_op; op++) {
        const load of_op = {.chain_us = s->floor.chain_us[op], .sum = s->floor.op[op]};
        add_load(&s->unit[units->unit_of_op[op]], &of_op);
    }
    for (int32_t u = 0; u < units->n; u++) {
        s->unit[u].work_us = smp__unit_work_us(&s->problem, units, u);
        s->unit[u].state_bytes = s->problem.state_factor * (double)units->weight_bytes[u];
    }
    return SMP_OK;
}

static smp_status open_search(step_search *s, double work, smp_arena *arena)
{
    SMP_TRY(smp__config_problem(s->configs, s->config, &s->problem));
    if (s->problem.recompute == SMP_RECOMPUTE_AUTO)
        s->problem.recomputes = s->configs->no_op; /* what has to is chosen when it is judged */
    SMP_TRY(smp__units_build(&s->problem, &s->units));
    size_t n_stage = (size_t)s->problem.n_stage;
    s->place = SMP_ARENA_NEW(arena, int32_t, (size_t)s->units->n);
    s->stage = SMP_ARENA_NEW(arena, int32_t, (size_t)s->problem.graph->n_op);
    s->n_in_stage = SMP_ARENA_NEW(arena, int32_t, n_stage);
    if (!s->place || !s->stage || !s->n_in_stage)
        return SMP_ERR_NO_MEMORY;
    s->trial_work = s->problem.graph->n_op + 4.0 * (double)n_stage * s->config->microbatches;
    s->work_left = fmin(MOST_TRIALS * s->trial_work, fmin(MOST_WORK, work));
    s->placed_left = MOST_PLACED;
    return weigh_units(s, arena);
}

/* No partition has a shorter step than the best. Those that were too slow with nothing recomputing
 * are with it, unless ranks take turns on a core: there more work may make a step shorter. */
static bool has_seen_all(const step_search *s)
{
    const smp_candidate *best = *s->best;
    bool turns = s->configs->request->cluster->cores_per_node > 0 && s->units->memory_binds;
    return may_go_on(s) && s->placed_left > 0 && !s->left_out && !turns && best->fits &&
           best->n_recompute == 0 && best->n_offload == 0 && best->step_us <= s->close_us;
}

smp_status smp__step_search(smp__configs *configs, smp__config *config, double limit_us,
                            double close_us, double *work, smp_candidate **best,
                            smp_candidate **replaced)
{
    step_search s = {.configs = configs,
                     .config = config,
                     .best = best,
                     .first = *best,
                     .limit_us = limit_us,
                     .close_us = INFINITY};
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_status status = open_search(&s, *work, arena);
    double all_work = s.work_left;
    if (status == SMP_OK && (*best)->fits)
        status = try_stand_in(&s, arena);
    if (status == SMP_OK && (*best)->fits)
        status = descend(&s);
    if (status == SMP_OK && s.units->n <= SMALL_UNITS) {
        memset(s.n_in_stage, 0, (size_t)s.problem.n_stage * sizeof *s.n_in_stage);
        memset(s.rank, 0, (size_t)s.problem.pipeline * sizeof *s.rank);
        s.close_us = close_us; /* what is found here needs no way that leads to it */
        status = place_all(&s, 0, s.problem.n_stage);
        (*best)->is_least = status == SMP_OK && has_seen_all(&s);
    }
    *work -= all_work - s.work_left;
    *replaced = *best == s.first ? NULL : s.first;
    smp__units_destroy(s.units);
    smp_arena_destroy(arena);
    return status;
}
