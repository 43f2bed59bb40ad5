/* A search while it runs; shared by the files of this room. */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_SEARCH_STATE_H
#define SMP_SCHEDULE_PLANNER_SEARCH_SEARCH_STATE_H

#include <math.h>

#include "schedule/planner/bound/bounds.h"
#include "schedule/planner/search/search.h"

/* In graphs with so many ops every configuration that may still win is searched. */
enum { SMP__SMALL_OPS = 64 };

#define SMP__CLOSE 1.01 /* within 1 % counts as equal */
/* Times the best: what more effort may turn into the best, as a step also depends on which of the
 * partitions with one bottleneck it is. */
#define SMP__NEAR_STEP 1.2

/* A candidate that was simulated, and what it is judged by. */
typedef struct smp__entry {
    smp_candidate *candidate;
    smp_candidate *balanced; /* what the search for the step replaced, or NULL */
    double time;             /* per sample */
    int32_t index;
} smp__entry;

typedef struct smp__search {
    smp__configs configs;
    smp__budget *budget; /* the planner's */
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

/* Micro-batches of all replicas. */
static inline int64_t smp__all_microbatches(int microbatches, double replicas)
{
    return llround(microbatches * replicas);
}

/* Is it the step that decides between partitions? */
static inline bool smp__is_for_step(const smp_search_request *request)
{
    return request->options.objective == SMP_OBJECTIVE_STEP &&
           request->options.optimize == SMP_OPTIMIZE_SPEED && !request->options.partitioner;
}

/* Is it small enough to look at every partition that may have the shortest step, or fit? */
static inline bool smp__looks_at_all(const smp_search_request *request)
{
    return smp__is_for_step(request) && request->graph->n_op <= SMP__SMALL_OPS;
}

/* Whether a candidate takes the place of another one of the same configuration. NULL: none. */
bool smp__candidate_improves(const smp_search_request *request, const smp_candidate *from,
                             const smp_candidate *to);

/* A partition with a shorter step for a configuration (schedule/planner/search/step_search.c).
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

/* Other orders of devices than the two placements, for each pipeline. */
smp_status smp__search_orders(smp__search *search);
/* Of small graphs on few devices: all else of the best orders that it tried, from configuration
 * `first` on. */
smp_status smp__search_orders_jointly(smp__search *search, int32_t first);

/* Sorts the configurations, most promising first, and fills in what they are sorted by; of those
 * from `first` on that alone (search_order.c). */
smp_status smp__search_order(smp__configs *configs);
smp_status smp__search_estimate(smp__configs *configs, int32_t first);
/* Looks at one configuration, once. */
smp_status smp__search_try(smp__search *search, int32_t index);

/* What became of each degree of sharding. */
void smp__search_list_shards(const smp__search *search, smp_search_result *out);
/* The SMP_ERR_NO_FIT message for the candidate that missed by least. */
smp_status smp__search_no_fit(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest);
/* Sorts the entries, improves and proves the winner and moves all into the result; or says why
 * nothing fits. */
smp_status smp__search_finish(smp__search *search, smp_search_result *out);

#endif
