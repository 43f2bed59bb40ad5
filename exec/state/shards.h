/* Where weights, gradients and optimizer states of this rank lie in the arena, whole or in part,
 * and which part of what is sharded is its own. Without sharding its part is everything. */
#ifndef SMP_EXEC_STATE_SHARDS_H
#define SMP_EXEC_STATE_SHARDS_H

#include "exec/state/handle.h"
#include "exec/parts/weight_runs.h"

/* Elements [begin, end) of memory->param[index] whose states are this rank's; begin is a multiple
 * of SMP_PIECE_ELEMENTS, or the range is empty. */
typedef struct smp__range {
    int64_t begin, end;
} smp__range;
smp__range smp__own_range(const smp *s, int32_t index);
/* The same of another member of the shard group; and of a rank with such memory, which has n
 * elements of the weight. */
smp__range smp__range_of(const smp *s, int32_t index, int member);
smp__range smp__part_of(const smp_memory_rank *memory, int32_t index, int64_t n, int member);

/* Elements [begin, end) of a device's part of a weight, whose runs are these, and the rank of the
 * world that hands them over. */
typedef struct smp__holding {
    smp__runs runs;
    int64_t begin, end;
    int rank;
} smp__holding;
/* How all ranks together have weight `param` of the graph, each element once, for all of them to
 * know: by device, then by element. holding: [smp__most_holdings(s)]. Collective. */
int smp__most_holdings(const smp *s);
smp_status smp__find_holdings(smp *s, int32_t param, smp__holding *holding, int *n);
/* What it has of elements [begin, end) of the whole weight, in elements of the part. */
smp__range smp__holding_slice(const smp__holding *holding, int64_t begin, int64_t end);

/* Are the weights outside of a step in parts? */
bool smp__weights_in_parts(const smp *s);

/* Does memory->param[index] lie in the host area, of which the device has a copy in 16 bits alone?
 * What is there is this rank's part, whatever is sharded. */
bool smp__weight_is_in_host(const smp *s, int32_t index);
/* What is here of its values: all, or the part. */
smp__range smp__held_range(const smp *s, int32_t index);
smp__range smp__held_range_of(const smp *s, int32_t index, int member); /* at a member */

/* Is memory->param[index] frozen and so without a gradient and states? */
bool smp__is_idle(const smp *s, int32_t index);

/* Address of element `at` of a weight, of its summed gradient, of a state (bf16 where the plan says
 * so, else float). What is there in part has the elements of the own range alone. */
float *smp__weight_at(const smp *s, int32_t index, int64_t at);
float *smp__grad_at(const smp *s, int32_t index, int64_t at);
void *smp__state_at(const smp *s, int32_t index, int k, int64_t at);
/* Where its values (k 0) or state k - 1 are, and in which format. */
void *smp__saved_at(const smp *s, int32_t index, int k, int64_t at);
smp_dtype smp__saved_dtype(const smp *s, int k);
/* n of them as floats, to host memory; and back, to the nearest, which what came out is: `values`
 * is spoilt. */
smp_status smp__saved_out(smp *s, int32_t index, int k, int64_t at, int64_t n, float *values);
smp_status smp__saved_in(smp *s, int32_t index, int k, int64_t at, int64_t n, float *values);

/* Pieces of SMP_PIECE_ELEMENTS, or what is left of a weight: those of memory->param[index] are
 * piece_begin[index] .. piece_begin[index + 1] - 1 of weights_state.h. */
smp_status smp__pieces_build(smp *s);
/* What each member of the shard group has set of its own pieces; the others are 0. Collective over
 * the group. */
smp_status smp__pieces_share(smp *s, double *pieces);

#endif
