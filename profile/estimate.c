/* Bytes from shapes, times from the roofline model (Williams, Waterman, Patterson, "Roofline: an
 * insightful visual performance model", CACM 2009): an op is limited by arithmetic or by memory
 * traffic, whichever takes longer, at what the device reaches of its peaks (profile/device). Linear
 * in ops and their inputs. */
#include "profile/estimate.h"

#include <math.h>

#include "profile/overlap_costs.h"

bool smp__runs_backward_input(const smp_graph *graph, const smp_op *op)
{
    if (!graph->training || !smp_op_has_gradient(graph, op) || smp_op_passes_dout(graph, op))
        return false;
    for (int32_t i = 0; i < op->n_in; i++)
        if (graph->tensor[op->in[i]].needs_grad)
            return true;
    return false;
}

bool smp__runs_backward_weight(const smp_graph *graph, const smp_op *op)
{
    return graph->training && smp_op_has_trained(graph, op) &&
           (smp_op_has_gradient(graph, op) || op->statistics);
}

bool smp__is_fused_second(const smp_graph *graph, const smp_op *op)
{
    const int32_t index = (int32_t)(op - graph->op);
    return index > 0 && smp_op_fused(graph, index - 1);
}

int64_t smp__fused_second_bytes(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    int64_t bytes = smp_tensor_bytes(graph, op->out, batch);
    for (int32_t i = 1; i < op->n_in; i++)
        bytes += smp_tensor_bytes(graph, op->in[i], batch);
    return bytes;
}

bool smp__is_fused_backward(const smp_graph *graph, const smp_op *op)
{
    return smp_op_fused_backward(graph, (int32_t)(op - graph->op));
}

double smp__fused_backward_us(const smp_graph *graph, const smp_op *op, int64_t batch,
                              double bytes_per_s)
{
    return (double)smp_tensor_bytes(graph, op->in[0], batch) / bytes_per_s * 1e6;
}

static smp_status too_large(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    return smp_fail_at(smp_op_where(graph, op),
                       "op '%s' (%s): its buffers for a micro-batch of %lld samples have no 64-bit "
                       "size",
                       op->name, op->kind->name, (long long)batch);
}

/* *total += a * b; false on overflow. */
static bool add_product(int64_t *total, int64_t a, int64_t b)
{
    int64_t product;
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_add_overflow(*total, product, total);
}

static bool tensor_bytes(const smp_graph *graph, int32_t index, int64_t batch, int64_t *bytes)
{
    const smp_tensor *tensor = &graph->tensor[index];
    const int64_t copies = tensor->batched ? batch : 1;
    *bytes = tensor->known ? 0 : tensor->bytes;
    if (!tensor->known)
        return true;
    return add_product(bytes, tensor->elements, smp_dtype_bytes(tensor->dtype) * copies);
}

/* Charges a tensor to its producer, the first time. */
static bool stash_tensor(const smp_graph *graph, int32_t index, int64_t batch, bool *stashed,
                         smp_op_cost *cost)
{
    const int32_t producer = graph->tensor[index].producer;
    int64_t bytes;
    if (producer < 0 || stashed[index])
        return true;
    stashed[index] = true;
    return tensor_bytes(graph, index, batch, &bytes) &&
           add_product(&cost[producer].stash_bytes, bytes, 1);
}

/* What the backward of `op` reads. */
static bool stash_op(const smp_graph *graph, int32_t index, const smp_op_needs *needs,
                     int64_t batch, bool *stashed, smp_op_cost *cost)
{
    const smp_op *op = &graph->op[index];
    const bool input = smp__runs_backward_input(graph, op);
    const bool weight = smp__runs_backward_weight(graph, op);
    const uint32_t reads = smp_op_fused_reads(graph, index, needs->input_grad_in);
    const uint32_t mask = (input ? reads : 0) | (weight ? needs->weight_grad_in : 0);
    for (int32_t i = 0; i < op->n_in && i < 32; i++)
        if (mask >> i & 1 && !stash_tensor(graph, op->in[i], batch, stashed, cost))
            return false;
    for (int32_t k = 0; k < op->n_out && input; k++)
        if (needs->input_grad_out >> k & 1 &&
            !stash_tensor(graph, op->out + k, batch, stashed, cost))
            return false;
    if (!needs->aux_of_backward &&
        ((input && needs->input_grad_aux) || (weight && needs->weight_grad_aux)))
        return add_product(&cost[index].stash_bytes, needs->aux_bytes, batch);
    return true;
}

static bool op_bytes(const smp_graph *graph, int32_t index, int64_t batch, bool *stashed,
                     smp_op_cost *cost)
{
    const smp_op *op = &graph->op[index];
    smp_op_needs needs;
    for (int32_t i = 0; i < op->n_param; i++)
        if (!add_product(&cost[index].weight_bytes, graph->param[op->param[i]].elements, 4))
            return false;
    smp_op_needs_get(graph, op, batch, &needs);
    if (needs.workspace_bytes < 0)
        return false;
    cost[index].workspace_bytes = needs.workspace_bytes;
    cost[index].output_bytes = 0;
    for (int32_t t = op->out; t < op->out + op->n_out; t++) {
        int64_t bytes;
        if (!tensor_bytes(graph, t, batch, &bytes) ||
            !add_product(&cost[index].output_bytes, bytes, 1))
            return false;
    }
    return stash_op(graph, index, &needs, batch, stashed, cost);
}

smp_status smp__estimate_bytes(const smp_graph *graph, int64_t batch, smp_op_cost *cost)
{
    smp_arena *scratch;
    bool *stashed;
    smp_status status = SMP_OK;
    if (batch < 1 || batch > SMP__MAX_MICROBATCH)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size: got %lld, expected 1 to %d",
                        (long long)batch, SMP__MAX_MICROBATCH);
    scratch = smp_arena_create();
    if (!scratch)
        return SMP_ERR_NO_MEMORY;
    stashed = SMP_ARENA_NEW(scratch, bool, (size_t)graph->n_tensor);
    if (!stashed) {
        smp_arena_destroy(scratch);
        return SMP_ERR_NO_MEMORY;
    }
    for (int32_t i = 0; i < graph->n_op; i++)
        cost[i].weight_bytes = cost[i].stash_bytes = 0;
    for (int32_t i = 0; i < graph->n_op && status == SMP_OK; i++)
        if (!op_bytes(graph, i, batch, stashed, cost))
            status = too_large(graph, &graph->op[i], batch);
    smp_arena_destroy(scratch);
    return status;
}

/* What the factors of an op's products are in where they are multiplied: a CPU has fp8 as values of
 * bf16. */
static smp_precision factors_of(const smp_graph *graph, const smp_op_work *work)
{
    const smp_precision precision = graph->target.precision;
    const bool fp8 = work->fp8 && smp_backend_of(graph->target)->own_memory;
    return precision == SMP_PRECISION_FP8 && !fp8 ? SMP_PRECISION_BF16 : precision;
}

static smp_status fail_rate(const smp_device_spec *device, smp_precision precision)
{
    const char *name = smp_precision_name(precision);
    return smp_fail(SMP_ERR_INPUT,
                    "device '%s' of the cluster has no rate `compute: %s`, without which times "
                    "cannot be estimated in %s: give it, or measured times (--profile)",
                    device->name, name, name);
}

/* What other devices than the first one take is a share of that: of bf16 in place of a missing
 * fp8, which they could not run. */
smp_status smp__estimate_check_rates(const smp_graph *graph, const smp_cluster *cluster)
{
    const smp_target target = graph->target;
    if (target.precision != SMP_PRECISION_FP8 || !smp_backend_of(target)->own_memory)
        return SMP_OK;
    for (int d = 0; d < smp_cluster_devices(cluster); d++)
        if (cluster->device[d].flops_fp8 <= 0)
            return fail_rate(&cluster->device[d], target.precision);
    return SMP_OK;
}

/* Arithmetic per second of an op. A card that is not said to have fp8 has none. */
static smp_status rate_of(const smp_graph *graph, const smp_op_work *work,
                          const smp_device_spec *device, double *flops_per_s)
{
    const smp_precision precision = factors_of(graph, work);
    *flops_per_s = work->kind == SMP_OP_PLAIN       ? device->flops_fp32
                   : precision == SMP_PRECISION_FP8 ? device->flops_fp8
                                                    : smp_device_matrix_flops(device, precision);
    return *flops_per_s > 0 ? SMP_OK : fail_rate(device, precision);
}

static smp_status check_finite(const smp_graph *graph, const smp_op *op, const smp_op_cost *cost)
{
    if (isfinite(cost->forward_us) && isfinite(cost->backward_us))
        return SMP_OK;
    return smp_fail_at(smp_op_where(graph, op), "op '%s' (%s): its estimated time is not finite",
                       op->name, op->kind->name);
}

smp_status smp__estimate_times(const smp_graph *graph, const smp_op *op, int64_t batch,
                               const smp_device_spec *device, smp_op_cost *cost)
{
    smp_op_work work;
    double rate;
    smp_op_work_get(graph, op, batch, &work);
    SMP_TRY(rate_of(graph, &work, device, &rate));
    const smp_efficiency *of = smp_device_efficiency(device);
    const double moved_per_s = smp_device_moved_per_s(device);
    cost->forward_us = smp_efficiency_us(of, &work, SMP_OP_FORWARD, rate, device->bytes_per_s);
    if (smp__is_fused_second(graph, op))
        cost->forward_us = (double)smp__fused_second_bytes(graph, op, batch) / moved_per_s * 1e6;
    cost->backward_input_us =
        smp__runs_backward_input(graph, op)
            ? smp_efficiency_us(of, &work, SMP_OP_BACKWARD_INPUT, rate, device->bytes_per_s)
            : 0;
    if (smp__is_fused_backward(graph, op))
        cost->backward_input_us = smp__fused_backward_us(graph, op, batch, moved_per_s);
    cost->backward_weight_us =
        smp__runs_backward_weight(graph, op)
            ? smp_efficiency_us(of, &work, SMP_OP_BACKWARD_WEIGHT, rate, device->bytes_per_s)
            : 0;
    cost->backward_us = cost->backward_input_us + cost->backward_weight_us;
    return check_finite(graph, op, cost);
}

double smp_model_flops(const smp_graph *graph, int64_t microbatch_size)
{
    double flops = 0.0;
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        smp_op_work work;
        smp_op_work_get(graph, op, microbatch_size, &work);
        double backward = 0.0;
        if (smp__runs_backward_input(graph, op))
            backward += work.backward_input_flops;
        if (smp__runs_backward_weight(graph, op))
            backward += work.backward_weight_flops;
        if (work.kind !=
            SMP_OP_PLAIN) /* attention that makes its scores again does more than twice as much */
            flops += work.forward_flops + fmin(backward, 2.0 * work.forward_flops);
    }
    return flops / (double)microbatch_size;
}

double smp__exchange_us(const smp_cluster *cluster, smp_op_exchange exchange)
{
    if (exchange.messages == 0)
        return 0;
    const double us = (double)exchange.messages * smp_link_us(&cluster->intra_node, exchange.bytes);
    if (cluster->group_slowdown <= 1 || cluster->group <= 1)
        return us;
    const int others = cluster->group - 1;
    return us + (double)((exchange.messages + others - 1) / others) * cluster->core_switch_us;
}

/* With compute of so long in the call: each piece hides its message, or is hidden by it, and is a
 * call of its own. */
static double exposed_us(const smp_cluster *cluster, smp_op_exchange exchange, double compute_us)
{
    const smp_efficiency *device = smp_device_efficiency(&cluster->device[0]);
    const double us =
        smp__exchange_us(cluster, exchange) + (double)exchange.beside * device->call_us;
    if (exchange.beside == 0 || !smp_group_overlaps(cluster))
        return us;
    const double message_us = smp__exchange_us(cluster, exchange) / (double)exchange.messages;
    const double piece_us = compute_us / (double)(exchange.beside + 1);
    const double beside_us = (double)exchange.beside * fmin(message_us, piece_us);
    return us - (1 - device->overlap_loss) * beside_us;
}

smp_status smp__add_exchanges(const smp_graph *graph, const smp_op *op, int64_t batch,
                              const smp_cluster *cluster, smp_op_cost *cost)
{
    smp_op_work work;
    smp_op_work_get(graph, op, batch, &work);
    cost->forward_exchange_us = exposed_us(cluster, work.forward_exchange, cost->forward_us);
    cost->forward_us += cost->forward_exchange_us;
    if (smp__runs_backward_input(graph, op)) {
        const double us =
            exposed_us(cluster, work.backward_input_exchange, cost->backward_input_us);
        cost->backward_input_us += us;
        cost->backward_us += us;
        cost->backward_exchange_us = us;
    }
    return check_finite(graph, op, cost);
}
