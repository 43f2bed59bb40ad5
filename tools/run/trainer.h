/* What the parts of the training loop share. */
#ifndef SMP_TOOLS_RUN_TRAINER_H
#define SMP_TOOLS_RUN_TRAINER_H

#include "exec/job/training.h"
#include "tools/run/read_ahead.h"
#include "tools/run/training_loop.h"

/* A part of a data set. */
typedef struct smp__batch {
    int64_t first, samples;
} smp__batch;

/* What an evaluation has found. */
typedef struct smp__evaluated {
    double loss, rows; /* the mean over so many targets; NaN: there are none */
    /* Shares of the targets that are the first, or among the first five, of what the model has;
     * NaN: the loss has none such. */
    bool counted, counted_top5;
    double accuracy, accuracy_top5;
} smp__evaluated;

typedef struct smp__watch smp__watch;

typedef struct smp__trainer {
    const smp_train_options *options;
    smp *job;
    smp_job_description about;
    smp_prediction predicted;
    smp_data *data;
    smp_data *eval_data;
    int64_t global_batch;
    void **buffer; /* [n_input]; NULL where not needed here */
    bool prints;   /* rank 0 */
    /* Rows since SIGTERM: mpirun takes none while it waits with that, so the state is saved first.
     * Ranks agree to end in the step of the signal or in the next. */
    smp_step_result held[2];
    int n_held;
    double *step_us; /* of every step done, for the summary */
    int64_t n_step;
    bool save_due;   /* waits for a step that is not skipped: weights that get nowhere must not push
                      good ones out of the directory */
    int64_t unsaved; /* the step whose save failed, since when none has succeeded; or -1 */
    char unsaved_why[1024];
    bool saves;        /* there is a directory of checkpoints, and something to save */
    int64_t good_step; /* of what was saved last in this run, or loaded; 0: none */
    bool stopped;      /* by a signal, before the last step: nothing is to come but the save */
    bool best_due;     /* the weights of this step are the best so far */
    double best_loss;  /* of all evaluations, those in the directory included; INFINITY: none yet */
    bool keep_told;    /* that kept states get no names any more */
    bool *job_broken;
    smp_data *predict_data; /* NULL: nothing is predicted */
    smp_output predict_form;
    smp_tensor_description predict_tensor;
    smp_train_options own;  /* what `options` points to: settled by what was resumed */
    smp__read_ahead *ahead; /* NULL: none */
    void **spare;           /* like `buffer`: what is read while a step uses that; NULL: none */
    smp__batch asked;       /* under way into `spare`; of no samples: none */
    double read_us;         /* what reading the last batch took, whoever read it */
    double wait_us, longest_wait_us; /* of steps for data, but for the first one */
    smp__watch *watch;               /* tools/run/watch.h */
} smp__trainer;

#endif
