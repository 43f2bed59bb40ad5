/* A plain sequential trainer: the operators' kernels called one after another, every value in a
 * buffer of its own, no plan, no arena, no messages. What the executor is compared with: its bits
 * in the tests, its time in the benchmarks. */
#ifndef SMP_TESTS_SEQUENTIAL_H
#define SMP_TESTS_SEQUENTIAL_H

#include "graph/model/graph.h"
#include "smp.h"

typedef struct sequential sequential;

/* `options`: optimizer and its numbers, seed, clip_norm; gradient_blocks, else ddp, into so many
 * blocks the micro-batches are cut, if they can be, to add gradients in their tree. Weights start
 * at zero. */
smp_status sequential_create(const smp_graph *graph, int64_t batch, int microbatches,
                             const smp_options *options, sequential **out);
void sequential_destroy(sequential *s);

/* Values of a weight, [elements], to fill or compare. */
float *sequential_weight(sequential *s, int32_t param);

/* One training step on inputs[i]: [microbatches * batch][sample shape]. */
smp_status sequential_step(sequential *s, const void *const *inputs, double *loss);
/* ... or fewer micro-batches. All are full: the trainer knows no padding. */
smp_status sequential_step_of(sequential *s, int microbatches, const void *const *inputs,
                              double *loss);

#endif
