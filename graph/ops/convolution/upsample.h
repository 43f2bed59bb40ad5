/* The attribute of upsample. */
#ifndef SMP_GRAPH_OPS_UPSAMPLE_H
#define SMP_GRAPH_OPS_UPSAMPLE_H

#include "graph/ops/ops.h"

enum { SMP__UPSAMPLE_FACTOR };

#endif
