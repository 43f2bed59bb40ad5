/* DIR/elastic.yaml: how far an elastic job has come, for a supervisor that is started again. */
#ifndef SMP_TOOLS_ELASTIC_ELASTIC_RECORD_H
#define SMP_TOOLS_ELASTIC_ELASTIC_RECORD_H

#include "tools/elastic/device_slots.h"

typedef struct smp__record {
    char job[17];    /* 16 hexadecimal digits */
    int incarnation; /* of the ranks, from 1; 0: none has been started */
    int64_t rows;    /* the last whose row has been printed */
    int failures, changes;
    int64_t steps_lost;
} smp__record;

/* Reads the record of a job that was planned for the same. *found false: there is none, and *out is
 * that of a new job. SMP_ERR_INPUT: it is of a job with other options of planning, or damaged. */
smp_status smp__record_read(const char *folder, const char *planned_for, smp__record *out,
                            smp__slots *slots, bool *found);
/* Takes the place of the one that is there. picked: [n] slots of the ranks. */
smp_status smp__record_write(const char *folder, const char *planned_for, const smp__record *record,
                             const smp__slots *slots, const int *picked, int n);

#endif
