/* A group whose device waits for the others by itself, between two kernels: tells when it begins to
 * and when it goes on, so that what it waits is not taken for work. */
#ifndef SMP_EXEC_GROUP_TIMED_GROUP_H
#define SMP_EXEC_GROUP_TIMED_GROUP_H

#include "graph/model/op.h"

/* over: the exchange is, as far as it is enqueued. */
typedef smp_status (*smp__group_note)(void *context, bool over);

typedef struct smp__timed_group {
    smp_op_group of;
    smp__group_note note;
    void *context;
} smp__timed_group;

/* *group, of a device with memory of its own, becomes one that calls `note` before and after each
 * exchange on the compute stream and makes it as before; `timed` has to live as long. */
void smp__group_time(smp_op_group *group, smp__group_note note, void *context,
                     smp__timed_group *timed);

#endif
