/* A search while it runs; shared by search.c and search_finish.c. */
#ifndef SMP_SCHEDULE_PLANNER_SEARCH_STATE_H
#define SMP_SCHEDULE_PLANNER_SEARCH_STATE_H

#include "schedule/planner/step_search.h"

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
    double begin_s, end_s;    /* of the time there is for all; end_s 0: no limit */
    smp_search_result counts; /* n_pruned_time and the like */
    smp__entry *entry;
    int32_t n;
    size_t capacity;
    int32_t n_left_out;              /* bounds on live micro-batches that no one would miss */
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

/* Sorts the entries, improves and proves the winner and moves all into the result; or says why
 * nothing fits. */
smp_status smp__search_finish(smp__search *search, smp_search_result *out);

#endif
