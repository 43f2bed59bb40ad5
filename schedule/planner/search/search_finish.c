/* The end of a search: what was tried in order, and the winner improved and proven.
 *
 * Those that fit come first, of them those within 1 % of the best. Those near the best get the
 * effort that all configurations cannot have, every partitioner, and the winner the exact search,
 * which raises its bound.
 * O(n log n) for n tried, and the solvers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/prove/prove.h"
#include "schedule/planner/search/search_state.h"

enum {
    MAX_POLISHED = 6,
    POLISH_OPS = 2000, /* fewer of larger graphs */
    LARGE_OPS = 4000
};
#define NEAR 1.05       /* times the best: what more effort may turn into the best */
#define NEAR_MISS 1.0   /* of the memory */
#define STEP_WORK 3e6   /* ops and actions that searching for it may simulate, in all; */
#define SMALL_WORK 12e6 /* in small graphs, of which it looks at what does not fit yet, too */

void smp_search_result_destroy(smp_search_result *result)
{
    smp_candidate_destroy(result->best);
    for (int i = 0; i < 2; i++)
        smp_candidate_destroy(result->other[i]);
    for (int i = 0; i < result->n_tried; i++)
        smp_candidate_destroy(result->tried[i]);
    free(result->tried);
    *result = (smp_search_result){0};
}

bool smp__candidate_improves(const smp_search_request *request, const smp_candidate *from,
                             const smp_candidate *to)
{
    if (!to || !from || to->fits != from->fits)
        return to && (!from || to->fits);
    if (!to->fits)
        return to->room_bytes > from->room_bytes;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return to->peak_bytes < from->peak_bytes ||
               (to->peak_bytes == from->peak_bytes && to->step_us < from->step_us);
    if (request->options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return to->bottleneck_us < from->bottleneck_us;
    return to->step_us < from->step_us;
}

/* How an entry ranks: those that fit first, of them those within 1 % of the best. */
typedef struct rank_key {
    int tier; /* 0: close to the best, 1: fits, 2: does not fit */
    double first, second, third;
    int32_t index;
    smp_candidate *candidate;
    int32_t entry;
} rank_key;

static int compare_keys(const void *left, const void *right)
{
    const rank_key *a = left, *b = right;
    int order = a->tier - b->tier;
    if (order == 0)
        order = smp__compare_doubles(a->first, b->first);
    if (order == 0)
        order = smp__compare_doubles(a->second, b->second);
    if (order == 0)
        order = smp__compare_doubles(a->third, b->third);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

static rank_key key_of(const smp__search *s, const smp__entry *entry)
{
    const smp_candidate *c = entry->candidate;
    bool for_memory = s->configs.request->options.optimize == SMP_OPTIMIZE_MEMORY;
    double peak = (double)c->peak_bytes,
           m = (double)smp__all_microbatches(c->microbatches, c->replicas);
    rank_key key = {2,
                    -(double)c->room_bytes,
                    m,
                    entry->time,
                    entry->index,
                    entry->candidate,
                    (int32_t)(entry - s->entry)};
    if (!c->fits)
        return key;
    bool close = (for_memory ? peak : entry->time) <= SMP__CLOSE * s->least[0];
    key.tier = close ? 0 : 1;
    if (for_memory) {
        key.first = close ? entry->time : peak;
        key.second = close ? m : entry->time;
        key.third = close ? peak : m;
    } else {
        key.first = close ? m : entry->time;
        key.second = close ? peak : m;
        key.third = close ? entry->time : peak;
    }
    return key;
}

/* The entries by rank, in *key; malloc'ed. */
static smp_status sort_entries(const smp__search *s, rank_key **key)
{
    *key = calloc((size_t)s->n + 1, sizeof **key);
    if (!*key)
        return smp_fail_memory((size_t)s->n * sizeof **key);
    for (int32_t i = 0; i < s->n; i++)
        (*key)[i] = key_of(s, &s->entry[i]);
    qsort(*key, (size_t)s->n, sizeof **key, compare_keys);
    return SMP_OK;
}

/* The partition of the winner's configuration to prove from, in its problem, without memory limits
 * or with them: its own, or the one without limits where that has the smaller bottleneck. */
static smp_status restate(smp__search *s, smp__config *config, const smp_candidate *best,
                          bool limited, smp_problem *problem, smp_partition **partition)
{
    const smp__variants *variants = &s->configs.arrangement[config->arrangement].variants;
    const smp_search_request *request = s->configs.request;
    const smp_partition *from = best->partition;
    SMP_TRY(smp__config_problem(&s->configs, config, problem));
    problem->deadline_s = s->budget->part_s;
    problem->first_look = false;
    problem->until_deadline = request->options.effort == SMP_EFFORT_HIGH &&
                              request->options.objective == SMP_OBJECTIVE_BOTTLENECK;
    if (!limited) {
        problem->memory_limit = s->configs.unlimited;
        SMP_TRY(smp__variants_choose(problem, variants, config->microbatches, &from));
        if (best->partition->bottleneck_us <= from->bottleneck_us)
            from = best->partition;
        else if (problem->until_deadline) /* time for what keeps the limits */
            problem->deadline_s = 0.5 * (smp_work_s() + problem->deadline_s);
    }
    SMP_TRY(smp_partition_evaluate(problem, from->stage, partition));
    (*partition)->solver = from->solver;
    (*partition)->bound = best->partition->bound;
    (*partition)->lower_bound_us =
        fmin(best->partition->lower_bound_us, (*partition)->bottleneck_us);
    return SMP_OK;
}

/* Fits a partition of the winner's configuration, which it takes over, and lets it take the
 * winner's place if it is better. */
static smp_status challenge(smp__search *s, smp__config *config, smp_partition *partition,
                            smp_candidate **best)
{
    smp_candidate *trial = NULL;
    int64_t room;
    SMP_TRY(smp__config_fit(&s->configs, config, partition, 0.0, &trial, &room));
    if (smp__candidate_improves(s->configs.request, *best, trial)) {
        smp_candidate *old = *best;
        *best = trial;
        trial = old;
    }
    smp_candidate_destroy(trial);
    return SMP_OK;
}

/* A large graph in a partition within two parts in a thousand of its bound: more effort would cost
 * more than it can bring. */
static bool is_good_enough(const smp_search_request *request, const smp_candidate *best)
{
    const smp_partition *partition = best->partition;
    return request->graph->n_op > LARGE_OPS &&
           partition->bottleneck_us <= 1.002 * partition->lower_bound_us;
}

/* What takes the place of an entry that does not fit has to be better than the best. close: of all
 * partitions those are looked for that take no more than so many times the best. */
static smp_status search_step(smp__search *s, smp__entry *entry, double close, double *work)
{
    const smp_candidate *c = entry->candidate;
    double limit_us = INFINITY;
    if (s->n_least > 0)
        limit_us = s->least[0] * c->microbatches * c->replicas * (double)c->microbatch_size;
    smp_status status =
        smp__step_search(&s->configs, &s->configs.config[entry->index], limit_us, close * limit_us,
                         work, &entry->candidate, &entry->balanced);
    if (entry->balanced && !entry->balanced->fits) { /* nothing for an order to begin with */
        smp_candidate_destroy(entry->balanced);
        entry->balanced = NULL;
    }
    return status;
}

/* More effort for the best: all partitioners, where the search used a quick one; and where
 * stages recompute, tighter limits, under which others may do so in their place. A partitioner that
 * was asked for has the last word. */
static smp_status polish(smp__search *s, smp__entry *entry, double close, double *work)
{
    static const double spare[] = {0.02, 0.05};
    const smp_search_request *request = s->configs.request;
    smp__config *config = &s->configs.config[entry->index];
    smp_candidate **best = &entry->candidate;
    smp_partition *partition = NULL;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY || request->options.partitioner)
        return SMP_OK;
    if (!is_good_enough(request, *best))
        SMP_TRY(smp__config_best_partition(&s->configs, config, &partition));
    if (partition)
        SMP_TRY(challenge(s, config, partition, best));
    bool again = request->options.recompute == SMP_RECOMPUTE_AUTO && (*best)->n_recompute > 0;
    for (size_t i = 0; again && i < sizeof spare / sizeof spare[0]; i++) {
        if (smp__budget_is_over(s->budget))
            break;
        SMP_TRY(smp__config_partition(&s->configs, config, spare[i], &partition));
        SMP_TRY(challenge(s, config, partition, best));
    }
    return smp__is_for_step(request) && *work > 0.0 ? search_step(s, entry, close, work) : SMP_OK;
}

/* Whether another partition of a small graph may fit where what the solvers found just misses. */
static bool is_near_miss(const smp__search *s, const smp_candidate *nearest)
{
    const smp_search_request *request = s->configs.request;
    int64_t limit = smp__planner_limit(s->configs.planner, nearest, nearest->worst_rank);
    return smp__looks_at_all(request) && (double)-nearest->room_bytes < NEAR_MISS * (double)limit;
}

/* Whether more effort may make this entry the best. */
static bool may_win(const smp__search *s, const smp__entry *entry)
{
    const smp_search_request *request = s->configs.request;
    bool fits = entry->candidate->fits;
    if (!fits && !is_near_miss(s, entry->candidate))
        return false;
    if (s->n_least == 0)
        return true;
    if (!smp__is_for_step(request))
        return entry->time <= NEAR * s->least[0];
    return (fits && entry->time <= SMP__NEAR_STEP * s->least[0]) ||
           (request->graph->n_op <= SMP__SMALL_OPS &&
            smp__config_least_us_of_any(&s->configs, &s->configs.config[entry->index]) <
                s->least[0]);
}

/* It recomputes no more than it needs, if there is time: one that fits may stay as it is. */
static smp_status settle(smp__search *s, int32_t index, smp_candidate *candidate)
{
    if (candidate->fits && smp__budget_is_over(s->budget))
        return SMP_OK;
    return smp__config_settle(&s->configs, &s->configs.config[index], candidate);
}

/* Bound as the request has it. */
static bool is_plain(const smp_search_request *request, const smp_candidate *candidate)
{
    return candidate->active == request->options.active_microbatches &&
           candidate->lag == request->options.weight_lag;
}

/* The first few that are near the best; sorts the entries anew. The first that is bound as the
 * request has it is one that an order of its own may begin with, so it becomes as good as it
 * can. */
static smp_status polish_best(smp__search *s, rank_key **key)
{
    const smp_search_request *request = s->configs.request;
    int64_t n_op = request->graph->n_op, n = 1;
    double work = n_op <= SMP__SMALL_OPS ? SMALL_WORK : STEP_WORK;
    bool plain = false;
    if (s->configs.quick || smp__is_for_step(request))
        n = 1 + (MAX_POLISHED - 1) * (int64_t)POLISH_OPS / (n_op + POLISH_OPS);
    if (smp__looks_at_all(request))
        n = s->n;
    for (int32_t i = 0; i < n && i < s->n; i++) {
        smp__entry *entry = &s->entry[(*key)[i].entry];
        if ((i > 0 || entry->candidate->fits) && smp__budget_is_over(s->budget))
            break;
        if (i > 0 && !may_win(s, entry))
            continue;
        bool first = !plain && is_plain(request, entry->candidate);
        plain |= first;
        SMP_TRY(polish(s, entry, first ? INFINITY : SMP__CLOSE, &work));
        if (entry->candidate->fits)
            SMP_TRY(
                smp__config_tune(&s->configs, &s->configs.config[entry->index], entry->candidate));
        entry->time = smp__search_time(request, entry->candidate);
        if (entry->candidate->n_recompute + entry->candidate->n_offload > 0 &&
            (i == 0 || entry->time <= NEAR * s->least[0]))
            SMP_TRY(settle(s, entry->index, entry->candidate));
        entry->time = smp__search_time(request, entry->candidate);
        if (request->options.optimize == SMP_OPTIMIZE_SPEED && entry->candidate->fits) {
            s->least[0] = s->n_least > 0 ? fmin(s->least[0], entry->time) : entry->time;
            s->n_least = s->n_least > 0 ? s->n_least : 1;
        }
    }
    free(*key);
    *key = NULL;
    return sort_entries(s, key);
}

/* Takes the place of the winner if it differs, fits and is better. */
static smp_status offer_stages(smp__search *s, smp__config *config, const smp_partition *found,
                               smp_candidate **best)
{
    smp_problem problem;
    smp_partition *copy = NULL;
    size_t bytes = (size_t)s->configs.request->graph->n_op * sizeof *found->stage;
    if (s->configs.request->options.partitioner || /* it has the last word */
        memcmp(found->stage, (*best)->partition->stage, bytes) == 0)
        return SMP_OK;
    SMP_TRY(smp__config_problem(&s->configs, config, &problem));
    SMP_TRY(smp_partition_evaluate(&problem, found->stage, &copy));
    copy->solver = found->solver;
    return challenge(s, config, copy, best);
}

/* Exact search from the winner, which what it finds may replace. *proven: with its bound. */
static smp_status search_on(smp__search *s, smp__config *config, bool limited, smp_candidate **best,
                            smp_partition **proven)
{
    smp_problem problem;
    SMP_TRY(restate(s, config, *best, limited, &problem, proven));
    smp_status status = smp_partition_prove(&problem, proven);
    return status == SMP_OK ? offer_stages(s, config, *proven, best) : status;
}

/* Raises the winner's bound, and replaces it by what the proof finds where that is better. The
 * bound is that without memory limits: what the memory planner makes of a partition may be less
 * than the estimate that limits are kept by, so nothing is proven about those. Under limits that
 * the winner keeps the search goes on for a better partition alone. */
static smp_status prove(smp__search *s, int32_t index, smp_candidate **best)
{
    smp__config *config = &s->configs.config[index];
    smp_partition *proven = NULL, *within = NULL;
    smp_status status = search_on(s, config, false, best, &proven);
    bool open = status == SMP_OK &&
                (*best)->partition->bottleneck_us > proven->lower_bound_us * (1.0 + 1e-9);
    if (open && (*best)->fits && proven->bottleneck_us < (*best)->bottleneck_us)
        status = search_on(s, config, true, best, &within);
    if (status == SMP_OK) {
        smp_partition *partition = (*best)->partition;
        partition->bound = proven->bound;
        partition->timed_out |= proven->timed_out;
        partition->lower_bound_us = fmin(proven->lower_bound_us, partition->bottleneck_us);
        s->timed_out |= partition->timed_out;
    }
    smp_partition_destroy(proven);
    smp_partition_destroy(within);
    return status;
}

/* What the list of those tried shows of the winner. */
static smp_candidate *copy_bare(const smp_candidate *from)
{
    smp_candidate *copy = calloc(1, sizeof *copy);
    if (copy) {
        *copy = *from;
        copy->partition = NULL;
        copy->device = copy->stage_rank = NULL;
        copy->rank_peak_bytes = NULL;
        copy->offload = NULL;
    }
    return copy;
}

static void make_bare(smp_candidate *candidate)
{
    smp_candidate bare = *candidate;
    bare.partition = NULL;
    bare.device = bare.stage_rank = NULL;
    bare.rank_peak_bytes = NULL;
    bare.offload = NULL;
    free(candidate->device);
    free(candidate->stage_rank);
    free(candidate->rank_peak_bytes);
    free(candidate->offload);
    smp_partition_destroy(candidate->partition);
    *candidate = bare;
}

/* Place of the first that is bound as the request has it, where the winner is not; 0: none. */
static int32_t find_plain(const smp__search *s, const rank_key *key)
{
    const smp_search_request *request = s->configs.request;
    for (int32_t i = 0; i < s->n && key[i].tier < 2 && !is_plain(request, key[0].candidate); i++)
        if (is_plain(request, key[i].candidate))
            return i;
    return 0;
}

static smp_status bound_step(const smp__search *s, const rank_key *key, int32_t *stage, bool *found)
{
    smp_candidate *candidate = s->entry[key->entry].candidate;
    double *bound_us = candidate->step_bound_us;
    *found = false;
    if (s->configs.request->options.objective != SMP_OBJECTIVE_STEP || s->configs.planner->trial)
        return SMP_OK;
    SMP_TRY(smp__step_bound(&s->configs, &s->configs.config[key->index],
                            candidate->is_least ? 0.0 : candidate->step_us, &bound_us[0],
                            &bound_us[1], stage, found));
    if (candidate->is_least)
        bound_us[0] = fmax(bound_us[0], candidate->step_us * (1.0 - 1e-9));
    return SMP_OK;
}

/* A partition that the search for a bound met; not if it breaks what the request fixes. */
static smp_status offer_met(smp__search *s, const rank_key *key, const int32_t *stage)
{
    smp__config *config = &s->configs.config[key->index];
    smp_candidate **best = &s->entry[key->entry].candidate;
    const smp_partition *old = (*best)->partition;
    smp_partition *partition = NULL;
    smp_problem problem;
    SMP_TRY(smp__config_problem(&s->configs, config, &problem));
    smp_status status = smp_partition_evaluate(&problem, stage, &partition);
    if (status != SMP_OK)
        return status == SMP_ERR_INPUT ? SMP_OK : status;
    partition->solver = old->solver;
    partition->bound = old->bound;
    partition->timed_out = old->timed_out;
    partition->lower_bound_us = fmin(old->lower_bound_us, partition->bottleneck_us);
    double bound_us[2] = {(*best)->step_bound_us[0], (*best)->step_bound_us[1]};
    status = challenge(s, config, partition, best);
    memcpy((*best)->step_bound_us, bound_us, sizeof bound_us);
    return status;
}

/* The bound on the winner's step; what that meets takes its place if it is better. */
static smp_status bound_best(smp__search *s, const rank_key *key)
{
    size_t n = (size_t)s->configs.request->graph->n_op;
    int32_t *stage = calloc(n, sizeof *stage);
    bool found = false;
    smp_status status =
        stage ? bound_step(s, key, stage, &found) : smp_fail_memory(n * sizeof *stage);
    if (status == SMP_OK && found && !s->configs.request->options.partitioner)
        status = offer_met(s, key, stage);
    free(stage);
    return status;
}

static void count_standings(const smp__search *s, smp_search_result *result)
{
    for (int32_t i = 0; i < s->configs.n; i++) {
        const smp__config *config = &s->configs.config[i];
        result->n_config += config->standing != SMP__UNNEEDED;
        result->n_pruned_time += config->standing == SMP__TOO_SLOW;
        result->n_pruned_memory += smp__config_is_too_large(config);
        result->n_no_pipeline += config->standing == SMP__NO_PIPELINE;
        result->n_skipped += smp__config_is_open(config);
    }
    result->timed_out = s->timed_out;
}

/* Moves the entries into the result, best first. */
static smp_status hand_over(smp__search *s, const rank_key *key, int32_t plain,
                            smp_search_result *out)
{
    smp_search_result result = {0};
    count_standings(s, &result);
    if (s->configs.planner->any_shard || s->configs.planner->any_states)
        smp__search_list_shards(s, &result);
    result.tried = calloc((size_t)s->n, sizeof *result.tried);
    smp_candidate *first = result.tried ? copy_bare(key[0].candidate) : NULL;
    smp_candidate *other = first && plain > 0 ? copy_bare(key[plain].candidate) : NULL;
    if (!first || (plain > 0 && !other)) {
        free(result.tried);
        free(first);
        return smp_fail_memory((size_t)s->n * sizeof *result.tried);
    }
    result.best = key[0].candidate;
    result.other[0] = s->entry[key[0].entry].balanced;
    if (result.other[0])
        memcpy(result.other[0]->step_bound_us, result.best->step_bound_us,
               sizeof result.best->step_bound_us);
    result.other[1] = plain > 0 ? key[plain].candidate : NULL;
    result.tried[0] = first;
    for (int32_t i = 1; i < s->n; i++) {
        smp_candidate_destroy(s->entry[key[i].entry].balanced);
        result.tried[i] = i == plain ? other : key[i].candidate;
        if (i != plain)
            make_bare(key[i].candidate);
    }
    result.n_tried = s->n;
    s->n = 0;
    *out = result;
    return SMP_OK;
}

/* Proves the winner and bounds its step; a better one of its configuration may come in its
 * place. */
static smp_status prove_winner(smp__search *s, rank_key *key)
{
    smp_candidate **best = &s->entry[key->entry].candidate;
    SMP_TRY(prove(s, key->index, best));
    SMP_TRY(bound_best(s, key));
    if (*best != key->candidate && (*best)->n_recompute + (*best)->n_offload > 0)
        SMP_TRY(settle(s, key->index, *best));
    key->candidate = *best;
    return SMP_OK;
}

/* What decides between splittings: the first look at a partition whose memory is short may miss by
 * a fifth. */
static smp_status polish_brief(smp__search *s, rank_key *key)
{
    smp__entry *entry = &s->entry[key->entry];
    double no_work = 0.0;
    if (entry->candidate->n_recompute == 0 || smp__budget_is_over(s->budget))
        return SMP_OK;
    SMP_TRY(polish(s, entry, INFINITY, &no_work));
    key->candidate = entry->candidate;
    return SMP_OK;
}

smp_status smp__search_finish(smp__search *s, smp_search_result *out)
{
    rank_key *key = NULL;
    SMP_TRY(sort_entries(s, &key));
    smp_status status = SMP_OK;
    if (smp__is_brief(s->configs.planner) && key[0].candidate->fits) {
        status = polish_brief(s, &key[0]);
        if (status == SMP_OK)
            status = hand_over(s, key, 0, out);
        free(key);
        return status;
    }
    if (key[0].candidate->fits || is_near_miss(s, key[0].candidate))
        status = polish_best(s, &key);
    if (status == SMP_OK && !key[0].candidate->fits)
        status =
            smp__search_no_fit(&s->configs, &s->configs.config[key[0].index], key[0].candidate);
    smp__budget_begin(s->budget, SMP__PART_PROVE, s->configs.quick);
    if (status == SMP_OK)
        status = prove_winner(s, &key[0]);
    int32_t plain = status == SMP_OK ? find_plain(s, key) : 0;
    bool ignored;
    if (status == SMP_OK && plain > 0)
        status = bound_step(s, &key[plain], NULL, &ignored);
    if (status == SMP_OK)
        status = hand_over(s, key, plain, out);
    free(key);
    return status;
}
