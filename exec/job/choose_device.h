/* What a job runs on: device, precision, memory, transport. Collective where not said. */
#ifndef SMP_EXEC_JOB_CHOOSE_DEVICE_H
#define SMP_EXEC_JOB_CHOOSE_DEVICE_H

#include "exec/state/handle.h"

/* What was found out on the way, for messages. */
struct smp__found {
    char device_note[512];    /* why not a better one ("auto"), or empty */
    char transport_note[512]; /* what the better ones said, or empty */
    char products_note[512];  /* why they are not computed as the plan says, or empty */
    char ways[1024];          /* which were taken of choices with names: lines of a receipt */
    int64_t free_bytes;       /* of the device before the arena was reserved */
    int sharers;              /* ranks that compute on it */
    int64_t library_bytes;    /* that libraries took in the warm-up; 0: not measured */
};

smp_status smp__choose_device(smp *s); /* sets device, target, a note; needs the graph */
/* Sets transport, a note; needs the lanes. */
smp_status smp__choose_transport(smp *s, const smp_transport_options *options);
smp_status smp__device_open(smp *s);
/* Of the device: the arena, `extra`, libraries. Not collective. */
int64_t smp__device_needs(const smp *s);
/* SMP_ERR_NO_FIT if the arena and `extra` do not fit the device, with those of the ranks that share
 * it. */
smp_status smp__device_check_memory(smp *s);
/* After the warm-up: what libraries have taken of a device that no other rank uses. */
smp_status smp__device_note_libraries(smp *s);

#endif
