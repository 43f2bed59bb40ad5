/* A sketch: a plan of which any part but the stages may be missing, as people write it by hand.
 *
 *   smp: 1
 *   stages:
 *     - {ops: [wte, wpe, "h0.*"]}
 *     - {ops: ["h1.*", ln_f..loss]}
 *
 * Every plan is a sketch. Ops may be named by patterns (schedule/plan/op_pattern.h). smp-partition
 * check scores sketches, --fix plans around them; smp-run takes whole plans only
 * (smp_plan_read). */
#ifndef SMP_SCHEDULE_PLAN_SKETCH_H
#define SMP_SCHEDULE_PLAN_SKETCH_H

#include "schedule/plan/plan.h"

typedef struct smp_sketch_entry {
    const char *text; /* name, or in a sketch a pattern */
    smp_where where;
} smp_sketch_entry;

/* Which of its ops a stage means: `recompute`, `offload`. */
enum { SMP_SKETCH_OPS = 2 };
typedef struct smp_sketch_mask {
    int what; /* 0, 1: nothing or everything; -1: not given; SMP_SKETCH_OPS: */
    int32_t n;
    const smp_sketch_entry *entry; /* [n] those that it names */
} smp_sketch_mask;

typedef struct smp_sketch_stage {
    int stage;  /* as written, else its place in the list */
    int rank;   /* -1: not given */
    int tensor; /* devices that compute its ops together; 0: not given */
    int32_t n_entry;
    const smp_sketch_entry *entry;
    smp_sketch_mask recompute, offload;
    double forward_us, backward_us; /* these nine: of a whole plan only */
    double forward_exchange_us, backward_exchange_us;
    double recompute_us;      /* where it names ops; -1: not given */
    double backward_input_us; /* -1: not given */
    int64_t weight_bytes, stash_bytes, offload_bytes;
    smp_where where;
} smp_sketch_stage;

/* Numbers are 0, and pointers NULL, where the file says nothing. */
typedef struct smp_sketch {
    const char *model_path, *model_name;
    smp_settings settings;
    bool has_fingerprint;
    uint64_t fingerprint;
    int pipeline, ddp, chunks, microbatches;
    smp_splitting splitting; /* devices 0 where the file says nothing */
    int64_t microbatch_size;
    smp_sharding sharding;
    int gradient_blocks; /* 0: one for each replica */
    int loading_horizon; /* 0: not given */
    bool has_placement;
    smp_placement placement;
    const int *device; /* [pipeline * ddp] of a listed placement; else NULL */
    const char *schedule;
    bool has_target; /* it says `execution:` */
    smp_target target;
    int64_t library_bytes;         /* as in smp_plan */
    int n_listed;                  /* stages in the file */
    const smp_sketch_stage *stage; /* [n_listed], by rising number, all different */
    int n_stage;                   /* highest number + 1 */
    bool groups_differ;            /* a stage says how many devices compute its ops */
    int n_program;
    const smp_program *program;
    smp_predicted predicted; /* step and peaks; all of a whole plan */
    int n_peak, n_host;
    const smp_cluster *cluster;
    double optimizer_bytes_per_s;
    smp_gemm_choices products;
    smp_where fingerprint_where, parallel_where, batch_where, schedule_where, stages_where,
        programs_where, predicted_where, host_where;
    const smp_where *program_where; /* [n_program] */
    smp_freezing freezing;          /* as the file says it: names or patterns */
    smp_arena *arena;
} smp_sketch;

/* SMP_ERR_INPUT with file:line:column. Linear in the file. */
smp_status smp_sketch_read(const char *path, smp_sketch **out);
smp_status smp_sketch_parse(const char *name, const char *text, size_t bytes, smp_sketch **out);
void smp_sketch_destroy(smp_sketch *sketch); /* accepts NULL */

/* Ranks and stages per rank that a sketch means: what it says, else `pipeline` if that is not 0,
 * else by its ranks, else a rank per stage. *chunks is 0 where the numbers do not go together. */
void smp_sketch_shape(const smp_sketch *sketch, int *pipeline, int *chunks);

/* Devices of a replica before each rank, and all of them: *begin is [pipeline + 1]; a rank of which
 * no stage says it has splitting.devices, at least 1. A stage without a rank stands for that of its
 * number. SMP_ERR_INPUT: stages of one rank differ, or a stage has more than the largest group. */
smp_status smp_sketch_groups(const smp_sketch *sketch, int pipeline, int *begin);

/* The ops of a stage that its `key` means: mask [n_op] of its ops `op`, in model order; all false
 * where it says nothing. Names, patterns and ranges are looked for among these alone. *work: of all
 * stages of a file so far. SMP_ERR_INPUT at an entry that names none of them. */
smp_status smp_sketch_op_mask(const smp_sketch_mask *said, const char *key, int stage,
                              const char *const *op, int32_t n_op, int64_t *work, bool *mask);

/* Pins for planning around a sketch (smp_search_request.pin): every op that one of its stages names
 * lies there; other ops keep the model's pin. `stages`: which ones, "0,3-5"; NULL: all. pin:
 * [n_op], where (smp_search_request.pin_where) likewise, its texts in the sketch's memory; both
 * malloc'ed. SMP_ERR_INPUT: an op that the model has not, an op in two stages, against a pin of the
 * model, a stage that is not in the sketch. */
smp_status smp_sketch_pins(const smp_sketch *sketch, const smp_graph *graph, const char *stages,
                           int32_t **pin, smp_where **where);

#endif
