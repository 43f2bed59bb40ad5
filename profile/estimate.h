/* What follows from shapes alone: bytes of every op, and roofline times. Internal to the layer. */
#ifndef SMP_PROFILE_ESTIMATE_H
#define SMP_PROFILE_ESTIMATE_H

#include "graph/model/op.h"
#include "profile/profile.h"

enum { SMP__MAX_MICROBATCH = 1 << 20 };

/* Fixed cost of calling an operator once (a kernel launch or its like) in the roofline. */
#define SMP__CALL_US 1.0

/* Do the halves of an op's backward run? */
bool smp__runs_backward_input(const smp_graph *graph, const smp_op *op);
bool smp__runs_backward_weight(const smp_graph *graph, const smp_op *op);

/* Is it run forward by the kernel of the op before it (smp_op_fused)? */
bool smp__is_fused_second(const smp_graph *graph, const smp_op *op);

/* Fills the four byte counts of cost[n_op]. A tied weight counts at every op that uses it. An
 * output of unknown shape counts 0. SMP_ERR_INPUT if a count overflows. */
smp_status smp__estimate_bytes(const smp_graph *graph, int64_t batch, smp_op_cost *cost);

/* Fills the four times of one op: per part max(flops / rate, bytes / bandwidth) plus
 * SMP__CALL_US, 0 for a part without work. The forward of an op that the one before it runs
 * along writes its output. Rates and bytes are those of the graph's target; SMP_ERR_INPUT if the
 * device has no rate for it. What the devices of a group exchange is left out. */
smp_status smp__estimate_times(const smp_graph *graph, const smp_op *op, int64_t batch,
                               const smp_device_spec *device, smp_op_cost *cost);

/* One message after the other. */
double smp__exchange_us(const smp_link_spec *link, smp_op_exchange exchange);

/* Adds what the devices of a group, joined by such a link, exchange in the op. SMP_ERR_INPUT if
 * that is not finite: the link is not there. */
smp_status smp__add_exchanges(const smp_graph *graph, const smp_op *op, int64_t batch,
                              const smp_link_spec *link, smp_op_cost *cost);

#endif
