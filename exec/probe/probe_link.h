/* The links between ranks, as a probe measures them. */
#ifndef SMP_EXEC_PROBE_PROBE_LINK_H
#define SMP_EXEC_PROBE_PROBE_LINK_H

#include "exec/probe/probe_op.h"

enum { SMP__RANK_LINKS = SMP_LINK_HOST }; /* kinds of links between ranks: the first ones */

/* Two ranks, first < second; -1: there are none. */
typedef struct smp__probe_pair {
    int first, second;
} smp__probe_pair;

typedef struct smp__probe_links {
    const smp_transport *transport; /* NULL: there is one rank */
    void *context;
    smp__probe_pair pair[SMP__RANK_LINKS];
    int lane[SMP__RANK_LINKS]; /* index of the pair's two lanes on this rank: to the second, back */
    double took[2];            /* result of the last call: here, since MPI adds it up */
} smp__probe_links;

/* The first two ranks of one node, and rank 0 with the first rank of another one. node_of: [ranks]
 * the lowest rank of each rank's node; pair: [SMP__RANK_LINKS]. */
void smp__probe_pairs(const int *node_of, int ranks, smp__probe_pair *pair);

/* Collective, the same status on every rank. */
smp_status smp__probe_links_open(smp__probe_state *p, smp__probe_links *links);
void smp__probe_links_close(smp__probe_links *links);

/* See smp_probe.time_link; `spent_us` is the first rank's. Collective. */
smp_status smp__probe_links_time(smp__probe_state *p, smp__probe_links *links, smp_link_kind kind,
                                 int64_t bytes, int repeat, double *us, double *spent_us);

#endif
