/* What the files of this room that call oneDNN share. The descriptor API changed between oneDNN 2
 * and 3: nothing outside of them includes dnnl.h. */
#ifndef SMP_GRAPH_MATH_ONEDNN_H
#define SMP_GRAPH_MATH_ONEDNN_H

#include <dnnl.h>

#include "graph/base/status.h"

#if DNNL_VERSION_MAJOR != 2
#error "oneDNN 2 is needed: oneDNN 3 makes primitives without operation descriptors"
#endif

/* A status of oneDNN's as one of ours; `what` was tried. */
smp_status smp__dnnl_check(dnnl_status_t status, const char *what);

/* oneDNN takes as many OpenMP threads as the calling thread may have. That is one while it is
 * called, whichever thread calls, and otherwise the host's own affair. Returns what to give back to
 * omp_set_num_threads afterwards. */
int smp__dnnl_limit_threads(void);

/* What primitives need beside descriptors; both are free on the CPU. On failure *engine and *stream
 * may be set, and are freed with smp__dnnl_close. */
smp_status smp__dnnl_open(dnnl_engine_t *engine, dnnl_stream_t *stream);
void smp__dnnl_close(dnnl_engine_t engine, dnnl_stream_t stream); /* accepts NULL */

#endif
