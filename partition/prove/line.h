/* Pipelines whose transfers do not matter, on equal devices: assembly lines. Tasks with times in
 * whole quanta and an order between them are shared out over K stations; the cycle time, the
 * slowest station, is to be least (the simple assembly line balancing problem, SALBP-2). */
#ifndef SMP_PARTITION_PROVE_LINE_H
#define SMP_PARTITION_PROVE_LINE_H

#include "partition/prove/exact.h"

/* Tasks are numbered by falling time; those that take no time are left out, what they order is
 * kept. */
typedef struct smp__line {
    int32_t n;
    int32_t words;     /* of a set of tasks */
    int64_t *time;     /* [n] quanta, > 0 */
    int64_t total;     /* of all tasks */
    bool unordered;    /* no task must precede another */
    uint64_t *before;  /* [n * words] all that must precede a task */
    uint64_t *behind;  /* [n * words] all that must follow it */
    uint64_t *next;    /* [n * words] those that follow it directly */
    uint64_t *beating; /* [n * words] tasks that may take its place: see line_search.c */
} smp__line;

/* before and after set; the rest follows from them. The mirrored line has them exchanged. */
smp_status smp__line_complete(smp__line *line, smp_arena *arena);

static inline const uint64_t *smp__line_set(const smp__line *line, const uint64_t *sets, int32_t i)
{
    return sets + (size_t)i * (size_t)line->words;
}

enum { SMP__LINE_DUALS = 6 };

/* A line of K stations and a cycle time c to keep, and what that implies. A dual is another
 * measure of the tasks by which no station holds more than its room either. */
typedef struct smp__line_target {
    const smp__line *line;
    int32_t n_station;
    int64_t cycle;
    int32_t *last;    /* [n] latest station of a task */
    uint64_t *due;    /* [n_station * words] tasks that lie in this station or before it */
    int n_dual;       /* those that bind most */
    int64_t *dual;    /* [SMP__LINE_DUALS * n] */
    int64_t *scratch; /* [2 * n] */
    int32_t *order;   /* [n] */
    int64_t room[SMP__LINE_DUALS], slack[SMP__LINE_DUALS]; /* of a station; of all together */
} smp__line_target;

smp_status smp__line_target_init(smp__line_target *target, const smp__line *line, int32_t n_station,
                                 smp_arena *arena);
/* False: no assignment has this cycle time. */
bool smp__line_target_set(smp__line_target *target, int64_t cycle);

typedef enum smp__line_answer {
    SMP__LINE_NONE, /* no assignment keeps the cycle time */
    SMP__LINE_FOUND,
    SMP__LINE_LIMIT /* gave up */
} smp__line_answer;

/* What one search may do. */
typedef struct smp__line_effort {
    int64_t work;      /* steps of loads, and the like; some 5 ns each */
    int32_t max_loads; /* per state; INT32_MAX: all, without which nothing is refuted */
    int way;           /* 0, 1, ...: what is tried first */
} smp__line_effort;

typedef struct smp__line_search smp__line_search;

smp_status smp__line_search_create(const smp__line *line, int32_t n_station, size_t max_bytes,
                                   double deadline_s, smp__line_search **out);
void smp__line_search_destroy(smp__line_search *search); /* accepts NULL */

/* Looks for an assignment with all stations at most at the cycle time; fills station[n]. *work:
 * what it used is taken off. */
smp_status smp__line_search_run(smp__line_search *search, int64_t cycle,
                                const smp__line_effort *effort, int64_t *work, int32_t *station,
                                smp__line_answer *answer);
bool smp__line_search_is_late(const smp__line_search *search);

/* The least and the best known cycle time of a window, searched from both sides. */
typedef struct smp__line_result {
    double lower_us; /* no stage's compute is below in every pipeline, whatever else it holds */
    double best_us;  /* of what fills unit_stage, faster than upper_us; INFINITY: nothing is */
    bool late;
} smp__line_result;

#define SMP__LINE_NEGLIGIBLE 1e-6 /* transfers of all tensors, to the fair share of a stage */

/* Whether the search is worth it: equal devices, no pins, few enough units, memory that does not
 * bind, and transfers that do not matter. */
bool smp__line_applies(const smp__window *window);

smp_status smp__line_prove(const smp__window *window, double lower_us, double upper_us,
                           const smp__exact_limits *limits, int64_t *work, int32_t *unit_stage,
                           smp__line_result *result);

#endif
