/* Initial values of weights. */
#ifndef SMP_EXEC_PARTS_INITIAL_VALUES_H
#define SMP_EXEC_PARTS_INITIAL_VALUES_H

#include "graph/model/graph.h"

/* Values begin .. end-1 of a weight, of what the graph's device has of it. They are functions of
 * seed, weight and place in the whole weight, so they depend neither on who holds it nor on how it
 * is split. O(end - begin). */
void smp__initial_values(const smp_param *param, uint64_t seed, int64_t begin, int64_t end,
                         float *values);

#endif
