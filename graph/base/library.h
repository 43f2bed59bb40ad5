/* Libraries that a machine may lack are opened when they are first needed, not when a program
 * starts: one binary runs everywhere, and programs that do not use them start fast. */
#ifndef SMP_GRAPH_BASE_LIBRARY_H
#define SMP_GRAPH_BASE_LIBRARY_H

#include "graph/base/status.h"

/* Opens a shared library, `file` ("libnccl.so.2") where the loader looks, else in `folder` (may be
 * NULL), and stores the addresses of n symbols at `call`: in the layout of a struct of n function
 * pointers. The library stays open for ever. SMP_ERR_FAILED naming the library or the symbol. */
smp_status smp_library_open(const char *file, const char *folder, int n, const char *const *symbol,
                            void **call);

#endif
