/* Stashes that travel: what forwards leave for backwards goes to host memory in between
 * (Rhu et al., "vDNN", MICRO 2016). */
#ifndef SMP_SCHEDULE_RULES_OFFLOAD_H
#define SMP_SCHEDULE_RULES_OFFLOAD_H

#include <stdbool.h>

#include "graph/model/target.h"
#include "schedule/rules/shard.h"

/* Each transfer has `horizon` compute actions of its rank to hide behind. What is needed again
 * before it has been away for at least one compute action stays where it is. */
typedef struct smp_offloading {
    int horizon;       /* at least 1, where anything travels */
    const bool *stage; /* [pipeline * chunks] of which stages something travels; NULL: of none */
} smp_offloading;

/* Do a job's updates go on beside its next step, with the optimizer's states in host memory? Those
 * of a GPU, where the host is free; a CPU may, if cores are spare, which a plan does not know. */
static inline bool smp_updates_beside(bool offload_states, smp_target target)
{
    return offload_states && smp_backend_of(target)->own_memory;
}

/* Do the fp32 values of weights that a GPU reads in 16 bits alone lie there too, where the update
 * is made? Where weights are sharded all stay on the device: they are gathered in fp32. */
static inline bool smp_weights_in_host(smp_sharding sharding, smp_target target, bool training)
{
    return training && smp_updates_beside(sharding.offload_states, target) &&
           smp_precision_is_half(target.precision) &&
           !smp_shards(sharding, SMP_SHARD_WEIGHTS, training);
}

#endif
