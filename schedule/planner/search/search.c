/* The search over configurations: bounds first, then partitions, then simulation of those that can
 * still be among the best.
 *
 * What can still be. Let T be the least time per sample found so far among candidates that fit, and
 * T10 the tenth least. A configuration whose lower bound is above 1.01 T and above T10 is neither
 * within 1 % of the best nor one of the ten best. Nor is one whose bound is not below the times of
 * ten fitting candidates with fewer micro-batches: wherever it is within 1 % of the best, so are
 * they, and stand before it. When memory is minimised the bound is that of the peak. A
 * configuration whose weights, gradients and optimizer state exceed all memory cannot fit, nor can
 * one whose partition needs more on a rank than the rank has, whatever the order of its actions.
 * All others are simulated, so the ten that are listed are the ten best of all.
 *
 * A trial may be told what it has to beat: then what bounds say does not is left out as well.
 *
 * Bounds on live micro-batches join where they may help. A rule that takes one keeps its distance
 * from the next rank by it: with a lower bound every rank runs less far ahead, and waits longer;
 * that orders of unequal stages gain by it where memory does not bind happens, by 1 % or so.
 * So below the bound that it has of its own the next one is looked at only while memory binds, and
 * where that does not, nothing is added but the highest bound, which costs memory and may save
 * time. When memory is minimised that is the bound of 1. Where it binds the rule's own bound, fewer
 * micro-batches that wait for W come first, half as many each time: a late rank then keeps less,
 * and none runs less far ahead. In small graphs lower bounds are looked at with fewer of them too,
 * and when memory is minimised the lowest is, with 1 that waits and with none.
 *
 * The order in which configurations are looked at decides nothing but the effort, unless a time
 * limit strikes: then the best so far is taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/planner/search/search_state.h"

/* In larger plans live micro-batches are bound only if nothing fits without. */
enum { MAX_EXTRA_ACTIONS = 1 << 15 };

enum { EVERY_BOUND = 8 }; /* on live micro-batches; of higher ones three in four */
enum { OVERTIME = 10 };   /* times the effort for a search that has found nothing yet */

#define PATIENCE 0.15        /* of the time that is left; */
#define LITTLE_PATIENCE 0.01 /* with shards, of which there are many to look at, */
#define WHOLE_SHARE 0.4      /* and of the time for what does without, */
#define STATES_SHARE 0.7     /* or, where none is sharded, has its states on the device */
#define FAR 0.1              /* of the memory of a rank; */
#define FAR_OF_SMALL 1.0     /* in a small graph, of which every partition is looked at */

double smp__search_time(const smp_search_request *request, const smp_candidate *candidate)
{
    return smp_sample_us(request, candidate->bottleneck_us, candidate->step_us,
                         candidate->microbatches, candidate->replicas);
}

/* Live micro-batches are bound where the request does not ask for it. */
static bool is_extra(const smp__search *s, const smp__config *config)
{
    const smp_search_request *request = s->configs.request;
    return config->active != request->options.active_microbatches ||
           config->lag != request->options.weight_lag;
}

/* An extra one would cost more than it is likely to bring. */
static bool is_too_large(const smp__search *s, const smp__config *config)
{
    return s->n_least > 0 && is_extra(s, config) &&
           (int64_t)config->mapping->pipeline * config->chunks * config->microbatches * 2 >
               MAX_EXTRA_ACTIONS;
}

/* What an extra one may take (need) at most: what comes near the best it may come to be. In a small
 * graph the search for the step may get more out of any. */
static double extra_limit(const smp__search *s)
{
    if (s->n_least == 0 || s->configs.request->graph->n_op <= SMP__SMALL_OPS)
        return INFINITY;
    return (s->configs.quick ? SMP__CLOSE : SMP__NEAR_STEP) * s->least[0];
}

/* True if a configuration that takes (needs) at least this much can be neither within 1 % of the
 * best nor among those listed. */
static bool cannot_win(const smp__search *s, const smp__config *config, double least_time,
                       double least_peak)
{
    bool for_memory = s->configs.request->options.optimize == SMP_OPTIMIZE_MEMORY;
    double least = for_memory ? least_peak : least_time;
    smp__planner *planner = s->configs.planner;
    if (planner->trial && planner->trial->most > 0.0 && least >= planner->trial->most) {
        planner->left_out = true;
        return true;
    }
    if (is_extra(s, config) && least > extra_limit(s))
        return true;
    if (s->n_least < SMP_SEARCH_LISTED)
        return false;
    if (least > SMP__CLOSE * s->least[0] && least > s->least[SMP_SEARCH_LISTED - 1])
        return true;
    int before = 0;
    int64_t all = smp__all_microbatches(config->microbatches, config->mapping->replicas);
    for (int32_t i = 0; i < s->n && !for_memory; i++) {
        const smp_candidate *c = s->entry[i].candidate;
        before += c->fits && smp__all_microbatches(c->microbatches, c->replicas) < all &&
                  s->entry[i].time <= least_time;
    }
    return before >= SMP_SEARCH_LISTED;
}

static void note_least(smp__search *s, double value)
{
    int i = s->n_least < SMP_SEARCH_LISTED ? s->n_least++ : SMP_SEARCH_LISTED;
    if (i == SMP_SEARCH_LISTED && value >= s->least[--i])
        return;
    for (; i > 0 && s->least[i - 1] > value; i--)
        s->least[i] = s->least[i - 1];
    s->least[i] = value;
}

/* Takes the candidate over. */
static smp_status add_entry(smp__search *s, int32_t index, smp_candidate *candidate)
{
    smp_status status =
        smp_array_reserve(&s->entry, &s->capacity, sizeof *s->entry, (size_t)s->n + 1);
    if (status != SMP_OK) {
        smp_candidate_destroy(candidate);
        return status;
    }
    const smp_search_request *request = s->configs.request;
    double time = smp__search_time(request, candidate);
    bool for_memory = request->options.optimize == SMP_OPTIMIZE_MEMORY;
    s->entry[s->n++] = (smp__entry){.candidate = candidate, .time = time, .index = index};
    if (candidate->fits)
        note_least(s, for_memory ? (double)candidate->peak_bytes : time);
    return SMP_OK;
}

static bool far_off(const smp__search *s, const smp__config *config, int64_t room_bytes)
{
    double memory = (double)config->mapping->memory_all / config->mapping->pipeline;
    return (double)room_bytes <=
           -(smp__looks_at_all(s->configs.request) ? FAR_OF_SMALL : FAR) * memory;
}

/* A configuration cannot fit by far. If that of its arrangement and schedule with the fewest
 * micro-batches cannot either, none does: more micro-batches keep no less alive. Near misses prove
 * nothing: under other counts another partition is made, which may pack better. */
static smp_status note_miss(smp__search *s, int32_t index, int64_t room_bytes)
{
    smp__config *config = &s->configs.config[index];
    const bool far = far_off(s, config, room_bytes);
    config->standing = far ? SMP__FAR_MISS : SMP__NEAR_MISS;
    if (s->missed < 0 || room_bytes > s->missed_room) {
        s->missed = index;
        s->missed_room = room_bytes;
    }
    return far ? smp__search_try(s, config->smallest) : SMP_OK;
}

/* A step that takes longer is not listed; 0: all are. */
static double step_limit_us(const smp__search *s, const smp__config *config)
{
    const smp_search_request *request = s->configs.request;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY ||
        request->options.objective == SMP_OBJECTIVE_BOTTLENECK)
        return 0.0;
    double limit = is_extra(s, config) ? extra_limit(s) : INFINITY;
    if (limit == INFINITY && s->n_least == SMP_SEARCH_LISTED)
        limit = fmax(SMP__CLOSE * s->least[0], s->least[SMP_SEARCH_LISTED - 1]);
    return limit < INFINITY ? limit * config->microbatches * config->mapping->replicas *
                                  (double)s->configs.costs->microbatch_size
                            : 0.0;
}

/* Memory has forced neither the partition nor what recomputes. */
static bool is_unbound(const smp__search *s, const smp__config *config,
                       const smp_partition *partition)
{
    return smp__config_is_free(&s->configs, config, partition) &&
           (s->configs.request->options.recompute == SMP_RECOMPUTE_ALL ||
            smp__count_recomputing(partition) == 0);
}

/* What became of a configuration with one treatment of recomputation. */
typedef struct attempt {
    smp_candidate *candidate; /* NULL: pruned, or it cannot fit */
    bool pruned;
    bool free; /* pruned, in the partition that is best of all */
    int64_t room_bytes;
} attempt;

/* A near miss: the partition that needs the least memory may fit. The better one counts. */
static smp_status attempt_least_memory(smp__search *s, smp__config *config, attempt *out)
{
    smp_partition *partition = NULL;
    smp_candidate *candidate = NULL;
    int64_t room_bytes = INT64_MIN;
    smp_status status = smp__config_least_memory(&s->configs, config, &partition);
    if (status == SMP_OK)
        status = smp__config_fit(&s->configs, config, partition, 0.0, &candidate, &room_bytes);
    if (status == SMP_OK && room_bytes > out->room_bytes) {
        smp_candidate_destroy(out->candidate);
        *out = (attempt){.candidate = candidate, .room_bytes = room_bytes};
        return SMP_OK;
    }
    smp_candidate_destroy(candidate);
    if (status != SMP_OK) {
        smp_candidate_destroy(out->candidate);
        out->candidate = NULL;
    }
    return status;
}

static smp_status attempt_config(smp__search *s, smp__config *config, smp_recompute recompute,
                                 attempt *out)
{
    smp__configs *configs = &s->configs;
    smp_partition *partition = NULL;
    *out = (attempt){.room_bytes = INT64_MIN};
    config->recompute = recompute;
    if (configs->request->options.optimize == SMP_OPTIMIZE_MEMORY)
        SMP_TRY(smp__config_least_memory(configs, config, &partition));
    else
        SMP_TRY(smp__config_partition(configs, config, 0.0, &partition));
    double least_us;
    smp_status status = smp__config_least_us(configs, config, partition, &least_us);
    out->pruned = status == SMP_OK &&
                  cannot_win(s, config, least_us, smp__config_least_bytes(config, partition));
    if (status != SMP_OK || out->pruned) {
        out->free = is_unbound(s, config, partition) && partition->fits;
        smp_partition_destroy(partition);
        return status;
    }
    SMP_TRY(smp__config_fit(configs, config, partition, step_limit_us(s, config), &out->candidate,
                            &out->room_bytes));
    if (out->room_bytes >= 0 || far_off(s, config, out->room_bytes) ||
        configs->request->options.optimize == SMP_OPTIMIZE_MEMORY ||
        smp__budget_loses_patience(s->budget))
        return SMP_OK;
    return attempt_least_memory(s, config, out);
}

static attempt better_of(const smp_search_request *request, attempt a, attempt b)
{
    bool second = smp__candidate_improves(request, a.candidate, b.candidate) ||
                  (!a.candidate && b.room_bytes > a.room_bytes);
    attempt best = second ? b : a;
    smp_candidate_destroy(second ? a.candidate : b.candidate);
    best.pruned = a.pruned && b.pruned;
    best.free = a.free || b.free;
    return best;
}

/* Where recomputation is a choice, first without, as far as that can fit; then with it, unless the
 * partition that is best of all fits as it is. The better one counts. */
static smp_status attempt_both(smp__search *s, smp__config *config, attempt *out)
{
    const smp_search_request *request = s->configs.request;
    attempt without = {.pruned = true, .room_bytes = INT64_MIN}, with;
    smp_problem problem;
    SMP_TRY(smp__config_problem(&s->configs, config, &problem));
    if (request->options.recompute != SMP_RECOMPUTE_AUTO || !request->graph->training)
        return attempt_config(s, config, request->options.recompute, out);
    if (smp__config_may_keep_all(&s->configs, &problem))
        SMP_TRY(attempt_config(s, config, SMP_RECOMPUTE_NONE, &without));
    smp_status status = SMP_OK;
    config->recompute = SMP_RECOMPUTE_AUTO;
    if (request->options.optimize == SMP_OPTIMIZE_SPEED && without.candidate &&
        without.candidate->fits &&
        smp__config_is_free(&s->configs, config, without.candidate->partition)) {
        *out = without;
        return SMP_OK;
    }
    status = attempt_config(s, config, SMP_RECOMPUTE_AUTO, &with);
    if (status != SMP_OK) {
        smp_candidate_destroy(without.candidate);
        return status;
    }
    *out = better_of(request, without, with);
    return SMP_OK;
}

/* Where stashes may travel: first as if they could not, then with as much of them away as it takes,
 * unless the partition that is best of all fits as it is. The better one counts, and what later
 * comes in its place may travel if it does. */
static smp_status attempt_all(smp__search *s, smp__config *config, attempt *out)
{
    const smp_search_request *request = s->configs.request;
    attempt with;
    if (request->options.offload != SMP_OFFLOAD_AUTO || !smp__may_offload(request)) {
        SMP_TRY(attempt_both(s, config, out));
        const smp_status tuned = smp__config_tune_horizon(&s->configs, config, out->candidate);
        if (tuned != SMP_OK)
            smp_candidate_destroy(out->candidate);
        return tuned;
    }
    config->offload = false;
    SMP_TRY(attempt_both(s, config, out));
    const bool fits =
        out->candidate && out->candidate->fits && is_unbound(s, config, out->candidate->partition);
    if (request->options.optimize == SMP_OPTIMIZE_SPEED && (fits || (out->pruned && out->free)))
        return SMP_OK;
    if (out->candidate && out->candidate->fits && smp__budget_is_over(s->budget))
        return SMP_OK;
    config->offload = true;
    smp_status status = attempt_config(s, config, request->options.recompute, &with);
    if (status == SMP_OK) {
        status = smp__config_tune_horizon(&s->configs, config, with.candidate);
        if (status != SMP_OK)
            smp_candidate_destroy(with.candidate);
    }
    if (status != SMP_OK) {
        smp_candidate_destroy(out->candidate);
        return status;
    }
    *out = better_of(request, *out, with);
    config->offload = out->candidate && out->candidate->n_offload > 0;
    return SMP_OK;
}

/* Extra ones are listed for what they may win. */
static void drop_slow_extra(const smp__search *s, const smp__config *config, attempt *tried)
{
    double limit_us = step_limit_us(s, config);
    if (!is_extra(s, config) || !tried->candidate || limit_us <= 0.0 ||
        extra_limit(s) == INFINITY || tried->candidate->step_us <= limit_us)
        return;
    smp_candidate_destroy(tried->candidate);
    *tried = (attempt){.pruned = true};
}

/* Whether a configuration that keeps fewer micro-batches alive may do better than this one: it does
 * not fit, or not in the partition that is best of all, or something recomputes that need not; or
 * the search for the step, which looks at every partition of a small graph, would meet one that
 * does not fit: ranks are more than half full. */
static bool memory_binds(const smp__search *s, const smp__config *config, const attempt *tried)
{
    const smp_search_request *request = s->configs.request;
    const smp_candidate *candidate = tried->candidate;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return true;
    if (!candidate || !candidate->fits)
        return !tried->free;
    bool small = request->graph->n_op <= SMP__SMALL_OPS;
    if (small && 2 * candidate->room_bytes < smp__config_memory(config, candidate->worst_rank))
        return true;
    return candidate->n_offload > 0 || !is_unbound(s, config, candidate->partition);
}

/* The bound that this one comes to with any number of micro-batches; the first rank keeps the
 * most. */
static int bound_of(const smp__configs *configs, const smp__config *config, int active)
{
    smp_schedule_shape shape =
        smp__planner_shape(configs->planner, config->mapping->pipeline, config->chunks,
                           8 * config->mapping->pipeline, active);
    return (int)ceil(smp__live_microbatches(config->schedule, &shape, 0));
}

/* The highest bound that makes a difference, if it is above what the rule has of its own; 0:
 * none. */
static int most_bound(const smp__configs *configs, const smp__config *config)
{
    int most = bound_of(configs, config, INT32_MAX);
    return most > bound_of(configs, config, 0) ? most : 0;
}

/* The next below that of a configuration whose problem was made: down to what the rule has of its
 * own, or from there to 1; 0: none. */
static int next_bound(const smp__configs *configs, const smp__config *config)
{
    int n_stage = config->mapping->pipeline * config->chunks;
    int own = bound_of(configs, config, 0), now = config->active > 0 ? config->active : own;
    double most = 0.0;
    for (int s = 0; s < n_stage; s++)
        most = fmax(most, config->live[s]);
    int next = most < now ? (int)ceil(most) : now; /* of fewer micro-batches */
    next -= next <= EVERY_BOUND ? 1 : next / 4;
    return next <= own && now > own ? 0 : next;
}

/* Half as many micro-batches that wait for W as it has, or one where the least memory is asked for,
 * after one whole backwards; 0: there are no fewer, or the rule takes no such bound. */
static int next_lag(const smp__configs *configs, const smp__config *config)
{
    const smp_schedule_shape shape = smp__config_shape(configs, config);
    const int most = config->schedule->most_lag ? config->schedule->most_lag(&shape) : 0;
    const int now = config->lag > 0 && config->lag < most ? config->lag : most;
    if (most == 0 || config->lag == SMP_LAG_WHOLE)
        return 0;
    if (now == 1)
        return SMP_LAG_WHOLE;
    return configs->request->options.optimize == SMP_OPTIMIZE_MEMORY ? 1 : now / 2;
}

/* Whether fewer that wait for W are looked at beside a bound on live micro-batches: the request's,
 * in small graphs any, and where the least memory is asked for the lowest there is. */
static bool lags_matter(const smp_search_request *request, int active)
{
    if (request->options.weight_lag != 0)
        return false;
    if (request->options.optimize == SMP_OPTIMIZE_MEMORY)
        return active == 1 || request->options.active_microbatches > 0;
    return active == request->options.active_microbatches || request->graph->n_op <= SMP__SMALL_OPS;
}

static smp_status add_bounds(smp__search *s, int32_t index, bool binds)
{
    smp__configs *configs = &s->configs;
    const smp_search_request *request = configs->request;
    const smp__config *config = &configs->config[index];
    const int lag = next_lag(configs, config);
    if (lag != 0 && binds && lags_matter(request, config->active))
        SMP_TRY(smp__configs_add_bound(configs, index, config->active, lag));
    config = &configs->config[index];
    if (!config->schedule->tries_active || request->options.active_microbatches > 0 ||
        config->lag != request->options.weight_lag)
        return SMP_OK;
    if (config->smallest != index && configs->config[config->smallest].standing == SMP__FAR_MISS)
        return SMP_OK; /* not even the fewest micro-batches fit */
    bool own = config->active == 0, for_memory = request->options.optimize == SMP_OPTIMIZE_MEMORY;
    int most = own && !for_memory ? most_bound(configs, config) : 0;
    int next = binds && (own || !for_memory) ? next_bound(configs, config) : 0;
    if (most > 0)
        SMP_TRY(smp__configs_add_bound(configs, index, most, request->options.weight_lag));
    return next > 0 ? smp__configs_add_bound(configs, index, for_memory ? 1 : next,
                                             request->options.weight_lag)
                    : SMP_OK;
}

/* Whether memory binds the one that shards less for no more time, which is looked at before unless
 * it is unlikely to fit. */
static smp_status is_needed(smp__search *s, int32_t index, bool *needed)
{
    const int32_t wholer = s->configs.config[index].wholer;
    *needed = true;
    if (wholer < 0)
        return SMP_OK;
    if (!smp__config_is_doubtful(&s->configs.config[wholer]))
        SMP_TRY(smp__search_try(s, wholer));
    const smp__config *config = &s->configs.config[wholer];
    *needed = smp__config_is_open(config) || config->binds;
    return SMP_OK;
}

/* What can be said of a configuration before it has a partition; SMP__OPEN: nothing. */
static smp_status judge_unseen(smp__search *s, int32_t index, smp__standing *standing)
{
    smp__configs *configs = &s->configs;
    bool exists, needed;
    SMP_TRY(is_needed(s, index, &needed));
    smp__config *config = &configs->config[index];
    *standing = SMP__OPEN;
    if (!needed || is_too_large(s, config))
        *standing = SMP__UNNEEDED;
    else if (configs->config[config->smallest].standing == SMP__FAR_MISS)
        *standing = SMP__TOO_LARGE;
    else if (cannot_win(s, config, smp__config_least_us_of_any(configs, config),
                        smp__config_least_bytes_of_any(configs, config)))
        *standing = SMP__TOO_SLOW;
    if (*standing != SMP__OPEN)
        return SMP_OK;
    double overload = smp__config_overload(configs, config);
    if (overload > 1.0) {
        *standing = SMP__TOO_LARGE;
        if (overload < s->least_overload) {
            s->least_overload = overload;
            s->overloaded = index;
        }
        return SMP_OK;
    }
    SMP_TRY(smp__arrangement_solve(configs, config, &exists));
    *standing = exists ? SMP__OPEN : SMP__NO_PIPELINE;
    return SMP_OK;
}

/* Near the best what is open besides is chosen by its step. */
static smp_status tune(smp__search *s, smp__config *config, smp_candidate *candidate)
{
    const double close = s->configs.quick ? SMP__CLOSE : SMP__NEAR_STEP;
    const double least = s->n_least > 0 ? close * s->least[0] : INFINITY;
    const bool near =
        candidate && candidate->fits && smp__search_time(s->configs.request, candidate) <= least;
    return near ? smp__config_tune(&s->configs, config, candidate) : SMP_OK;
}

smp_status smp__search_try(smp__search *s, int32_t index)
{
    smp__configs *configs = &s->configs;
    attempt tried;
    smp__standing standing;
    const smp__standing before = configs->config[index].standing;
    if (!smp__config_is_open(&configs->config[index]))
        return SMP_OK;
    configs->config[index].standing = SMP__SIMULATED;
    SMP_TRY(judge_unseen(s, index, &standing));
    smp__config *config = &configs->config[index];
    if (standing != SMP__OPEN) {
        config->binds = standing == SMP__TOO_LARGE || standing == SMP__NO_PIPELINE;
        config->standing = standing;
        return SMP_OK;
    }
    s->budget->lost_patience = false;
    SMP_TRY(attempt_all(s, config, &tried));
    if (s->budget->lost_patience && !(tried.candidate && tried.candidate->fits)) {
        smp_candidate_destroy(tried.candidate);
        config->standing = before;
        return SMP_OK;
    }
    smp_status status = tune(s, config, tried.candidate);
    if (status != SMP_OK) {
        smp_candidate_destroy(tried.candidate);
        return status;
    }
    const bool binds = config->binds = memory_binds(s, config, &tried);
    drop_slow_extra(s, config, &tried);
    if (tried.candidate)
        SMP_TRY(add_entry(s, index, tried.candidate));
    else if (tried.pruned)
        config->standing = SMP__TOO_SLOW;
    else
        SMP_TRY(note_miss(s, index, tried.room_bytes));
    return add_bounds(s, index, binds);
}

/* By when a search that has found nothing gives up; 0: never. */
static double last_s(const smp__search *s)
{
    const double end_s = s->budget->end_s;
    const double effort_s = smp_effort_s(s->configs.request->options.effort);
    return end_s > 0.0 && effort_s > 0.0 ? end_s + OVERTIME * effort_s : 0.0;
}

/* Until when one configuration of a large search may look for what fits. Some take as long as a
 * hundred others: those wait until the others had their turn. */
static double patience_s(const smp__search *s, double share)
{
    if (!s->configs.quick)
        return 0.0;
    if (share >= 1.0)
        return s->n_least > 0 ? s->budget->part_s : last_s(s);
    return smp__budget_is_over(s->budget) ? 0.0 : smp__budget_share(s->budget, share);
}

/* Once the time is over only what is needed to have an answer is tried, and that not for ever: on
 * 1,018 devices the only pipelines may have hundreds of stages. */
static smp_status try_each(smp__search *s, double share)
{
    const smp__trial *trial = s->configs.planner->trial;
    const bool gives_up = trial && !trial->patient;
    for (int32_t i = 0; i < s->configs.n; i++) {
        if ((s->n_least > 0 || gives_up) && smp__budget_is_over(s->budget))
            break;
        if (s->n_least == 0 && smp_work_past(last_s(s)))
            break;
        s->budget->patience_s = patience_s(s, share);
        SMP_TRY(smp__search_try(s, i));
    }
    s->budget->patience_s = 0.0;
    return SMP_OK;
}

/* In a large search first those without shards and with the states on the device, of which there
 * are few, for a part of the time: what fits of them rules out others. Of shards none may take long
 * before all had a turn. */
static smp_status try_whole(smp__search *s)
{
    const smp__planner *planner = s->configs.planner;
    const bool many = planner->any_shard && !planner->few_shards;
    const double share = many ? WHOLE_SHARE : STATES_SHARE;
    const double end_s = smp__budget_share(s->budget, share);
    if (!s->configs.quick || end_s <= 0.0)
        return SMP_OK;
    for (int32_t i = 0; i < s->configs.n && !smp_work_past(end_s); i++) {
        s->budget->patience_s = patience_s(s, PATIENCE * share);
        const smp_sharding *sharding = &s->configs.config[i].sharding;
        const bool whole = !planner->any_shard || smp__sharding_is_whole(planner, *sharding);
        if (whole && (!planner->any_states || !sharding->offload_states))
            SMP_TRY(smp__search_try(s, i));
    }
    return many ? try_each(s, LITTLE_PATIENCE) : SMP_OK;
}

static smp_status try_all(smp__search *s)
{
    if (s->configs.planner->any_shard || s->configs.planner->any_states)
        SMP_TRY(try_whole(s));
    SMP_TRY(try_each(s, PATIENCE));
    SMP_TRY(try_each(s, 1.0));
    for (int32_t i = 0; i < s->configs.n; i++)
        s->timed_out |= smp__config_is_open(&s->configs.config[i]);
    return SMP_OK;
}

/* A configuration that missed joins those that were tried. */
static smp_status add_missed(smp__search *s, int32_t index)
{
    smp__configs *configs = &s->configs;
    smp__config *config = &configs->config[index];
    smp_partition *partition = NULL;
    smp_candidate *candidate = NULL;
    config->standing = SMP__SIMULATED;
    SMP_TRY(smp__config_partition(configs, config, 0.0, &partition));
    SMP_TRY(smp__config_evaluate(configs, config, partition, 0.0, &candidate));
    return add_entry(s, index, candidate);
}

/* In a small graph every partition is looked at (step_search.c): where what the solvers found just
 * misses, another one may fit and be the best. */
static smp_status add_near_misses(smp__search *s)
{
    const smp__configs *configs = &s->configs;
    if (!smp__looks_at_all(configs->request))
        return SMP_OK;
    for (int32_t i = 0; i < configs->n && !smp__budget_is_over(s->budget); i++) {
        const smp__config *config = &configs->config[i];
        if (config->standing != SMP__NEAR_MISS ||
            (s->n_least > 0 && smp__config_least_us_of_any(configs, config) >= s->least[0]))
            continue;
        SMP_TRY(add_missed(s, i));
    }
    return SMP_OK;
}

/* Nothing fits: what missed by least, simulated or not, stands for all. */
static smp_status try_nearest(smp__search *s)
{
    smp__configs *configs = &s->configs;
    int64_t room = INT64_MIN;
    bool exists = true;
    for (int32_t i = 0; i < s->n; i++)
        room = s->entry[i].candidate->room_bytes > room ? s->entry[i].candidate->room_bytes : room;
    int32_t index = s->missed >= 0 && s->missed_room > room ? s->missed : -1;
    if (s->n == 0 && index < 0)
        index = s->overloaded;
    if (index < 0)
        return s->n > 0 ? SMP_OK : smp_fail(configs->first_failure, "%s", configs->first_message);
    smp__config *config = &configs->config[index];
    SMP_TRY(smp__arrangement_solve(configs, config, &exists));
    if (!exists)
        return s->n > 0 ? SMP_OK : smp_fail(configs->first_failure, "%s", configs->first_message);
    return add_missed(s, index);
}

/* All that might fit cannot beat what a trial was told to. */
static bool no_other(const smp__search *s)
{
    return s->configs.planner->left_out && s->n == 0 && s->missed < 0;
}

static smp_status fail_late(const smp__search *s)
{
    int open = 0;
    for (int32_t i = 0; i < s->configs.n; i++)
        open += smp__config_is_open(&s->configs.config[i]);
    return smp_fail(SMP_ERR_NO_FIT,
                    "no plan was found in %d times the effort; %d of %d configurations were not "
                    "looked through: another number of devices may suit the batch, a higher "
                    "--effort looks longer",
                    OVERTIME, open, s->configs.n);
}

smp_status smp__search_run(smp__planner *planner, smp_search_result *out)
{
    smp__search s = {
        .least_overload = INFINITY, .overloaded = -1, .missed = -1, .budget = &planner->budget};
    smp__budget_open(s.budget, planner->request.deadline_s);
    SMP_TRY(smp__configs_list(planner, &s.configs));
    smp_status status = smp__search_order(&s.configs);
    smp__budget_begin(s.budget, SMP__PART_FIND, s.configs.quick);
    if (status == SMP_OK)
        status = try_all(&s);
    int32_t n_placed = s.configs.n;
    if (status == SMP_OK && !s.timed_out)
        status = smp__search_orders(&s);
    if (status == SMP_OK && s.configs.n > n_placed)
        status = try_all(&s);
    const int32_t n_ordered = s.configs.n;
    if (status == SMP_OK && !s.timed_out)
        status = smp__search_orders_jointly(&s, n_placed);
    if (status == SMP_OK && s.configs.n > n_ordered)
        status = try_all(&s);
    smp__budget_begin(s.budget, SMP__PART_IMPROVE, s.configs.quick);
    /* In a small graph another partition may fit; else a trial need not say why none does. */
    bool goes_on =
        !planner->trial || (!s.timed_out && planner->request.graph->n_op <= SMP__SMALL_OPS);
    if (status == SMP_OK && s.n_least == 0 && s.timed_out && goes_on && smp_work_past(last_s(&s)))
        status = fail_late(&s);
    else if (status == SMP_OK && s.n_least == 0)
        status =
            goes_on && !no_other(&s) ? try_nearest(&s) : smp_fail(SMP_ERR_NO_FIT, "nothing fits");
    if (status == SMP_OK)
        status = add_near_misses(&s);
    if (status == SMP_OK)
        status = smp__search_finish(&s, out);
    for (int32_t i = 0; i < s.n; i++) {
        smp_candidate_destroy(s.entry[i].candidate);
        smp_candidate_destroy(s.entry[i].balanced);
    }
    free(s.entry);
    smp__configs_free(&s.configs);
    return status;
}
