/* Standard output and standard error of a supervisor. Whoever reads them may stall, as a pager
 * does: the job is watched meanwhile, so nothing here waits. */
#ifndef SMP_TOOLS_ELASTIC_OUTPUT_OUTLET_H
#define SMP_TOOLS_ELASTIC_OUTPUT_OUTLET_H

#include <stdbool.h>
#include <stddef.h>

enum { SMP__OUTLET_MOST = 1 << 20 }; /* bytes that wait for a reader before no more are read */

/* to: STDOUT_FILENO or STDERR_FILENO. Writes the text after what waits, or lets it wait. */
void smp__outlet_put(int to, const char *text, size_t bytes);
/* Writes what the reader takes. The bytes that still wait. */
size_t smp__outlet_flush(int to);
/* The disk is full: what waits is tried again. */
bool smp__outlet_full(int to);
/* Nothing can be written any more: what is put is dropped. */
bool smp__outlet_broken(int to);

#endif
