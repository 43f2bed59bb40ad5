/* The maximum of a concave function that is the least of linear ones, each found by asking for
 * it. */
#ifndef SMP_PARTITION_NUMERIC_BUNDLE_H
#define SMP_PARTITION_NUMERIC_BUNDLE_H

#include <stdbool.h>

#include "graph/base/arena.h"

typedef struct smp__bundle smp__bundle;

/* A bundle of n numbers >= 0, the first n_weight of which sum up to 1. start: [n], where it begins.
 */
smp_status smp__bundle_create(smp_arena *arena, int n, int n_weight, const double *start,
                              smp__bundle **out);

/* The next point to ask at, [n]; borrowed. */
const double *smp__bundle_point(const smp__bundle *bundle);

/* What the function is at that point, and a linear function of that value there which is nowhere
 * below it: its slope [n]. False: the maximum is found but for `least`. O(n) times a constant. */
bool smp__bundle_tell(smp__bundle *bundle, double value, const double *slope, double least);

/* The most told so far. */
double smp__bundle_best(const smp__bundle *bundle);

#endif
