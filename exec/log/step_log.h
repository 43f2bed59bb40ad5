/* A log of a run, a row for each step: CSV for people and scripts, or the event files that
 * TensorBoard reads. Rank 0 alone keeps one. Every row is in the file when the call returns, so it
 * can be followed while the job runs.
 *
 * A run that resumes from step k goes on after row k: rows of later steps, and the rest of a row
 * that was not written to its end, are taken away first. But for times and memory the log is then
 * that of a run that was not stopped. */
#ifndef SMP_EXEC_LOG_STEP_LOG_H
#define SMP_EXEC_LOG_STEP_LOG_H

#include <stdbool.h>
#include <stdio.h>

#include "graph/base/text.h"

/* name of a CSV column, tag of TensorBoard, is it a whole number */
#define SMP__LOG_COLUMNS(X)                                                                        \
    X(LOSS, "loss", "train/loss", false)                                                           \
    X(LR, "lr", "train/lr", false)                                                                 \
    X(GRAD_NORM, "grad_norm", "train/grad_norm", false)                                            \
    X(SAMPLES_PER_S, "samples_per_s", "speed/samples_per_s", false)                                \
    X(STEP_US, "step_us", "speed/step_us", false)                                                  \
    X(PREDICTED_US, "predicted_us", "speed/predicted_us", false)                                   \
    X(SKIPPED, "skipped", "train/skipped", true)                                                   \
    X(LOSS_SCALE, "loss_scale", "train/loss_scale", false)                                         \
    X(BUBBLE, "bubble", "speed/bubble", false)                                                     \
    X(MEMORY_PEAK_BYTES, "memory_peak_bytes", "memory/peak_bytes", true)                           \
    X(EVAL_LOSS, "eval_loss", "eval/loss", false)                                                  \
    X(ACCURACY, "accuracy", "eval/accuracy", false)                                                \
    X(ACCURACY_TOP5, "accuracy_top5", "eval/accuracy_top5", false)

typedef enum smp__log_column {
#define SMP__LOG_ENUM(name, csv, tag, whole) SMP__LOG_##name,
    SMP__LOG_COLUMNS(SMP__LOG_ENUM)
#undef SMP__LOG_ENUM
        SMP__LOG_N_COLUMNS
} smp__log_column;

typedef struct smp__log_column_form {
    const char *name, *tag;
    bool whole;
} smp__log_column_form;
extern const smp__log_column_form smp__log_columns[SMP__LOG_N_COLUMNS];

/* What is not known has known[i] false, and is left out. Values may be infinite or NaN. */
typedef struct smp__log_row {
    int64_t step;
    double value[SMP__LOG_N_COLUMNS];
    bool known[SMP__LOG_N_COLUMNS];
} smp__log_row;

static inline void smp__log_set(smp__log_row *row, smp__log_column column, double value)
{
    row->value[column] = value;
    row->known[column] = true;
}

/* A form of log. */
typedef struct smp__log_kind {
    /* The file behind the name that the user gave, malloc'ed. Makes the folder it needs. */
    smp_status (*locate)(const char *name, char **path);
    /* Appends to `kept` what of an old file stays when a run goes on after a step. Errors name the
     * place. */
    smp_status (*keep)(const char *path, const char *old, size_t bytes, int64_t step,
                       smp_text *kept);
    void (*begin)(smp_text *out); /* of a new file */
    void (*row)(const smp__log_row *row, smp_text *out);
} smp__log_kind;
extern const smp__log_kind smp__log_csv, smp__log_events;

typedef struct smp__step_log smp__step_log;

/* `name` ends in .csv, or is the folder of an event file, which is made. resumed_step: the last
 * that was done before, < 0 for a run from its beginning, which writes a new file (a folder that
 * has an event file is refused). SMP_ERR_INPUT: it cannot be written, or is no log of ours. */
smp_status smp__step_log_open(const char *name, int64_t resumed_step, smp__step_log **out);
/* Would a run from its beginning be refused for what is there? Makes the folder. */
smp_status smp__step_log_check_new(const char *name);
smp_status smp__step_log_add(smp__step_log *log, const smp__log_row *row);
void smp__step_log_close(smp__step_log *log); /* accepts NULL */

#endif
