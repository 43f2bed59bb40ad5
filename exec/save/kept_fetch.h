/* What the machines of a job have kept in memory before it began, as one list; and one state of it
 * brought to each machine, as far as its ranks read it. */
#ifndef SMP_EXEC_SAVE_KEPT_FETCH_H
#define SMP_EXEC_SAVE_KEPT_FETCH_H

#include "exec/checkpoint/kept_ranges.h"
#include "smp.h"

/* The same on all ranks. Zero-initialise. */
typedef struct smp__kept_list {
    smp__kept_state *state; /* [n] of all machines */
    int *chosen;            /* [n_chosen] states that can be gone on from, best first */
    int n, n_chosen;
} smp__kept_list;

/* Collective. */
smp_status smp__kept_list_make(smp *s, smp__kept_list *out);
void smp__kept_list_free(smp__kept_list *list);

/* What this machine's ranks read of state chosen[i] lies in its folder from now on, and has its
 * name there; what another place held may be gone. Collective. SMP_ERR_INPUT: not all of it is
 * there. */
smp_status smp__kept_fetch(smp *s, const smp__kept_list *list, int i);

#endif
