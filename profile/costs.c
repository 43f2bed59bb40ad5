/* The cost table: for each op its own `cost:`, else the profile, else the roofline. Bytes of an op
 * with kernels are never given: they follow from its shapes.
 *
 * A key that `cost:` leaves out keeps the value of the next source. An op without kernels (opaque)
 * has no roofline: its forward time must be given; its backward, where it is not, takes twice the
 * forward, as in dense layers, where both halves do the forward's arithmetic once. `cost:` and the
 * profile's times are per micro-batch; only the profile's are scaled when the size differs. Linear
 * in ops. */
#include "profile/costs.h"

#include <math.h>

#include "profile/estimate.h"

/* Bytes an AdamW update moves per byte of weight: reads weight, gradient and two moments, writes
 * all but the gradient; in bf16 it writes the copy of the weight too. */
#define OPTIMIZER_TRAFFIC 7.0
#define OPTIMIZER_TRAFFIC_BF16 7.5

#define MAX_TOTAL_BYTES ((int64_t)1 << 62)

enum { FROM_GIVEN = 1, FROM_PROFILE = 2, FROM_ROOFLINE = 4 };

static const char *source_name(unsigned sources)
{
    static const char *const names[] = {
        "given",    "given",           "profile",           "profile, given",
        "roofline", "roofline, given", "profile, roofline", "profile, roofline, given"};
    return names[sources & 7];
}

static bool has_kernels(const smp_op *op)
{
    return op->kind->cpu.forward || op->kind->work;
}

/* Splits a backward time like `cost` did, in equal halves if that does not say. */
static void set_backward(const smp_graph *graph, const smp_op *op, double backward_us,
                         smp_op_cost *cost)
{
    const double known_us = cost->backward_input_us + cost->backward_weight_us;
    double share = 0.5;
    if (known_us > 0)
        share = cost->backward_input_us / known_us;
    else if (has_kernels(op) ? !smp__runs_backward_weight(graph, op)
                             : op->n_param == 0 && !op->hides_weights)
        share = 1;
    cost->backward_us = backward_us;
    cost->backward_input_us = share * backward_us;
    cost->backward_weight_us = backward_us - cost->backward_input_us;
}

static int64_t scale_bytes(int64_t bytes, double ratio)
{
    const double scaled = ceil((double)bytes * ratio);
    return scaled < (double)MAX_TOTAL_BYTES ? (int64_t)scaled : MAX_TOTAL_BYTES;
}

/* Bytes of another micro-batch size follow from the shapes where these are known. */
static void take_profile(const smp_graph *graph, int32_t index, const smp_profile *profile,
                         int64_t microbatch_size, smp_op_cost *cost)
{
    const smp_op *op = &graph->op[index];
    const smp_op_cost *from = &profile->op[index];
    const double ratio = (double)microbatch_size / (double)profile->microbatch_size;
    cost->forward_us = from->forward_us * ratio;
    cost->backward_us = from->backward_us * ratio;
    cost->backward_input_us = from->backward_input_us * ratio;
    cost->backward_weight_us = from->backward_weight_us * ratio;
    cost->weight_bytes = from->weight_bytes;
    if (microbatch_size != profile->microbatch_size && graph->tensor[op->out].known)
        return;
    cost->stash_bytes = scale_bytes(from->stash_bytes, ratio);
    cost->output_bytes = scale_bytes(from->output_bytes, ratio);
    cost->workspace_bytes = scale_bytes(from->workspace_bytes, ratio);
}

static void take_given(const smp_graph *graph, const smp_op *op, smp_op_cost *cost)
{
    const smp_op_cost_override *given = op->cost;
    if (!isnan(given->forward_us))
        cost->forward_us = given->forward_us;
    if (!isnan(given->backward_us))
        set_backward(graph, op, given->backward_us, cost);
    if (given->weight_bytes >= 0)
        cost->weight_bytes = given->weight_bytes;
    if (given->stash_bytes >= 0)
        cost->stash_bytes = given->stash_bytes;
    if (given->output_bytes >= 0)
        cost->output_bytes = given->output_bytes;
}

smp_status smp_backward_estimate(const smp_graph *graph, int32_t op, int64_t batch,
                                 const smp_device_spec *device, double *us)
{
    const smp_op *of = &graph->op[op];
    smp_op_cost cost = {0};
    smp_device_spec rated = *device; /* one that was measured may lack a rate */
    if (rated.flops_bf16 <= 0.0)
        rated.flops_bf16 = rated.flops_fp32;
    if (has_kernels(of))
        SMP_TRY(smp__estimate_times(graph, of, batch, &rated, &cost));
    else if (of->cost && !isnan(of->cost->forward_us))
        cost.backward_us = 2 * of->cost->forward_us;
    if (of->cost)
        take_given(graph, of, &cost);
    *us = cost.backward_us;
    return SMP_OK;
}

static smp_status op_cost(const smp_graph *graph, int32_t index, const smp_device_spec *device,
                          const smp_profile *profile, int64_t microbatch_size, unsigned *sources,
                          smp_op_cost *cost)
{
    const smp_op *op = &graph->op[index];
    const bool forward_given = op->cost && !isnan(op->cost->forward_us);
    const bool backward_given = op->cost && !isnan(op->cost->backward_us);
    if (profile) {
        take_profile(graph, index, profile, microbatch_size, cost);
    } else if (has_kernels(op)) {
        SMP_TRY(smp__estimate_times(graph, op, microbatch_size, device, cost));
    } else if (forward_given) {
        set_backward(graph, op, 2 * op->cost->forward_us, cost);
    } else {
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (%s): no cost is known: add `cost: {forward_us: ...}`",
                           op->name, op->kind->name);
    }
    if (op->cost)
        take_given(graph, op, cost);
    if (!graph->training) { /* nothing waits for a backward pass */
        cost->backward_us = cost->backward_input_us = cost->backward_weight_us = 0;
        cost->stash_bytes = 0;
    }
    if (forward_given)
        *sources |= FROM_GIVEN;
    if (!forward_given || (graph->training && !backward_given))
        *sources |= profile ? FROM_PROFILE : FROM_ROOFLINE;
    return SMP_OK;
}

/* Sums over any set of ops fit 64 bits, so that later layers can add without checks. */
static smp_status check_totals(const smp_costs *costs)
{
    int64_t weight = 0, stash = 0, output = 0;
    for (int32_t i = 0; i < costs->n_op; i++) {
        const smp_op_cost *cost = &costs->op[i];
        if (__builtin_add_overflow(weight, cost->weight_bytes, &weight) ||
            __builtin_add_overflow(stash, cost->stash_bytes, &stash) ||
            __builtin_add_overflow(output, cost->output_bytes, &output) ||
            weight > MAX_TOTAL_BYTES || stash > MAX_TOTAL_BYTES || output > MAX_TOTAL_BYTES)
            return smp_fail(SMP_ERR_INPUT, "the weights, stashes or outputs of all ops together "
                                           "exceed 4096 PiB");
    }
    return SMP_OK;
}

static smp_status check_profile(const smp_graph *graph, const smp_profile *profile)
{
    if (profile->fingerprint != graph->fingerprint || profile->n_op != graph->n_op)
        return smp_fail(SMP_ERR_INPUT, "profile: was taken from another model than '%s'",
                        graph->name);
    return smp_profile_check_target(profile, graph->target);
}

static smp_status fill(const smp_graph *graph, const smp_cluster *cluster,
                       const smp_profile *profile, smp_costs *costs)
{
    const smp_device_spec *device = &cluster->device[0];
    unsigned sources = 0;
    smp_op_cost *cost = SMP_ARENA_NEW(costs->arena, smp_op_cost, (size_t)graph->n_op);
    if (!cost)
        return SMP_ERR_NO_MEMORY;
    costs->op = cost;
    costs->n_op = graph->n_op;
    SMP_TRY(smp__estimate_bytes(graph, costs->microbatch_size, cost));
    for (int32_t i = 0; i < graph->n_op; i++)
        SMP_TRY(op_cost(graph, i, device, profile, costs->microbatch_size, &sources, &cost[i]));
    costs->source = source_name(sources);
    bool bf16 = graph->target.precision == SMP_PRECISION_BF16;
    costs->optimizer_bytes_per_s =
        device->bytes_per_s / (bf16 ? OPTIMIZER_TRAFFIC_BF16 : OPTIMIZER_TRAFFIC);
    if (profile && profile->optimizer_bytes_per_s > 0)
        costs->optimizer_bytes_per_s = profile->optimizer_bytes_per_s;
    return check_totals(costs);
}

smp_status smp_costs_build(const smp_graph *graph, const smp_cluster *cluster,
                           const smp_profile *profile, int64_t microbatch_size, smp_costs **out)
{
    smp_arena *arena;
    smp_costs *costs;
    smp_status status = SMP_ERR_NO_MEMORY;
    if (profile)
        SMP_TRY(check_profile(graph, profile));
    arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    costs = SMP_ARENA_NEW(arena, smp_costs, 1);
    if (costs) {
        costs->arena = arena;
        costs->microbatch_size = microbatch_size;
        status = fill(graph, cluster, profile, costs);
    }
    if (status == SMP_OK)
        *out = costs;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp_costs_destroy(smp_costs *costs)
{
    if (costs)
        smp_arena_destroy(costs->arena);
}

int64_t smp_weight_element_bytes(const smp_graph *graph, int optimizer_states)
{
    const int floats = 1 + (graph->training ? 1 : 0) + optimizer_states;
    return 4 * floats + (graph->target.precision == SMP_PRECISION_BF16 ? 2 : 0);
}

double smp_device_slowdown(const smp_cluster *cluster, smp_precision precision, int device)
{
    const smp_device_spec *first = &cluster->device[0], *other = &cluster->device[device];
    const double a = smp_device_matrix_flops(first, precision);
    const double b = smp_device_matrix_flops(other, precision);
    return a > 0 && b > 0 ? a / b : first->flops_fp32 / other->flops_fp32;
}
