/* The link to host memory, as a probe measures it. */
#ifndef SMP_EXEC_PROBE_PROBE_HOST_H
#define SMP_EXEC_PROBE_PROBE_HOST_H

#include "exec/offload/offload_area.h"
#include "exec/probe/probe_op.h"

typedef struct smp__probe_host {
    const char *folder;     /* of a file that is the host area; NULL: memory of the host */
    bool idles;             /* another rank measures the device that is this one's too */
    smp_offload_area *area; /* opened when first needed, */
    int64_t bytes;          /* for so many each way */
    double took[2];         /* result of the last call: here, since MPI adds it up */
} smp__probe_host;

/* See smp_probe.time_link. Collective where there are several ranks. */
smp_status smp__probe_host_time(smp__probe_state *p, smp__probe_host *host, int64_t bytes,
                                int repeat, double *us, double *spent_us);
/* Before the device is closed. */
void smp__probe_host_close(smp__probe_host *host);

#endif
