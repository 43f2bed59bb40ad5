/* What the operators between devices share (all_reduce, all_gather, ..): where the part of a device
 * lies in a tensor. */
#ifndef SMP_GRAPH_OPS_COLLECTIVE_H
#define SMP_GRAPH_OPS_COLLECTIVE_H

#include "graph/ops/ops.h"

enum { SMP__MOST_DEVICES = 1 << 20 }; /* so that no size overflows */

/* Attributes. Those of all_gather and reduce_scatter are alike: the last says whether the scatter
 * adds up. */
enum { SMP__ALL_REDUCE_DEVICES, SMP__ALL_REDUCE_VALUE, SMP__ALL_REDUCE_GRADIENT };
enum { SMP__ALL_TO_ALL_DEVICES, SMP__ALL_TO_ALL_FROM, SMP__ALL_TO_ALL_TO };
enum { SMP__GATHER_DEVICES, SMP__GATHER_AXIS, SMP__GATHER_BLOCKS, SMP__GATHER_SUMS };

/* A tensor [outer][blocks][devices][run] of which a device has [outer][blocks][run]. */
typedef struct smp__parts {
    int64_t outer, blocks, devices, run;
} smp__parts;

/* Checks attributes and input 0, whose dimension `axis` (not below 0) is `*size` long: of blocks,
 * and whole: of devices times them. */
smp_status smp__infer_parts(smp_infer *infer, int64_t axis, int64_t devices, int64_t blocks,
                            bool whole);
/* whole: the tensor that has all parts. */
smp__parts smp__parts_of(const smp_tensor *whole, int64_t axis, int64_t devices, int64_t blocks,
                         int64_t batch);
int64_t smp__part_elements(smp__parts parts);
/* Which run of the whole is run i of a device's part. */
static inline int64_t smp__run_of(smp__parts parts, int64_t i, int64_t device)
{
    return i / parts.blocks * parts.blocks * parts.devices +
           smp_split_part(parts.blocks, parts.devices, i % parts.blocks, device);
}
/* Between a whole tensor and the part of a device, or those of all, one after the other. */
void smp__take_part(float *part, const float *whole, smp__parts parts, int64_t device);
void smp__put_part(float *whole, const float *part, smp__parts parts, int64_t device);
void smp__take_parts(float *all, const float *whole, smp__parts parts);
void smp__put_parts(float *whole, const float *all, smp__parts parts);

/* Workspace for a tensor as floats, whatever the target. */
int64_t smp__float_bytes(const smp_tensor *tensor, int64_t batch);

/* On a GPU rows of n values go between devices in the tensor's type, filled up to whole floats:
 * these, the bytes of a row of each of so many devices (rooms of a workspace, which begin at
 * multiples of 64), and the workspace of an operator that sends a part to each and gets as much. */
int64_t smp__row_floats(smp_dtype dtype, int64_t n);
/* Floats of a row of n values of a tensor on the graph's target. */
int64_t smp__wire_floats(const smp_graph *graph, const smp_tensor *tensor, int64_t n);
int64_t smp__rows_bytes(smp_dtype dtype, int64_t devices, int64_t n);
int64_t smp__parts_room_bytes(const smp_tensor *whole, int64_t devices, int64_t batch);

/* Traffic beside that of a tensor copied: so many times over all that the devices send, which is
 * laid out for them, added up, put together. */
static inline double smp__exchange_traffic(double times, int64_t floats)
{
    return times * (double)sizeof(float) * (double)floats;
}

/* The group of a call, of one device where `devices` is 1; SMP_ERR_INPUT if there are others than
 * so many. */
smp_status smp__group_of(const smp_op_call *call, int64_t devices, const smp_op_group **out);

/* A call of the group begun, and what is under way ended; whole calls of one that knows no halves.
 * all_reduce: of `to`, from is NULL. */
smp_status smp__group_begin(const smp_op_group *group, smp_group_call call, const float *from,
                            float *to, int64_t n);
smp_status smp__group_finish(const smp_op_group *group);

#endif
