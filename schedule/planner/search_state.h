/* A search while it runs; shared by search.c, search_finish.c and step_search.c. */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_STATE_H
#define SMP_SCHEDULE_PLANNER_SEARCH_STATE_H

#include "schedule/planner/configs.h"
#include "schedule/rules/path_bound.h"
#include "schedule/rules/segment.h"

/* Of graphs with so many ops every configuration that may still win is searched. */
enum { SMP__SMALL_OPS = 64 };

#define SMP__CLOSE 1.01 /* within 1 % counts as equal */
/* Times the best: what more effort may turn into the best, as a step also depends on which of the
 * partitions with one bottleneck it is. */
#define SMP__NEAR_STEP 1.2

/* Parts of a search. Each ends by its own share of the time, so that the next has some: what finds
 * configurations, what improves the best, what proves bounds; the rest makes the plan. */
typedef enum smp__part { SMP__PART_FIND, SMP__PART_IMPROVE, SMP__PART_PROVE } smp__part;

/* A candidate that was simulated, and what it is judged by. */
typedef struct smp__entry {
    smp_candidate *candidate;
    smp_candidate *balanced; /* what the search for the step replaced, or NULL */
    double time;             /* per sample */
    int32_t index;
} smp__entry;

typedef struct smp__search {
    smp__configs configs;
    double begin_s, end_s; /* of the time there is for all; end_s 0: no limit */
    bool timed_out;
    smp__entry *entry;
    int32_t n;
    size_t capacity;
    double least[SMP_SEARCH_LISTED]; /* of what is minimised, over entries that fit; rising */
    int n_least;
    /* Configurations that cannot fit and were not simulated: by how much, and which one least. */
    double least_overload;
    int32_t overloaded, missed;
    int64_t missed_room;
} smp__search;

/* From here on the request's deadline is the end of this part. */
void smp__search_begin_part(smp__search *search, smp__part part);

/* Micro-batches of all replicas. */
static inline int64_t smp__all_microbatches(int microbatches, int ddp)
{
    return (int64_t)microbatches * ddp;
}

/* Is it the step that decides between partitions? */
static inline bool smp__is_for_step(const smp_search_request *request)
{
    return request->objective == SMP_OBJECTIVE_STEP && request->optimize == SMP_OPTIMIZE_SPEED &&
           !request->partitioner;
}

/* Is it small enough to look at every partition that may have the shortest step, or fit? */
static inline bool smp__looks_at_all(const smp_search_request *request)
{
    return smp__is_for_step(request) && request->graph->n_op <= SMP__SMALL_OPS;
}

/* A candidate's smp_sample_us. */
double smp__search_time(const smp_search_request *request, const smp_candidate *candidate);

/* Whether a candidate takes the place of another one of the same configuration. NULL: none. */
bool smp__candidate_improves(const smp_search_request *request, const smp_candidate *from,
                             const smp_candidate *to);

/* A partition with a shorter step for a configuration (schedule/planner/step_search.c).
 * Replaces *best, a candidate of the configuration, where another partition fits and its simulated
 * step is shorter, or where *best does not fit and the step is below limit_us (found in small
 * problems alone). Of small problems every partition is looked at that may take less than close_us,
 * of larger ones the neighbours of the best.
 * Takes from *work, which bounds what is simulated, in ops and actions; so does the request's
 * deadline. *replaced: the candidate that was given, the caller's; NULL if it is still the best.
 * Both are set on failure too. */
smp_status smp__step_search(smp__configs *configs, smp__config *config, double limit_us,
                            double close_us, double *work, smp_candidate **best,
                            smp_candidate **replaced);

/* What a step takes at least, whatever the partition (schedule/planner/step_bound.c).
 * Of the candidate's devices, micro-batches and chunks: *rule_us with the order of its schedule,
 * *any_us with any order of actions. Both hold for every partition that respects pins and what is
 * kept together. Messages count where they occupy ranks, and in the first what a path waits for at
 * least; recomputation that is a choice counts in neither. step_us: of a plan; no more is tried
 * than to come near it. prices: memory counts
 * as well, and what has to recompute for it: then both hold of partitions that fit. *found: stage,
 * [n_op] or NULL, is a partition that may take less, by all that the bound counts; it need not
 * respect pins and what is kept together. */
smp_status smp__step_bound(const smp__configs *configs, const smp__config *config, double step_us,
                           bool prices, double *rule_us, double *any_us, int32_t *stage,
                           bool *found);

/* The same op by op: on any rank a step takes at least what one of its ops has as chain_us, and so
 * many times what all of its ops take. */
typedef struct smp__step_floor {
    const double *chain_us;    /* [n_op] */
    const smp__op_times *op;   /* [n_op] on device 0 */
    const smp__segment *times; /* [pipeline] of those, with the slowdown of the rank */
} smp__step_floor;

/* Of the configuration's rule; arrays live in the arena. O(pipeline (ops + micro-batches)). */
smp_status smp__step_floor_make(const smp__configs *configs, const smp__config *config,
                                smp_arena *arena, smp__step_floor *out);

/* What became of each degree of sharding (schedule/planner/config_shards.c). */
void smp__search_list_shards(const smp__search *search, smp_search_result *out);

/* Once a configuration was looked at: the next that differ in bounds on live micro-batches, or on
 * those that wait for W. `binds`: memory may make it slower than it might be
 * (schedule/planner/search_more.c). */
smp_status smp__search_add_bounds(smp__search *search, int32_t index, bool binds);
/* Other orders of devices than the two placements, for each pipeline
 * (schedule/planner/search_more.c). */
smp_status smp__search_orders(smp__search *search);
/* Looks at one configuration, once. */
smp_status smp__search_try(smp__search *search, int32_t index);

/* Sorts the entries, improves and proves the winner and moves all into the result; or says why
 * nothing fits. */
smp_status smp__search_finish(smp__search *search, smp_search_result *out);

#endif
