/* What follows from shapes alone: bytes of every op, and roofline times. Internal to the layer. */
#ifndef SMP_PROFILE_ESTIMATE_H
#define SMP_PROFILE_ESTIMATE_H

#include "graph/model/op.h"
#include "profile/profile.h"

enum { SMP__MAX_MICROBATCH = 1 << 20 };

/* Do the halves of an op's backward run? */
bool smp__runs_backward_input(const smp_graph *graph, const smp_op *op);
bool smp__runs_backward_weight(const smp_graph *graph, const smp_op *op);

/* Is it run forward by the kernel of the op before it (smp_op_fused)? */
bool smp__is_fused_second(const smp_graph *graph, const smp_op *op);
/* Then what it adds: its output and what it reads besides the output of that op. */
int64_t smp__fused_second_bytes(const smp_graph *graph, const smp_op *op, int64_t batch);
/* Is its backward_input run by the kernel of the op after it (smp_op_fused_backward)? */
bool smp__is_fused_backward(const smp_graph *graph, const smp_op *op);
/* Then all that it adds is that its input is read. */
double smp__fused_backward_us(const smp_graph *graph, const smp_op *op, int64_t batch,
                              double bytes_per_s);

/* Fills the four byte counts of cost[n_op]. A tied weight counts at every op that uses it. An
 * output of unknown shape counts 0. SMP_ERR_INPUT if a count overflows. */
smp_status smp__estimate_bytes(const smp_graph *graph, int64_t batch, smp_op_cost *cost);

/* SMP_ERR_INPUT: a device of the cluster has no rate for what the target multiplies in. */
smp_status smp__estimate_check_rates(const smp_graph *graph, const smp_cluster *cluster);

/* Fills the four times of one op: per part what smp_efficiency_us says. The forward of an op that
 * the one before it runs along moves smp__fused_second_bytes; the backward_input of one that the
 * op after it runs along reads its input. Rates and bytes are those of the graph's target;
 * SMP_ERR_INPUT if the device has no rate for it. What the devices of a group exchange is left
 * out. */
smp_status smp__estimate_times(const smp_graph *graph, const smp_op *op, int64_t batch,
                               const smp_device_spec *device, smp_op_cost *cost);

/* One message after the other, between the devices of a group of the cluster. Where these take
 * turns on their cores, each gets its core once for every message that it has for all others: until
 * then it waits for them. That they take turns at all (group_slowdown) is not in it. */
double smp__exchange_us(const smp_cluster *cluster, smp_op_exchange exchange);

/* Adds to the times of an op what the devices of a group exchange in it: less what runs beside the
 * op's own compute (smp_op_exchange.beside), where exchanges do (smp_group_overlaps), and a
 * call more for each piece of that. SMP_ERR_INPUT if that is not finite: the link is not
 * there. */
smp_status smp__add_exchanges(const smp_graph *graph, const smp_op *op, int64_t batch,
                              const smp_cluster *cluster, smp_op_cost *cost);

#endif
