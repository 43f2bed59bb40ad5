/* The search over configurations: bounds first, then partitions, then simulation of those that can
 * still be among the best.
 *
 * What can still be. Let T be the least time per sample found so far among candidates that fit, and
 * T10 the tenth least. A configuration whose lower bound is above 1.01 T and above T10 is neither
 * within 1 % of the best nor one of the ten best. Nor is one whose bound is not below the times of
 * ten fitting candidates with fewer micro-batches: wherever it is within 1 % of the best, so are
 * they, and stand before it. When memory is minimised the bound is that of the peak. A configuration
 * whose weights, gradients and optimizer state exceed all memory cannot fit, nor can one whose
 * partition needs more on a rank than the rank has, whatever the order of its actions. All others
 * are simulated, so the ten that are listed are the ten best of all.
 *
 * The order in which configurations are looked at decides nothing but the effort, unless a time
 * limit strikes: then the best so far is taken. */
#include "partition/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "partition/configs.h"

#define CLOSE 1.01       /* within 1 % counts as equal */
#define FAR 0.1          /* of the memory of a rank */
#define SEARCH_SHARE 0.8 /* of the time, while there is more to try; the rest is for the proof */

void smp_candidate_destroy(smp_candidate *candidate)
{
    if (!candidate)
        return;
    free(candidate->device);
    free(candidate->stage_rank);
    free(candidate->rank_peak_bytes);
    smp_partition_destroy(candidate->partition);
    free(candidate);
}

void smp_search_result_destroy(smp_search_result *result)
{
    smp_candidate_destroy(result->best);
    for (int i = 0; i < result->n_tried; i++)
        smp_candidate_destroy(result->tried[i]);
    free(result->tried);
    *result = (smp_search_result){0};
}

static double samples_of(const smp_candidate *candidate)
{
    return (double)candidate->ddp * (double)candidate->microbatch_size;
}

/* Microseconds per sample, as the objective counts it. */
static double time_of(const smp_search_request *request, const smp_candidate *candidate)
{
    if (request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return candidate->bottleneck_us / samples_of(candidate);
    return candidate->step_us / candidate->microbatches / samples_of(candidate);
}

/* A candidate that was simulated, and what it is judged by. */
typedef struct entry {
    smp_candidate *candidate;
    double time; /* per sample */
    int32_t index;
} entry;

typedef struct search {
    smp__configs configs;
    smp_search_result counts; /* n_pruned_time and the like */
    entry *entry;
    int32_t n;
    double least[SMP_SEARCH_LISTED]; /* of what is minimised, over entries that fit; rising */
    int n_least;
    /* Configurations that cannot fit and were not simulated: by how much, and which one least. */
    double least_overload;
    int32_t overloaded, missed;
    int64_t missed_room;
} search;

static int64_t all_microbatches(int microbatches, int ddp)
{
    return (int64_t)microbatches * ddp;
}

/* True if a configuration that takes (needs) at least this much can be neither within 1 % of the
 * best nor among those listed. */
static bool cannot_win(const search *s, const smp__config *config, double least_time,
                       double least_peak)
{
    bool for_memory = s->configs.request->optimize == SMP_OPTIMIZE_MEMORY;
    double least = for_memory ? least_peak : least_time;
    if (s->n_least < SMP_SEARCH_LISTED)
        return false;
    if (least > CLOSE * s->least[0] && least > s->least[SMP_SEARCH_LISTED - 1])
        return true;
    int before = 0;
    int64_t all = all_microbatches(config->microbatches, config->ddp);
    for (int32_t i = 0; i < s->n && !for_memory; i++) {
        const smp_candidate *c = s->entry[i].candidate;
        before += c->fits && all_microbatches(c->microbatches, c->ddp) < all &&
                  s->entry[i].time <= least_time;
    }
    return before >= SMP_SEARCH_LISTED;
}

static void note_least(search *s, double value)
{
    int i = s->n_least < SMP_SEARCH_LISTED ? s->n_least++ : SMP_SEARCH_LISTED;
    if (i == SMP_SEARCH_LISTED && value >= s->least[--i])
        return;
    for (; i > 0 && s->least[i - 1] > value; i--)
        s->least[i] = s->least[i - 1];
    s->least[i] = value;
}

static void add_entry(search *s, int32_t index, smp_candidate *candidate)
{
    const smp_search_request *request = s->configs.request;
    double time = time_of(request, candidate);
    bool for_memory = request->optimize == SMP_OPTIMIZE_MEMORY;
    s->entry[s->n++] = (entry){candidate, time, index};
    if (candidate->fits)
        note_least(s, for_memory ? (double)candidate->peak_bytes : time);
}

static smp_status try_config(search *s, int32_t index);

/* A configuration cannot fit by far. If that of its family and schedule with the fewest micro-batches
 * cannot either, none does: more micro-batches keep no less alive. Near misses prove nothing: under
 * other counts another partition is made, which may pack better. */
static smp_status note_miss(search *s, int32_t index, int64_t room_bytes)
{
    s->counts.n_pruned_memory++;
    if (s->missed < 0 || room_bytes > s->missed_room) {
        s->missed = index;
        s->missed_room = room_bytes;
    }
    smp__config *config = &s->configs.config[index];
    double memory = (double)config->mapping->memory_all / config->pipeline;
    if ((double)room_bytes > -FAR * memory)
        return SMP_OK;
    config->misses = true;
    return try_config(s, config->smallest);
}

/* Whether a candidate takes the place of another one of the same configuration. NULL: none. */
static bool improves(const smp_search_request *request, const smp_candidate *from,
                     const smp_candidate *to)
{
    if (!to || !from || to->fits != from->fits)
        return to && (!from || to->fits);
    if (!to->fits)
        return to->room_bytes > from->room_bytes;
    if (request->optimize == SMP_OPTIMIZE_MEMORY)
        return to->peak_bytes < from->peak_bytes ||
               (to->peak_bytes == from->peak_bytes && to->step_us < from->step_us);
    if (request->objective == SMP_OBJECTIVE_BOTTLENECK)
        return to->bottleneck_us < from->bottleneck_us;
    return to->step_us < from->step_us;
}

/* A step that takes longer is not listed; 0: all are. */
static double step_limit_us(const search *s, const smp__config *config)
{
    const smp_search_request *request = s->configs.request;
    if (request->optimize == SMP_OPTIMIZE_MEMORY ||
        request->objective == SMP_OBJECTIVE_BOTTLENECK || s->n_least < SMP_SEARCH_LISTED)
        return 0.0;
    return fmax(CLOSE * s->least[0], s->least[SMP_SEARCH_LISTED - 1]) * config->microbatches *
           config->ddp * (double)s->configs.costs->microbatch_size;
}

/* What became of a configuration with one treatment of recomputation. */
typedef struct attempt {
    smp_candidate *candidate; /* NULL: none can fit, or none can win */
    bool pruned;
    int64_t room_bytes;
} attempt;

static smp_status attempt_config(search *s, smp__config *config, smp_recompute recompute,
                                 attempt *out)
{
    smp__configs *configs = &s->configs;
    smp_partition *partition = NULL;
    *out = (attempt){.room_bytes = INT64_MIN};
    config->recompute = recompute;
    if (configs->request->optimize == SMP_OPTIMIZE_MEMORY)
        SMP_TRY(smp__config_least_memory(configs, config, &partition));
    else
        SMP_TRY(smp__config_partition(configs, config, 0.0, &partition));
    out->pruned = cannot_win(s, config, smp__config_least_us(configs, config, partition),
                             smp__config_least_bytes(configs, config, partition));
    if (out->pruned) {
        smp_partition_destroy(partition);
        return SMP_OK;
    }
    SMP_TRY(smp__config_fit(configs, config, partition, step_limit_us(s, config), &out->candidate,
                            &out->room_bytes));
    out->pruned = !out->candidate && out->room_bytes >= 0;
    return SMP_OK;
}

/* Where recomputation is a choice, first without, as far as that can fit; then with it, unless the
 * partition that is best of all fits as it is. The better one counts. */
static smp_status attempt_both(search *s, smp__config *config, attempt *out)
{
    const smp_search_request *request = s->configs.request;
    attempt without = {.pruned = true, .room_bytes = INT64_MIN}, with;
    smp_problem problem;
    SMP_TRY(smp__config_problem(&s->configs, config, &problem));
    if (request->recompute != SMP_RECOMPUTE_AUTO || !request->graph->training)
        return attempt_config(s, config, request->recompute, out);
    if (smp__config_may_keep_all(&s->configs, &problem))
        SMP_TRY(attempt_config(s, config, SMP_RECOMPUTE_NONE, &without));
    smp_status status = SMP_OK;
    config->recompute = SMP_RECOMPUTE_AUTO;
    if (request->optimize == SMP_OPTIMIZE_SPEED && without.candidate && without.candidate->fits &&
        smp__config_is_free(&s->configs, config, without.candidate->partition)) {
        *out = without;
        return SMP_OK;
    }
    status = attempt_config(s, config, SMP_RECOMPUTE_AUTO, &with);
    if (status != SMP_OK) {
        smp_candidate_destroy(without.candidate);
        return status;
    }
    bool second = improves(request, without.candidate, with.candidate) ||
                  (!without.candidate && with.room_bytes > without.room_bytes);
    smp_candidate_destroy(second ? without.candidate : with.candidate);
    *out = second ? with : without;
    out->pruned = with.pruned && without.pruned;
    return SMP_OK;
}

static smp_status try_config(search *s, int32_t index)
{
    smp__configs *configs = &s->configs;
    smp__config *config = &configs->config[index];
    attempt tried;
    bool exists;
    if (config->done)
        return SMP_OK;
    config->done = true;
    if (configs->config[config->smallest].misses) {
        s->counts.n_pruned_memory++;
        return SMP_OK;
    }
    if (cannot_win(s, config, smp__config_least_us_of_any(configs, config),
                   smp__config_least_bytes_of_any(configs, config))) {
        s->counts.n_pruned_time++;
        return SMP_OK;
    }
    double overload = smp__config_overload(configs, config);
    if (overload > 1.0) {
        s->counts.n_pruned_memory++;
        if (overload < s->least_overload) {
            s->least_overload = overload;
            s->overloaded = index;
        }
        return SMP_OK;
    }
    SMP_TRY(smp__family_solve(configs, config, &exists));
    if (!exists) {
        s->counts.n_no_pipeline++;
        return SMP_OK;
    }
    SMP_TRY(attempt_both(s, config, &tried));
    if (tried.candidate)
        add_entry(s, index, tried.candidate);
    else if (tried.pruned)
        s->counts.n_pruned_time++;
    else
        return note_miss(s, index, tried.room_bytes);
    return SMP_OK;
}

/* Once the time is over only what is needed to have an answer is tried. */
static smp_status try_all(search *s)
{
    double limit_s = s->configs.request->deadline_s, now_s = smp_clock_s();
    if (limit_s > now_s)
        limit_s = now_s + SEARCH_SHARE * (limit_s - now_s);
    for (int32_t i = 0; i < s->configs.n; i++) {
        if (s->n_least > 0 && smp_clock_past(limit_s)) {
            for (; i < s->configs.n; i++)
                s->counts.n_skipped += !s->configs.config[i].done;
            s->counts.timed_out = s->counts.n_skipped > 0;
            break;
        }
        SMP_TRY(try_config(s, i));
    }
    return SMP_OK;
}

/* Nothing fits: what missed by least, simulated or not, stands for all. */
static smp_status try_nearest(search *s)
{
    smp__configs *configs = &s->configs;
    smp_partition *partition = NULL;
    smp_candidate *candidate = NULL;
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
    SMP_TRY(smp__family_solve(configs, config, &exists));
    if (!exists)
        return s->n > 0 ? SMP_OK : smp_fail(configs->first_failure, "%s", configs->first_message);
    SMP_TRY(smp__config_partition(configs, config, 0.0, &partition));
    SMP_TRY(smp__config_evaluate(configs, config, partition, &candidate));
    add_entry(s, index, candidate);
    return SMP_OK;
}

static int sign(double a, double b)
{
    return (a > b) - (a < b);
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
        order = sign(a->first, b->first);
    if (order == 0)
        order = sign(a->second, b->second);
    if (order == 0)
        order = sign(a->third, b->third);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

static rank_key key_of(const search *s, const entry *entry)
{
    const smp_candidate *c = entry->candidate;
    bool for_memory = s->configs.request->optimize == SMP_OPTIMIZE_MEMORY;
    double peak = (double)c->peak_bytes, m = (double)all_microbatches(c->microbatches, c->ddp);
    rank_key key = {2,
                    -(double)c->room_bytes,
                    m,
                    entry->time,
                    entry->index,
                    entry->candidate,
                    (int32_t)(entry - s->entry)};
    if (!c->fits)
        return key;
    bool close = (for_memory ? peak : entry->time) <= CLOSE * s->least[0];
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
static smp_status sort_entries(const search *s, rank_key **key)
{
    *key = calloc((size_t)s->n + 1, sizeof **key);
    if (!*key)
        return smp_fail_memory((size_t)s->n * sizeof **key);
    for (int32_t i = 0; i < s->n; i++)
        (*key)[i] = key_of(s, &s->entry[i]);
    qsort(*key, (size_t)s->n, sizeof **key, compare_keys);
    return SMP_OK;
}

/* The problem that the winner's partition is proven in: under the limits of its configuration if
 * the partition keeps them as it is, else without limits. Either holds for all that fit. */
static smp_status proof_problem(search *s, smp__config *config, const smp_candidate *best,
                                smp_problem *problem, smp_partition **partition)
{
    SMP_TRY(smp__config_problem(&s->configs, config, problem));
    problem->deadline_s = s->configs.request->deadline_s;
    SMP_TRY(smp_partition_evaluate(problem, best->partition->stage, partition));
    bool same = (*partition)->fits;
    for (int i = 0; i < problem->n_stage && same; i++)
        same = (*partition)->load[i].recompute == best->partition->load[i].recompute;
    if (!same) {
        smp_partition_destroy(*partition);
        *partition = NULL;
        problem->memory_limit = s->configs.unlimited;
        SMP_TRY(smp_partition_evaluate(problem, best->partition->stage, partition));
    }
    (*partition)->solver = best->partition->solver;
    (*partition)->bound = best->partition->bound;
    (*partition)->lower_bound_us =
        fmin(best->partition->lower_bound_us, (*partition)->bottleneck_us);
    return SMP_OK;
}

/* Fits a partition of the winner's configuration, which it takes over, and lets it take the winner's
 * place if it is better. */
static smp_status challenge(search *s, smp__config *config, smp_partition *partition,
                            smp_candidate **best)
{
    smp_candidate *trial = NULL;
    int64_t room;
    SMP_TRY(smp__config_fit(&s->configs, config, partition, 0.0, &trial, &room));
    if (improves(s->configs.request, *best, trial)) {
        smp_candidate *old = *best;
        *best = trial;
        trial = old;
    }
    smp_candidate_destroy(trial);
    return SMP_OK;
}

/* More effort for the winner alone: all partitioners, where the search used a quick one; and where
 * stages recompute, tighter limits, under which others may do so in their place. A partitioner that
 * was asked for has the last word. */
static smp_status polish(search *s, int32_t index, smp_candidate **best)
{
    static const double spare[] = {0.02, 0.05};
    const smp_search_request *request = s->configs.request;
    smp__config *config = &s->configs.config[index];
    smp_partition *partition = NULL;
    if (request->optimize == SMP_OPTIMIZE_MEMORY || request->partitioner)
        return SMP_OK;
    SMP_TRY(smp__config_best_partition(&s->configs, config, &partition));
    if (partition)
        SMP_TRY(challenge(s, config, partition, best));
    bool again = request->recompute == SMP_RECOMPUTE_AUTO && (*best)->n_recompute > 0;
    for (size_t i = 0; again && i < sizeof spare / sizeof spare[0]; i++) {
        if (smp_clock_past(request->deadline_s))
            break;
        SMP_TRY(smp__config_partition(&s->configs, config, spare[i], &partition));
        SMP_TRY(challenge(s, config, partition, best));
    }
    return SMP_OK;
}

/* Raises the winner's bound, and replaces it by what the proof finds where that is better. */
static smp_status prove(search *s, int32_t index, smp_candidate **best)
{
    smp__config *config = &s->configs.config[index];
    smp_problem problem;
    smp_partition *proven = NULL, *copy = NULL;
    SMP_TRY(proof_problem(s, config, *best, &problem, &proven));
    smp_status status = smp_partition_prove(&problem, &proven);
    size_t bytes = (size_t)problem.graph->n_op * sizeof *proven->stage;
    bool replace = !s->configs.request->partitioner; /* else what was asked for stays */
    if (status == SMP_OK && replace &&
        memcmp(proven->stage, (*best)->partition->stage, bytes) != 0) {
        status = smp__config_problem(&s->configs, config, &problem);
        if (status == SMP_OK)
            status = smp_partition_evaluate(&problem, proven->stage, &copy);
        if (status == SMP_OK) {
            copy->solver = proven->solver;
            status = challenge(s, config, copy, best);
        }
    }
    if (status == SMP_OK) {
        smp_partition *partition = (*best)->partition;
        partition->bound = proven->bound;
        partition->timed_out = partition->timed_out || proven->timed_out;
        partition->lower_bound_us = fmin(proven->lower_bound_us, partition->bottleneck_us);
        s->counts.timed_out = s->counts.timed_out || partition->timed_out;
    }
    smp_partition_destroy(proven);
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
    }
    return copy;
}

static void make_bare(smp_candidate *candidate)
{
    smp_candidate bare = *candidate;
    bare.partition = NULL;
    bare.device = bare.stage_rank = NULL;
    bare.rank_peak_bytes = NULL;
    free(candidate->device);
    free(candidate->stage_rank);
    free(candidate->rank_peak_bytes);
    smp_partition_destroy(candidate->partition);
    *candidate = bare;
}

/* Moves the entries into the result, best first. */
static smp_status hand_over(search *s, const rank_key *key, smp_search_result *out)
{
    smp_search_result result = s->counts;
    result.tried = calloc((size_t)s->n, sizeof *result.tried);
    smp_candidate *first = result.tried ? copy_bare(key[0].candidate) : NULL;
    if (!first) {
        free(result.tried);
        return smp_fail_memory((size_t)s->n * sizeof *result.tried);
    }
    result.best = key[0].candidate;
    result.tried[0] = first;
    for (int32_t i = 1; i < s->n; i++) {
        make_bare(key[i].candidate);
        result.tried[i] = key[i].candidate;
    }
    result.n_tried = s->n;
    s->n = 0;
    *out = result;
    return SMP_OK;
}

/* Sorts what was tried, proves the winner and moves all into the result, or says why nothing
 * fits. */
static smp_status finish(search *s, smp_search_result *out)
{
    rank_key *key = NULL;
    SMP_TRY(sort_entries(s, &key));
    smp_status status = SMP_OK;
    if (!key[0].candidate->fits)
        status =
            smp__search_no_fit(&s->configs, &s->configs.config[key[0].index], key[0].candidate);
    if (status == SMP_OK)
        status = polish(s, key[0].index, &s->entry[key[0].entry].candidate);
    if (status == SMP_OK)
        status = prove(s, key[0].index, &s->entry[key[0].entry].candidate);
    key[0].candidate = s->entry[key[0].entry].candidate;
    if (status == SMP_OK)
        status = hand_over(s, key, out);
    free(key);
    return status;
}

smp_status smp_search(const smp_search_request *request, const smp_costs *costs,
                      const smp_schedule_model *model, smp_search_result *out)
{
    search s = {.least_overload = INFINITY, .overloaded = -1, .missed = -1};
    SMP_TRY(smp__configs_list(request, costs, model, &s.configs));
    smp_status status = SMP_OK;
    s.counts.n_config = s.configs.n;
    s.entry = calloc((size_t)s.configs.n + 1, sizeof *s.entry);
    if (!s.entry)
        status = smp_fail_memory((size_t)s.configs.n * sizeof *s.entry);
    if (status == SMP_OK)
        status = try_all(&s);
    if (status == SMP_OK && s.n_least == 0)
        status = try_nearest(&s);
    if (status == SMP_OK)
        status = finish(&s, out);
    for (int32_t i = 0; i < s.n; i++)
        smp_candidate_destroy(s.entry[i].candidate);
    free(s.entry);
    smp__configs_free(&s.configs);
    return status;
}
