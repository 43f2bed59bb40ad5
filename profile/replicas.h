/* Which replicas of a pipeline decide how fast it is. Replicas wait for each other in every
 * reduction, so one that is nowhere slower than another one need not be looked at. */
#ifndef SMP_PROFILE_REPLICAS_H
#define SMP_PROFILE_REPLICAS_H

#include "graph/model/target.h"
#include "profile/device/cluster.h"

/* device: [ddp * pipeline], of replica d and rank r at d * pipeline + r. Fills kept [ddp] with the
 * replicas, rising, such that every other one has an equal among them or one that is at least as
 * slow in the device of every rank and in the link between every two; of equals the first is kept.
 * O(ddp * kept * pipeline). */
smp_status smp_replicas_that_count(const smp_cluster *cluster, smp_precision precision,
                                   int pipeline, int ddp, const int *device, int *kept,
                                   int *n_kept);

/* Slowdown of the slowest device that a rank has in replicas 0 to n - 1: what its compute is
 * bounded with. O(n). */
double smp_replicas_slowest(const smp_cluster *cluster, smp_precision precision, int pipeline,
                            int n, const int *device, int rank);

#endif
