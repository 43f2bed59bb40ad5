/* The schedule interface, and the one list of schedules. A schedule orders the compute actions of
 * each rank; sends, receives, reductions and the optimizer are inserted by the lowering. */
#ifndef SMP_SCHEDULE_RULES_SCHEDULE_H
#define SMP_SCHEDULE_RULES_SCHEDULE_H

#include "schedule/rules/offload.h"
#include "schedule/rules/program.h"
#include "schedule/rules/shard.h"

enum { SMP_LAG_WHOLE = -1 /* backwards are whole: no I, no W */ };

typedef struct smp_schedule_shape {
    int pipeline; /* ranks */
    int chunks;   /* stages per rank */
    int microbatches;
    bool training; /* false: forwards only */
    int active;    /* most live micro-batches, for schedules that take a bound; 0: their default */
    int group;     /* micro-batches per group of chunked schedules; 0: pipeline */
    smp_sharding sharding;
    smp_offloading offloading;
    int lag; /* most micro-batches of a chunk whose I is done and W is not, that at hand too, for
                schedules that take this bound; 0: as many as `active` allows */
} smp_schedule_shape;

/* What others need to know of a schedule stands here: nobody asks for its name. */
typedef struct smp_schedule_kind {
    const char *name;  /* as plans are written */
    const char *alias; /* the name that others gave it, read wherever a name is; NULL: none */
    const char *summary;
    /* SMP_ERR_INPUT saying what can be; NULL: every shape with all numbers >= 1. */
    smp_status (*check)(const smp_schedule_shape *shape);
    /* NULL: stage mod pipeline, as with one chunk for every schedule. */
    int (*stage_rank)(const smp_schedule_shape *shape, int stage);
    /* Appends the rank's compute actions. For each chunk, F actions and B (or W) actions stand in
     * micro-batch order: that is what makes training bit-identical and messages first in, first
     * out. */
    smp_status (*order)(const smp_schedule_shape *shape, int rank, smp_program *program);
    /* Peak number of live (micro-batch, chunk) pairs on a rank, from F to B (or W), as a
     * formula. */
    int (*live)(const smp_schedule_shape *shape, int rank);
    bool no_training;  /* it has no backward */
    bool no_inference; /* it is nothing without one */
    bool takes_active; /* keeps to any shape.active */
    bool tries_active; /* the search looks for the best bound where memory binds */
    /* The least shape.lag that changes nothing; 0: none changes anything. NULL: it takes no such
     * bound. */
    int (*most_lag)(const smp_schedule_shape *shape);
    bool any_placement; /* plans of this name may place their stages at will, `chunks` on a rank */
    /* "auto" without costs stands for the rule, of those that can run a shape with its stages in
     * turn, whose order is best if all stages cost the same: the highest of these numbers; 0:
     * never. */
    int even_costs;
} smp_schedule_kind;

/* The rules, which know orders without knowing costs, as help lists them and the search tries them:
 * X(id) stands for smp__schedule_<id>, in a file of its own. */
#define SMP_SCHEDULE_LIST(X)                                                                       \
    X(simple)                                                                                      \
    X(interleaved)                                                                                 \
    X(zero_bubble)                                                                                 \
    X(breadth_first)                                                                               \
    X(forward)

#define SMP_SCHEDULE_DECLARE(id) extern const smp_schedule_kind smp__schedule_##id;
SMP_SCHEDULE_LIST(SMP_SCHEDULE_DECLARE)
#undef SMP_SCHEDULE_DECLARE
extern const smp_schedule_kind smp__schedule_auto; /* the one that is no rule: found from costs */

/* The rules, NULL-terminated. */
const smp_schedule_kind *const *smp_schedules(void);
/* By name or alias, the rules and "searched" ("auto"); NULL if unknown. */
const smp_schedule_kind *smp_schedule_find(const char *name);
/* What a plan says for a name or alias: kind->name; `name` itself if unknown. */
const char *smp_schedule_name(const char *name);

/* Appends the names of the rules, with their aliases: "simple (gpipe), zero-bubble, or auto". */
void smp_schedule_put_names(smp_text *text);
/* SMP_ERR_INPUT for an unknown name of an option or a key, with all names and the nearest. */
smp_status smp_schedule_fail_name(const char *what, const char *name);

/* Can it run? SMP_ERR_INPUT saying what can. */
smp_status smp_schedule_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape);
/* Does it keep to shape->active? Rules that take no bound have to by themselves. */
smp_status smp_schedule_check_active(const smp_schedule_kind *kind,
                                     const smp_schedule_shape *shape);
/* The pipeline rank that it puts a stage on. */
int smp_schedule_stage_rank(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                            int stage);

#endif
