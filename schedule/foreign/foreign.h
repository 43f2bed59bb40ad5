/* Schedules that another framework wrote, as actions of ranks, judged: are they complete, do they
 * finish, what do they keep alive, how long do they take? */
#ifndef SMP_SCHEDULE_FOREIGN_FOREIGN_H
#define SMP_SCHEDULE_FOREIGN_FOREIGN_H

#include "graph/base/arena.h"
#include "schedule/check/check.h"

/* X(id, its name in torch.distributed.pipelining). Compute actions come first. */
#define SMP_FOREIGN_ACTION_LIST(X)                                                                 \
    X(F, "F")                                                                                      \
    X(B, "B")                                                                                      \
    X(I, "I")                                                                                      \
    X(W, "W")                                                                                      \
    X(SEND_F, "SEND_F")                                                                            \
    X(RECV_F, "RECV_F")                                                                            \
    X(SEND_B, "SEND_B")                                                                            \
    X(RECV_B, "RECV_B")                                                                            \
    X(WAIT_F, "WAIT_SEND_F")                                                                       \
    X(WAIT_B, "WAIT_SEND_B")                                                                       \
    X(UNSHARD, "UNSHARD")                                                                          \
    X(RESHARD, "RESHARD")                                                                          \
    X(REDUCE, "REDUCE_GRAD")                                                                       \
    X(WAIT_REDUCE, "WAIT_REDUCE_GRAD")

typedef enum smp_foreign_kind {
#define SMP_FOREIGN_ENUM(id, name) SMP_FOREIGN_##id,
    SMP_FOREIGN_ACTION_LIST(SMP_FOREIGN_ENUM)
#undef SMP_FOREIGN_ENUM
        SMP_N_FOREIGN,
    SMP_FOREIGN_PER_MICROBATCH = SMP_FOREIGN_UNSHARD /* kinds below it are of a micro-batch */
} smp_foreign_kind;

enum {
    SMP_FOREIGN_MAX_STAGES = 1 << 16,
    SMP_FOREIGN_MAX_PAIRS = 1 << 20 /* stages times micro-batches */
};

typedef struct smp_foreign_action {
    smp_foreign_kind kind;
    int32_t stage;
    int32_t microbatch; /* -1: of the stage as a whole */
    int32_t cell;       /* in its row, from 0 */
} smp_foreign_action;

typedef struct smp_foreign_rank {
    smp_foreign_action *action;
    int32_t n;
    size_t capacity; /* while it is read; malloc'ed */
} smp_foreign_rank;

typedef struct smp_foreign {
    const char *format; /* the reader's name */
    int n_rank, n_stage, microbatches;
    smp_foreign_rank *rank; /* [n_rank] */
    int *stage_rank;        /* [n_stage] */
    bool communicates;      /* it has sends and receives; else they follow from what is computed */
    bool training;          /* it has backwards */
    int n_overlap;          /* forwards that run together with a backward */
    const double *layers; /* [n_stage] how much each computes, of a layout; NULL: nothing is said */
    const char *file;     /* for messages */
    smp_arena *arena;
} smp_foreign;

/* A format of another framework: one file and a line in foreign_readers.h. */
typedef struct smp_foreign_reader {
    const char *name;    /* "torch-csv" */
    const char *summary; /* one line */
    /* Is it this one, by its first bytes? */
    bool (*recognise)(const char *text);
    /* Fills n_rank and the actions, or layers and n_stage. ranks, microbatches: what options say,
     * for formats that do not; 0: nothing. SMP_ERR_INPUT with file:line:column. */
    smp_status (*read)(smp_foreign *foreign, const char *text, int ranks, int microbatches);
} smp_foreign_reader;

/* NULL-terminated. */
const smp_foreign_reader *const *smp_foreign_readers(void);

/* Does the file hold a foreign schedule, and not a plan? A file that cannot be read does not. */
smp_status smp_foreign_is(const char *path, bool *is);
/* Reads one. SMP_ERR_INPUT with the place where it is none. Linear in the file. */
smp_status smp_foreign_read(const char *path, int ranks, int microbatches, smp_foreign **out);
smp_status smp_foreign_parse(const char *name, const char *text, int ranks, int microbatches,
                             smp_foreign **out);
void smp_foreign_destroy(smp_foreign *foreign); /* accepts NULL */

/* What one micro-batch takes in each stage. */
typedef struct smp_foreign_times {
    const double *forward_us; /* [n_stage] */
    const double *backward_us;
    const double *backward_input_us; /* of backward_us */
} smp_foreign_times;

/* How a rank spends its time, and what it keeps. */
typedef struct smp_foreign_load {
    double busy_us, idle_us;
    double warmup_us, wait_us, drain_us; /* idle: before the first backward, between, at the end */
    int live;                            /* most forwards whose backward is not done */
} smp_foreign_load;

typedef struct smp_foreign_run {
    bool finishes;
    double step_us;
    smp_foreign_load *rank; /* [n_rank] */
} smp_foreign_run;

/* Findings for all that is missing, twice or out of place. O(actions). */
smp_status smp_foreign_check(const smp_foreign *foreign, smp_findings *findings);
/* Runs a schedule without illegal findings: each rank its actions in order, transfers immediate, a
 * send never held up, a receive waited for where its data is used, WAIT_SEND until the receive is
 * posted. If that ends nowhere, a finding names the ranks that wait for each other. in `arena`.
 * O(actions). */
smp_status smp_foreign_simulate(const smp_foreign *foreign, const smp_foreign_times *times,
                                smp_findings *findings, smp_arena *arena, smp_foreign_run *out);

/* The compute actions of each rank as orders of ours: [n_rank], of chunks in the order of stages.
 * *chunks: stages of each rank. SMP_ERR_INPUT where ranks have not equally many. */
smp_status smp_foreign_orders(const smp_foreign *foreign, smp_program *orders, int *chunks);

/* "2B0" into a buffer; returns it. */
char *smp_foreign_action_text(char *buffer, size_t size, const smp_foreign_action *action);

#endif
