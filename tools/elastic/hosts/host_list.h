/* The hosts that a job may use, and how many devices each has: from a file as mpirun reads it, or
 * from the batch system whose job this is. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_HOST_LIST_H
#define SMP_TOOLS_ELASTIC_HOSTS_HOST_LIST_H

#include <stdbool.h>

#include "graph/base/status.h"

enum { SMP__HOST_NAME = 256, SMP__HOSTS_MOST = 1024, SMP__HOST_DEVICES = 512 };

typedef struct smp__listed_host {
    char name[SMP__HOST_NAME];
    int devices;
} smp__listed_host;

typedef struct smp__host_list {
    int n;
    smp__listed_host *host; /* malloc'ed */
} smp__host_list;

/* Lines "NAME slots=N", 1 where nothing is said, once more where a name stands again; comments
 * begin with #. SMP_ERR_INPUT with the line. */
smp_status smp__host_list_read(const char *path, smp__host_list *out);
/* Those of Slurm (scontrol) or PBS (PBS_NODEFILE). gpus: devices are those. None: n is 0. */
smp_status smp__host_list_batch(bool gpus, smp__host_list *out);
void smp__host_list_free(smp__host_list *list);

/* Is that a name of this machine, or an address of it? May ask a server of names. */
bool smp__host_is_here(const char *name);

#endif
