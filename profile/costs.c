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

#include "graph/base/clock.h"

#include "profile/estimate.h"
#include "profile/op_cost.h"
#include "profile/overlap_costs.h"

/* Bytes an AdamW update moves per byte of weight: reads weight, gradient and two moments, writes
 * all but the gradient; in 16 bits it writes the copy of the weight too. Moments in bf16 are
 * half. */
static double optimizer_traffic(smp_target target)
{
    return 3.0 + 0.25 * 2 * SMP_PLANNED_STATES * smp_target_state_bytes(target) +
           (smp_precision_is_half(target.precision) ? 0.5 : 0.0);
}
/* The same of adding one gradient to another: two are read, one is written. */
#define REDUCE_TRAFFIC 3.0

#define MAX_TOTAL_BYTES ((int64_t)1 << 62)

enum { FROM_GIVEN = 1, FROM_PROFILE = 2, FROM_ROOFLINE = 4 };

/* "measured", "estimated from h100-80gb-sxm (fitted to 14 published steps)" */
static smp_status set_source(const smp__costing *c, smp_costs *costs)
{
    const smp_efficiency *described = c->device.efficiency;
    const char *name = c->cluster->device[0].name, *from = described ? described->from : "";
    const char *measured = c->sources & FROM_PROFILE ? "measured" : "";
    const char *given = c->sources & FROM_GIVEN || c->sources == 0 ? "given by the model" : "";
    char *estimated = smp_arena_printf(
        costs->arena, described ? "estimated from %s%s%s%s" : "estimated from the peaks of %s",
        name, *from ? " (" : "", from, *from ? ")" : "");
    if (!estimated)
        return SMP_ERR_NO_MEMORY;
    if (!(c->sources & FROM_ROOFLINE))
        *estimated = '\0';
    costs->source = smp_arena_printf(costs->arena, "%s%s%s%s%s", measured,
                                     *measured && (*estimated || *given) ? ", " : "", estimated,
                                     *estimated && *given ? ", " : "", given);
    costs->error = c->sources == FROM_ROOFLINE && described ? described->error : 0;
    return costs->source ? SMP_OK : SMP_ERR_NO_MEMORY;
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

/* Bytes of another micro-batch size, and of what is frozen, follow from the shapes where these are
 * known. */
static void take_profile(const smp_graph *graph, const smp_op *op, const smp_profile *profile,
                         int32_t index, int64_t microbatch_size, smp_op_cost *cost)
{
    const smp_op_cost *from = &profile->op[index];
    const double ratio = (double)microbatch_size / (double)profile->microbatch_size;
    cost->forward_us = from->forward_us * ratio;
    cost->backward_us = from->backward_us * ratio;
    cost->backward_input_us = from->backward_input_us * ratio;
    cost->backward_weight_us = from->backward_weight_us * ratio;
    cost->weight_bytes = from->weight_bytes;
    if ((microbatch_size != profile->microbatch_size || smp_graph_whole(graph)->freezes) &&
        graph->tensor[op->out].known)
        return;
    cost->stash_bytes = scale_bytes(from->stash_bytes, ratio);
    cost->output_bytes = scale_bytes(from->output_bytes, ratio);
    cost->workspace_bytes = scale_bytes(from->workspace_bytes, ratio);
}

/* Backward of what was measured by one algorithm and runs by the first, as one of another size of
 * micro-batch, or of a share of the heads, does: what both took stands in the profile. */
static void take_first(const smp__costing *c, const smp_graph *measured, const smp_op *from,
                       const smp_graph *graph, const smp_op *op, smp_op_cost *cost)
{
    const smp_profile *profile = c->profile;
    char name[SMP_GEMM_NAME_BYTES];
    if (!from->kind->product || cost->backward_input_us <= 0)
        return;
    from->kind->product(measured, from, profile->microbatch_size, name, sizeof name);
    const smp_gemm_choice *chosen = smp_gemm_choices_find(&profile->products, name);
    if (!chosen || chosen->us <= 0 || chosen->first_us <= chosen->us ||
        (op->kind->product && op->kind->product(graph, op, c->microbatch_size, name, sizeof name)))
        return;
    const double ratio = (double)c->microbatch_size / (double)profile->microbatch_size;
    const double more_us = ratio * (chosen->first_us - chosen->us);
    cost->backward_input_us += more_us;
    cost->backward_us += more_us;
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
    if (rated.flops_fp8 <= 0.0)
        rated.flops_fp8 = rated.flops_bf16;
    if (has_kernels(of))
        SMP_TRY(smp__estimate_times(graph, of, batch, &rated, &cost));
    else if (of->cost && !isnan(of->cost->forward_us))
        cost.backward_us = 2 * of->cost->forward_us;
    if (of->cost)
        take_given(graph, of, &cost);
    *us = cost.backward_us;
    return SMP_OK;
}

/* What a profile tells of its device beside its ops: traffic, at which gradients are added up. A
 * rate that the cluster lacks matters for nothing but how times are shared out. */
static smp_device_spec device_of(const smp_cluster *cluster, const smp_profile *profile)
{
    smp_device_spec device = cluster->device[0];
    if (!profile)
        return device;
    if (profile->reduce_bytes_per_s > 0)
        device.bytes_per_s =
            REDUCE_TRAFFIC * profile->reduce_bytes_per_s / smp_device_efficiency(&device)->memory;
    if (device.flops_bf16 <= 0)
        device.flops_bf16 = device.flops_fp32;
    if (device.flops_fp8 <= 0)
        device.flops_fp8 = device.flops_bf16;
    return device;
}

/* A profile of the split graph was measured on devices that took turns: it has their waits. */
smp__costing smp__costing_open(const smp_cluster *cluster, const smp_profile *profile,
                               bool of_whole, int64_t microbatch_size)
{
    const bool turns = cluster->group_slowdown > 1 && (!profile || of_whole);
    return (smp__costing){.cluster = cluster,
                          .profile = profile,
                          .of_whole = of_whole,
                          .device = device_of(cluster, profile),
                          .microbatch_size = microbatch_size,
                          .slowdown = turns ? cluster->group_slowdown : 1};
}

static smp_status estimate(const smp__costing *c, const smp_graph *graph, const smp_op *op,
                           smp_op_cost *cost)
{
    SMP_TRY(smp__estimate_times(graph, op, c->microbatch_size, &c->device, cost));
    return smp__add_exchanges(graph, op, c->microbatch_size, c->cluster, cost);
}

/* The share of what takes so long, by the roofline. */
static double share_of(double us, double part_us, double whole_us)
{
    return whole_us > 0 ? us * (part_us / whole_us) : us;
}

/* Costs a split op: the share, as both rooflines say, of what the whole one takes in the profile,
 * and what is exchanged in it. An op that the whole graph lacks is estimated. */
static smp_status take_share(smp__costing *c, const smp_graph *graph, const smp_op *op,
                             smp__op_origin origin, smp_op_cost *cost)
{
    smp_op_cost part = {0}, all = {0}, measured = *cost;
    if (origin.op < 0) {
        c->sources |= FROM_ROOFLINE;
        return estimate(c, graph, op, cost);
    }
    const smp_graph *whole = origin.whole;
    const smp_op *of = &whole->op[origin.op];
    take_profile(whole, of, c->profile, origin.measured, c->microbatch_size, &measured);
    take_first(c, whole, of, graph, op, &measured);
    c->sources |= FROM_PROFILE; /* wherever an op is split, there are new ones too */
    if (!has_kernels(op)) {     /* it is whole */
        *cost = measured;
        return SMP_OK;
    }
    SMP_TRY(smp__estimate_times(graph, op, c->microbatch_size, &c->device, &part));
    SMP_TRY(smp__estimate_times(whole, of, c->microbatch_size, &c->device, &all));
    cost->forward_us = share_of(measured.forward_us, part.forward_us, all.forward_us);
    if (smp__is_fused_second(whole, of) && !smp__is_fused_second(graph, op))
        cost->forward_us = part.forward_us; /* it has a kernel of its own */
    cost->backward_input_us =
        share_of(measured.backward_input_us, part.backward_input_us, all.backward_input_us);
    cost->backward_weight_us =
        share_of(measured.backward_weight_us, part.backward_weight_us, all.backward_weight_us);
    cost->backward_us =
        share_of(measured.backward_us, cost->backward_input_us + cost->backward_weight_us,
                 measured.backward_input_us + measured.backward_weight_us);
    const bool has_own = smp__is_fused_backward(whole, of)
                             ? !smp__is_fused_backward(graph, op)
                             : smp_op_passes_dout(whole, of) && !smp_op_passes_dout(graph, op);
    if (has_own) {
        cost->backward_us += part.backward_input_us - cost->backward_input_us;
        cost->backward_input_us = part.backward_input_us;
    }
    return smp__add_exchanges(graph, op, c->microbatch_size, c->cluster, cost);
}

static void slow_down(double times, smp_op_cost *cost)
{
    cost->forward_us *= times;
    cost->backward_us *= times;
    cost->backward_input_us *= times;
    cost->backward_weight_us *= times;
    cost->forward_exchange_us *= times;
    cost->backward_exchange_us *= times;
}

/* What frozen weights save of a backward that was measured or given with all of them trained. */
static void take_frozen(const smp_graph *graph, const smp_op *op, smp_op_cost *cost)
{
    const bool gradient = smp_op_has_gradient(graph, op);
    if (!smp__runs_backward_input(graph, op))
        cost->backward_input_us = 0;
    if (!smp__runs_backward_weight(graph, op) && !(gradient && op->hides_weights))
        cost->backward_weight_us = 0;
    cost->backward_us = cost->backward_input_us + cost->backward_weight_us;
    if (!gradient && !op->statistics && !graph->tensor[op->out].known)
        cost->stash_bytes = 0; /* nothing waits for a backward pass */
}

smp_status smp__op_cost(smp__costing *c, const smp_graph *graph, int32_t index,
                        smp__op_origin origin, smp_op_cost *cost)
{
    const smp_op *op = &graph->op[index];
    const bool forward_given = op->cost && !isnan(op->cost->forward_us);
    const bool backward_given = op->cost && !isnan(op->cost->backward_us);
    const unsigned sources = c->sources;
    if (c->of_whole) {
        SMP_TRY(take_share(c, graph, op, origin, cost));
    } else if (c->profile) {
        take_profile(graph, op, c->profile, origin.measured, c->microbatch_size, cost);
        take_first(c, graph, op, graph, op, cost);
        c->sources |= FROM_PROFILE;
    } else if (has_kernels(op)) {
        SMP_TRY(estimate(c, graph, op, cost));
        c->sources |= FROM_ROOFLINE;
    } else if (forward_given) {
        set_backward(graph, op, 2 * op->cost->forward_us, cost);
        c->sources |= FROM_ROOFLINE;
    } else {
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (%s): no cost is known: add `cost: {forward_us: ...}`",
                           op->name, op->kind->name);
    }
    if (forward_given && (backward_given || !graph->training))
        c->sources = sources; /* nothing of it is used */
    if (forward_given)
        c->sources |= FROM_GIVEN;
    if (op->cost)
        take_given(graph, op, cost);
    if (!graph->training) { /* nothing waits for a backward pass */
        cost->backward_us = cost->backward_input_us = cost->backward_weight_us = 0;
        cost->stash_bytes = 0;
    }
    if (graph->training && smp_graph_whole(graph)->freezes)
        take_frozen(graph, op, cost);
    slow_down(c->slowdown, cost);
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

static bool is_of(const smp_profile *profile, const smp_graph *graph)
{
    return profile->fingerprint == graph->fingerprint && profile->n_op == graph->n_op;
}

static smp_status check_profile(const smp_graph *graph, const smp_profile *profile, bool *of_whole)
{
    *of_whole = profile && !is_of(profile, graph) && graph->whole && is_of(profile, graph->whole);
    if (!profile)
        return SMP_OK;
    if (!is_of(profile, graph) && !*of_whole)
        return smp_fail(SMP_ERR_INPUT, "profile: was taken from another model than '%s'%s",
                        graph->name, graph->whole ? ", or from one that is split otherwise" : "");
    return smp_profile_check_target(profile, graph->target);
}

/* What random bits for the states of a weight take: a core more than the bytes that they save
 * (1.1 to 1.8 ns, Intel Xeon with AVX-512), a GPU nothing that memory would not take too. */
static double rounding_s(smp_target target)
{
    return target.bf16_states && !smp_backend_of(target)->own_memory ? 1.4e-9 : 0.0;
}

/* A rate that was measured, or follows from bandwidth, with states in another format. */
static double convert_rate(double bytes_per_s, smp_target from, smp_target to)
{
    if (from.bf16_states == to.bf16_states)
        return bytes_per_s;
    const double all_s = 4.0 / bytes_per_s; /* processors round faster than that: some is moved */
    const double moved_s = fmax(0.5 * all_s, all_s - rounding_s(from));
    return 4.0 / (moved_s * optimizer_traffic(to) / optimizer_traffic(from) + rounding_s(to));
}

double smp__optimizer_rate(const smp__costing *c, smp_target target)
{
    smp_target measured = target;
    measured.bf16_states = c->profile && c->profile->bf16_states;
    double bytes_per_s =
        smp_device_moved_per_s(&c->cluster->device[0]) / optimizer_traffic(measured);
    if (c->profile && c->profile->optimizer_bytes_per_s > 0)
        bytes_per_s = c->profile->optimizer_bytes_per_s;
    return convert_rate(bytes_per_s, measured, target) / c->slowdown;
}

double smp_host_update_rate(smp_target target)
{
    const smp_target host = {.backend = SMP_BACKEND_CPU, .bf16_states = target.bf16_states};
    return 4.0 / (4.0 * optimizer_traffic(host) / SMP_CORE_BYTES_PER_S + rounding_s(host));
}

/* What a host enqueues in a pass over all ops. */
typedef struct host_pass {
    double us;      /* of the device, without what it exchanges */
    double calls;   /* all of them */
    double apart;   /* of these, that are never part of a graph: exec/step/captures.h */
    double graphs;  /* of the others, without one of those between them */
    bool continues; /* the last call was of a graph */
} host_pass;

static void add_calls(host_pass *pass, double calls, bool apart, double us)
{
    if (calls <= 0)
        return;
    pass->us += us;
    pass->calls += calls;
    pass->apart += apart ? calls : 0;
    pass->graphs += !apart && !pass->continues;
    pass->continues = !apart;
}

static void add_op(const smp_graph *graph, int32_t i, const smp_op_cost *cost, host_pass *forward,
                   host_pass *backward)
{
    const bool random = graph->op[i].kind->random;
    const double halves = (cost->backward_input_us > 0) + (cost->backward_weight_us > 0);
    add_calls(forward, cost->forward_us > 0, random || cost->forward_exchange_us > 0,
              cost->forward_us - cost->forward_exchange_us);
    add_calls(backward, halves, random || cost->backward_exchange_us > 0,
              cost->backward_us - cost->backward_exchange_us);
}

/* How many times longer a pass takes as its host does not launch it in time. */
static double late_host(const host_pass *pass, double us, double host_us, bool captured,
                        const smp_launch_costs *launch)
{
    double wait_us = host_us * pass->calls;
    if (captured)
        wait_us = fmin(wait_us, host_us * pass->apart +
                                    smp_graphs_us(launch, pass->graphs, pass->calls - pass->apart));
    return us > 0 ? fmax(1, wait_us / us) : 1;
}

/* A pass is as long as its host takes to launch it, or as the device to run it. A call is taken for
 * a launch, of which it is one at least: what is captured here is captured in training. */
static void wait_for_host(const smp_graph *graph, double host_us, const smp_launch_costs *launch,
                          smp_op_cost *cost)
{
    host_pass f = {0}, b = {0};
    double forward_us = 0, backward_us = 0;
    for (int32_t i = 0; i < graph->n_op; i++) {
        forward_us += cost[i].forward_us;
        backward_us += cost[i].backward_us;
        add_op(graph, i, &cost[i], &f, &b);
    }
    const double launches = f.calls - f.apart + b.calls - b.apart;
    const bool captured = graph->training && smp_backend_of(graph->target)->captures &&
                          smp_graphs_pay(launch, f.graphs + b.graphs, launches, f.us + b.us);
    const double forward = late_host(&f, forward_us, host_us, captured, launch);
    const double backward = late_host(&b, backward_us, host_us, captured, launch);
    for (int32_t i = 0; i < graph->n_op; i++) {
        cost[i].forward_us *= forward;
        cost[i].backward_us *= backward;
        cost[i].backward_input_us *= backward;
        cost[i].backward_weight_us *= backward;
    }
}

static smp_status fill(smp__costing *c, const smp_graph *graph, smp_costs *costs)
{
    smp_op_cost *cost = SMP_ARENA_NEW(costs->arena, smp_op_cost, (size_t)graph->n_op);
    if (!cost)
        return SMP_ERR_NO_MEMORY;
    costs->op = cost;
    costs->n_op = graph->n_op;
    if (!c->profile)
        SMP_TRY(smp__estimate_check_rates(graph, c->cluster));
    SMP_TRY(smp__estimate_bytes(graph, costs->microbatch_size, cost));
    for (int32_t i = 0; i < graph->n_op; i++) {
        smp__op_origin origin = {.measured = i};
        if (c->of_whole) {
            origin.whole = graph->whole;
            origin.op = origin.measured = smp_graph_find_op(graph->whole, graph->op[i].name);
        }
        SMP_TRY(smp__op_cost(c, graph, i, origin, &cost[i]));
    }
    const double host_us = smp_device_efficiency(&c->device)->host_us;
    if (!c->profile && host_us > 0)
        wait_for_host(graph, host_us, &c->cluster->launch, cost);
    if (!c->profile || c->of_whole) /* else it was measured as it is run */
        SMP_TRY(smp__overlap_costs(graph, c->cluster, cost, costs));
    SMP_TRY(set_source(c, costs));
    costs->optimizer_bytes_per_s = smp__optimizer_rate(c, graph->target);
    return check_totals(costs);
}

smp_status smp_costs_build(const smp_graph *graph, const smp_cluster *cluster,
                           const smp_profile *profile, int64_t microbatch_size, smp_costs **out)
{
    smp_arena *arena;
    smp_costs *costs;
    smp_status status = SMP_ERR_NO_MEMORY;
    bool of_whole;
    SMP_TRY(check_profile(graph, profile, &of_whole));
    smp__costing costing = smp__costing_open(cluster, profile, of_whole, microbatch_size);
    arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_work_count(SMP_WORK_COST, graph->n_op);
    costs = SMP_ARENA_NEW(arena, smp_costs, 1);
    if (costs) {
        costs->arena = arena;
        costs->microbatch_size = microbatch_size;
        status = fill(&costing, graph, costs);
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

double smp_costs_summands_us(const smp_graph *graph, const smp_cluster *cluster, int64_t elements)
{
    const smp_op_exchange sum = smp_op_exchange_sum(graph->devices, elements);
    return fmax(cluster->group_slowdown, 1) * smp__exchange_us(cluster, sum);
}

int64_t smp_weight_element_bytes(const smp_graph *graph, int optimizer_states)
{
    const int floats = 1 + (graph->training ? 1 : 0);
    return 4 * floats + optimizer_states * smp_target_state_bytes(graph->target) +
           (smp_precision_is_half(graph->target.precision) ? 2 : 0);
}

double smp_device_slowdown(const smp_cluster *cluster, smp_precision precision, int device)
{
    const smp_device_spec *first = &cluster->device[0], *other = &cluster->device[device];
    const double a = smp_device_reached_flops(first, precision);
    const double b = smp_device_reached_flops(other, precision);
    return (a > 0 && b > 0 ? a / b : first->flops_fp32 / other->flops_fp32) /
           smp_device_speed(other);
}
