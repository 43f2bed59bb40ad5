/* Judging a plan, whole or a sketch: all that is illegal in it, what it costs under the planner's
 * own objective and memory model, and how far it is from the best plan.
 *
 * What a sketch leaves out is filled in: micro-batches 4 * pipeline, micro-batch size that of the
 * profile or 1, schedule interleaved, ddp 1, ranks and programs as the schedule makes them. */
#ifndef SMP_SCHEDULE_CHECK_CHECK_H
#define SMP_SCHEDULE_CHECK_CHECK_H

#include "schedule/planner/planner.h"
#include "schedule/plan/sketch.h"

typedef enum smp_finding_level {
    SMP_FINDING_ILLEGAL,
    SMP_FINDING_UNFIT, /* legal, but more memory than there is */
    SMP_FINDING_NOTE
} smp_finding_level;

typedef struct smp_finding {
    smp_finding_level level;
    const char *kind; /* "unknown-op", "order", ...; static text */
    const char *message;
    smp_where where; /* in the plan; file NULL: nowhere in particular */
} smp_finding;

typedef struct smp_findings {
    smp_finding *item;
    int32_t n;
    size_t capacity;
    int32_t n_level[3]; /* by level */
    smp_arena *arena;   /* of messages */
} smp_findings;

/* A plan of the planner's, to compare with. The best of all may be that of the same numbers,
 * too. */
typedef struct smp_check_best {
    smp_plan *plan;    /* NULL: there is none, */
    char reason[2048]; /* for this reason */
    bool timed_out;    /* its search was cut short */
    double time_us;    /* per sample, as the objective counts it */
    double ratio;      /* of the checked plan's time_us to this; below 1: that does not fit */
} smp_check_best;

/* What of a plan may fall short of what the planner would choose. */
typedef enum smp_check_part_kind {
    SMP_PART_PARTITION, /* which ops make up a stage */
    SMP_PART_ORDER,     /* of the actions on each rank */
    SMP_PART_RECOMPUTE,
    SMP_PART_PLACEMENT, /* which device has which stages */
    SMP_PART_TOGETHER,  /* what only several of these save at once */
    SMP_N_PART
} smp_check_part_kind;

/* Parts are replaced one after the other, each time the one that saves most with those before it
 * replaced; so what they save adds up. What is left to the best plan of the same numbers, they save
 * together. */
typedef struct smp_check_part {
    smp_check_part_kind kind;
    double saved_us; /* of what the objective counts: the step, or the bottleneck; 0: as good */
    double share;    /* of the plan's */
} smp_check_part;

const char *smp_check_part_name(smp_check_part_kind kind); /* "partition" */

typedef struct smp_check {
    smp_findings findings;
    bool legal, fits;         /* fits is false where it is not known */
    smp_plan *plan;           /* filled in and predicted; NULL if the stages are no partition */
    smp_partition *partition; /* with it */
    double time_us;           /* per sample, as the objective counts it */
    const char *bound;        /* what proves plan->predicted.lower_bound_us */
    smp_check_best same;      /* best of the same ranks, chunks, micro-batches and schedule */
    smp_check_best any;       /* best of all on as many devices */
    char cost_source[160];
    smp_check_part part[SMP_N_PART]; /* largest first; of a plan that is legal and fits */
    int n_part;                      /* SMP_N_PART, or 0: not known */
    bool parts_timed_out;            /* a part was cut short, or not tried */
} smp_check;

/* request: graph and splitting (as the sketch says: not looked at here), cluster (of groups, if the
 * graph is split; NULL: the sketch's), profile, limits, objective; stages, ddp, chunks,
 * microbatches, microbatch_size and schedule replace what the sketch says where they are not 0;
 * placement where use_placement. Of the time up to the deadline, the search for the best of all
 * gets 40 %, that for the best of the same numbers, where that is another one, what is left of 80
 * %, and the parts the rest. Findings are no errors. SMP_ERR_INPUT: no cluster, numbers that cannot
 * be. */
smp_status smp_check_sketch(const smp_search_request *request, bool use_placement,
                            const smp_sketch *sketch, smp_check *out);
void smp_check_free(smp_check *check); /* the contents */

/* Adds a finding: SMP__FIND(findings, ILLEGAL, "kind", where, format, ...). message: in the arena
 * of the findings; NULL: out of memory. */
#define SMP__FIND(findings, level, kind, where, ...)                                               \
    smp__find(findings, SMP_FINDING_##level, kind, where,                                          \
              smp_arena_printf((findings)->arena, __VA_ARGS__))
smp_status smp__find(smp_findings *findings, smp_finding_level level, const char *kind,
                     smp_where where, const char *message);

/* Stages of ops by a sketch of `n_stage` stages, -1 where it names none; findings for all that is
 * wrong with them: unknown, missing and repeated ops, empty stages, order, cycles, pins, groups. */
smp_status smp__check_stages(const smp_graph *graph, const smp_sketch *sketch, int n_stage,
                             int32_t *stage, smp_findings *findings);

#endif
