/* The inside of a record. */
#ifndef SMP_EXEC_RECORD_STEP_RECORD_STATE_H
#define SMP_EXEC_RECORD_STEP_RECORD_STATE_H

#include "exec/record/step_record.h"

struct smp__record {
    int64_t actions;        /* of the program */
    smp_trace_event *event; /* [actions + 1] */
    int64_t n_event;        /* of the last step */
    double *ended_us;       /* [actions] */
    double begin_s;         /* of the step */
    double beside_s[2];     /* of updates of the step before */
    bool ended, aligned;
    double spent_s[SMP__N_SPENT];
};

#endif
