/* Stashes that travel: what forwards leave for backwards goes to host memory in between
 * (Rhu et al., "vDNN", MICRO 2016). */
#ifndef SMP_SCHEDULE_RULES_OFFLOAD_H
#define SMP_SCHEDULE_RULES_OFFLOAD_H

#include <stdbool.h>

/* Which ops' stashes travel: a request. */
typedef enum smp_offload {
    SMP_OFFLOAD_NONE,
    SMP_OFFLOAD_AUTO, /* as much as it takes to fit, where that is faster than to recompute */
    SMP_OFFLOAD_ALL
} smp_offload;

/* Each transfer has `horizon` compute actions of its rank to hide behind. What is needed again
 * before it has been away for at least one compute action stays where it is. */
typedef struct smp_offloading {
    int horizon;       /* at least 1, where anything travels */
    const bool *stage; /* [pipeline * chunks] of which stages something travels; NULL: of none */
} smp_offloading;

#endif
