/* What the devices of this host are, in words: hosts of one job have to have the same. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_HOST_KIND_H
#define SMP_TOOLS_ELASTIC_HOSTS_HOST_KIND_H

#include <stddef.h>

enum { SMP__KIND_BYTES = 256 };

/* device: "cpu": the processor's model and its number of cores; else the models of the GPUs, each
 * once. One line of printable characters. */
void smp__host_kind(const char *device, char *kind, size_t size);

#endif
