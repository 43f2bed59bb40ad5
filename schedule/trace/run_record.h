/* What a run tells of itself over its steps, for its page: curves, memory, where the time of a step
 * went. Made by the executor, drawn by tools/show/draw_run.c. */
#ifndef SMP_SCHEDULE_TRACE_RUN_RECORD_H
#define SMP_SCHEDULE_TRACE_RUN_RECORD_H

#include <stdbool.h>
#include <stdint.h>

/* Name, key of JSON, text, colour of the page (report_page.css). The first ones are work, those
 * from MESSAGES to END are waiting, DATA is between steps. */
#define SMP_TIME_CAUSES(X)                                                                         \
    X(FORWARD, "forward_us", "forward", "forward")                                                 \
    X(BACKWARD, "backward_us", "backward", "backward")                                             \
    X(RECOMPUTE, "recompute_us", "recompute", "input")                                             \
    X(OPTIMIZER, "optimizer_us", "optimizer", "optimizer")                                         \
    X(MESSAGES, "messages_us", "messages", "transfers")                                            \
    X(OFFLOAD, "offload_us", "offload", "offload")                                                 \
    X(SUMS, "sums_us", "sums", "reduction")                                                        \
    X(GROUP, "group_us", "group", "gather")                                                        \
    X(END, "end_us", "end", "drain")                                                               \
    X(REST, "rest_us", "rest", "warm-up")                                                          \
    X(DATA, "data_us", "data", "weight")

typedef enum smp_time_cause {
#define SMP_TIME_ENUM(name, key, text, colour) SMP_TIME_##name,
    SMP_TIME_CAUSES(SMP_TIME_ENUM)
#undef SMP_TIME_ENUM
        SMP_TIME_N_CAUSES
} smp_time_cause;

typedef struct smp_time_form {
    const char *key, *text, *colour;
} smp_time_form;
extern const smp_time_form smp_time_forms[SMP_TIME_N_CAUSES];

/* A rank's time in a step, the mean over steps. */
typedef struct smp_rank_time {
    int pipeline_rank, replica;
    double us[SMP_TIME_N_CAUSES];
    int peer; /* pipeline rank whose messages were waited for most; -1: none, or not known */
    double peer_us;
    int slow_replica; /* that sums and the end of the step waited for; -1: none */
    double slow_us;
    /* As the plan has it, where it has a `cluster:`. Recomputation is in BACKWARD, waiting for
     * messages and at the end are one: in MESSAGES. */
    bool has_predicted;
    double predicted_us[SMP_TIME_N_CAUSES];
    int64_t predicted_bytes; /* the plan's peak; 0: not known */
    int64_t arena_bytes;     /* reserved by the executor */
    int64_t resident_bytes;  /* most that the process had in memory, libraries and data included */
} smp_rank_time;

/* A value over steps, thinned as it grows: each point is the least, the greatest and the mean of
 * `stride` steps. Adding is O(1) on average and takes no memory. */
enum { SMP_CURVE_POINTS = 600 };
typedef struct smp_curve {
    double low[SMP_CURVE_POINTS], high[SMP_CURVE_POINTS], sum[SMP_CURVE_POINTS];
    int64_t count[SMP_CURVE_POINTS]; /* finite values */
    int64_t first;                   /* step of point 0 */
    int64_t stride, last;            /* of a point; step added last */
    int n;
} smp_curve;
/* Steps rise. A value that is not finite leaves a gap. */
void smp_curve_add(smp_curve *curve, int64_t step, double value);

typedef struct smp_run_record {
    smp_curve loss, eval_loss, lr, samples_per_s, bubble, grad_norm;
    double predicted_samples_per_s, predicted_bubble; /* <= 0: not known */
    int64_t steps;                                    /* that the times are the mean of */
    const smp_rank_time *rank;                        /* [n_rank] */
    int n_rank;
} smp_run_record;

#endif
