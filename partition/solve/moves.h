/* A pipeline that changes one unit at a time, with its loads kept up to date. */
#ifndef SMP_PARTITION_SOLVE_MOVES_H
#define SMP_PARTITION_SOLVE_MOVES_H

#include "partition/problem/evaluate.h"

/* Readers of a net in one stage. */
typedef struct smp__readers {
    int32_t stage;
    int32_t count; /* units, > 0 */
} smp__readers;

/* Sums over a stage's units, on device 0. */
typedef struct smp__stage_sum {
    double compute_us, forward_us;
    smp__holdings held; /* zero unless units->memory_binds */
    int32_t n_unit;
} smp__stage_sum;

/* What a pipeline in progress is worth: compared in this order, `skew` after `bottleneck_us` only
 * when moves are chosen. */
typedef struct smp__worth {
    int n_empty;   /* stages without a unit: not a pipeline yet */
    double excess; /* as smp__score */
    double bottleneck_us;
    double skew; /* sum of the cubes of rank loads over the scale, each in its slowest replica */
    double total_us;
    int worst_rank, worst_stage; /* slowest; fullest if excess > 0 */
} smp__worth;

typedef enum smp__direction { SMP__LATER, SMP__EARLIER, SMP__N_DIRECTION } smp__direction;

/* Between calls sums, loads and lists are those of `stage`, but for rounding, which smp__moves_load
 * takes out. Stages may be empty. */
typedef struct smp__moves {
    const smp_problem *problem;
    const smp__units *units;
    int n_stage, n_replica;
    double scale_us; /* of skew */
    int32_t *stage;  /* [units->n] */
    int64_t work;    /* nets and stages touched */

    double *slowdown;      /* [n_stage * n_replica] */
    int32_t *node;         /* [n_replica * n_stage] where the stage's device is */
    smp__stage_sum *sum;   /* [n_stage] */
    double *transfer_us;   /* [n_stage * n_replica] */
    double *load_us;       /* [n_stage * n_replica] */
    double *excess;        /* [n_stage] memory / limit - 1, at least 0 */
    double *rank_us;       /* [pipeline * n_replica] */
    int32_t *holders;      /* [n_share * n_stage] units that hold a shared weight */
    int *sending;          /* [n_replica] scratch */
    int64_t *reader_begin; /* [n_net + 1] */
    smp__readers *reader;  /* room for every stage that a net can be read in */
    int32_t *n_reader;     /* [n_net] stages that read it now */

    /* Workspaces in classes, so that the largest of a stage is known after a removal. */
    int32_t n_class;
    double *class_bytes; /* [n_class] rising */
    int32_t *class_of;   /* [units->n] */
    int32_t *in_class;   /* [n_stage * n_class] units */

    /* Units that nothing of their stage reads from may go later, units that read nothing of their
     * stage earlier: two lists per stage. -1: end. */
    int32_t *bound[SMP__N_DIRECTION]; /* [units->n] connections that hold a unit back */
    int32_t *next[SMP__N_DIRECTION], *previous[SMP__N_DIRECTION];
    int32_t *head[SMP__N_DIRECTION]; /* [n_stage] */

    bool *touched;       /* [n_stage] */
    int32_t *touch_list; /* [n_stage] */
    int n_touch;
} smp__moves;

/* SMP_ERR_NO_MEMORY also where the tables would be unreasonably large. */
smp_status smp__moves_init(smp__moves *moves, const smp_problem *problem, const smp__units *units,
                           smp_arena *arena);
/* Takes over a legal assignment. O(n + nets). */
void smp__moves_load(smp__moves *moves, const int32_t *stage);

/* Stages that a unit may move to while all others stay: lo..hi, with its own. O(degree). */
void smp__moves_range(const smp__moves *moves, int32_t unit, int32_t *lo, int32_t *hi);
/* O(degree), times the stages that read a net. `to` within the range. */
void smp__moves_apply(smp__moves *moves, int32_t unit, int32_t to);
/* O(n_stage). */
smp__worth smp__moves_worth(smp__moves *moves);

#endif
