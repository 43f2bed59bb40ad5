/* The training loop of smp-run: data, steps, evaluation, checkpoints, what is printed. */
#ifndef SMP_TOOLS_RUN_TRAINING_LOOP_H
#define SMP_TOOLS_RUN_TRAINING_LOOP_H

#include <stdbool.h>

#include "smp.h"

#define SMP__SEED_DEFAULT UINT64_MAX

typedef struct smp_train_options {
    smp_options job;
    const char *const *data; /* --data sources; may be none if steps is 0 */
    int n_data;
    const char *const *eval_data; /* --eval-data sources; none: no evaluation */
    int n_eval_data;
    int64_t steps; /* train up to this step */
    int64_t log_every;
    int64_t eval_every;     /* 0: only after the last step */
    int64_t save_every;     /* after the next steps; 0: only after the last step */
    double save_every_s;    /* ... or by the clock of rank 0; 0: not */
    bool save_must;         /* a save that fails ends the job at once */
    int64_t check_replicas; /* compare replicas so often, at saves and at the end; 0: only there */
    const char *on_drift;   /* what to do where they differ: "stop" (NULL) or "replay" */
    const char *checkpoint; /* directory, or NULL */
    bool resume;
    bool resume_auto;    /* `resume` where something is saved, else from the beginning */
    bool resume_changed; /* also under another global batch */
    const char *told;    /* options of training, as exec/job/receipt.h has them, or NULL */
    uint64_t data_seed;  /* SMP__SEED_DEFAULT: 1, or that of the run that is resumed */
    bool shuffle;
    bool drop_last; /* a pass ends with its last full batch, not with what is left of it */
    bool json;
    bool checksum;       /* print a hash of every replica's weights at the end */
    const char *trace;   /* Chrome trace of the last step, or NULL */
    const char *report;  /* page of the last step (HTML), or NULL */
    const char *events;  /* of the supervisor of the job, whose life the page shows, or NULL */
    const char *profile; /* what the steps cost, or NULL; with job.runtime.record_costs */
    const char *predict; /* what a tensor is for all samples, or NULL: a file in NumPy's format */
    const char *predict_tensor, *predict_reduce; /* NULL: as --help says */
    const char *const *predict_data;             /* of these samples */
    int n_predict_data;
    const char *weights; /* all of them after the last step (safetensors), or NULL */
    int64_t epochs;      /* instead of steps: end after so many passes, counted from the first; 0 */
    bool keep_best;      /* save what evaluates best so far, and do not remove it */
    bool resume_best;    /* from that: with `resume` */
    int64_t held_out; /* of the data, for evaluations, in parts of SMP__WHOLE; 0, or no eval_data */
    const char *given;                            /* a file of weights to begin with, or NULL */
    smp_weights_options weights_from, weights_as; /* how those of `given` and `weights` are named */
    const char *log; /* a row for each step: FILE.csv or a folder, or NULL; with record_trace */
    const char
        *rows; /* a file that gets standard output of rank 0, and each step's loss; or NULL */
    const char *progress; /* the bar: "auto" (NULL: on a terminal, without json), "yes", "no" */
} smp_train_options;

/* Runs the whole job: rank 0 prints steps to standard output. Collective. On failure *job_broken
 * tells that a step failed, so that other ranks may be waiting: the program must end the job.
 * *stopped: a signal has ended it before its last step, what it had is saved; NULL: not wanted. */
smp_status smp__train(const smp_train_options *options, bool *job_broken, bool *stopped);

#endif
