/* What it costs an elastic job to go on with a plan: its steps, and the bytes of the state that
 * have to move between hosts; and the hosts in the order that moves least. */
#ifndef SMP_TOOLS_ELASTIC_MOVES_MOVE_COST_H
#define SMP_TOOLS_ELASTIC_MOVES_MOVE_COST_H

#include <stdint.h>

#include "graph/base/status.h"

enum { SMP__MOVE_HOSTS = 64 }; /* with more, each stays in its own place */

/* The time that a plan takes for what a step of `ref_us` does within the horizon, with what comes
 * before its first step. Of several ways to go on the least is taken. */
static inline double smp__going_on_s(double before_s, double step_us, double ref_us,
                                     double horizon_s)
{
    return before_s + horizon_s * step_us / ref_us;
}

/* Which host has which place, host_of: [n]. bytes: [n * n] what host h lacks in place p, at
 * p * n + h; -1: it cannot have that; each can have its own, p. The most that one of them lacks is
 * least, then all together: exact, by thresholds and the Hungarian method. Each has its own place
 * where that is as good. SMP_ERR_NO_MEMORY. O(n^3 log n). */
smp_status smp__move_assign(const int64_t *bytes, int n, int *host_of);

#endif
