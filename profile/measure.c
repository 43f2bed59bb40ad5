/* Measurement: the median of several samples per distinct op and part, a sample being the mean of
 * as many runs as fill min_sample_us.
 *
 * Ops that cannot differ in time are measured once (profile/distinct.h). Samples are taken in
 * rounds over all distinct ops, so that a disturbance of some seconds hits few samples of any one
 * op, and the median drops it. Ops that scatter all the same are measured again. Ranks take the
 * same path through this file: the probe's sync stands before every measurement, and a rank that
 * failed in between makes all return there. Linear in ops, plus the measuring itself. */
#include "profile/measure.h"

#include <math.h>
#include <stdlib.h>

#include "graph/base/clock.h"
#include "profile/distinct.h"
#include "profile/estimate.h"

enum { CORE_TURNS = 100, ROUNDS = 3, PARTS = 3, MAX_REPEAT = 1000000, MAX_SAMPLES = 1000 };

/* A sample that takes longer than this is taken once per round only. */
#define LONG_SAMPLE_US 2e5

/* Of the time that a run takes on the clock at least this part counts. */
enum { SPENT_FOR_TOLD = 16 };

/* Sizes for rates: large enough to leave the caches where training does, small enough to be
 * quick. */
enum { MIN_ELEMENTS = 1 << 14, MAX_ELEMENTS = 1 << 22 };

typedef struct series {
    double *sample;
    int n;
    int repeat;          /* 0: not calibrated yet */
    double us, range_us; /* of the least scattered measurement so far: median, between quartiles */
    bool known;
} series;

typedef struct op_class {
    int32_t op; /* the one that is measured */
    series part[PARTS];
} op_class;

typedef struct session {
    const smp_graph *graph;
    const smp_probe *probe;
    const smp_profile_options *options;
    smp_arena *arena; /* scratch */
    int rounds, samples_per_round;
    smp__distinct distinct;
    op_class *classes; /* [distinct.n] */
    int32_t *list;     /* [distinct.n] scratch */
} session;

/* What one timing call measures. */
typedef struct target {
    enum { TARGET_PART, TARGET_OPTIMIZER, TARGET_REDUCE } kind;
    smp_op_part part;
    int64_t size; /* elements */
} target;

static smp_status time_target(const smp_probe *probe, const target *what, int repeat, double *us)
{
    *us = 0;
    switch (what->kind) {
    case TARGET_PART:
        return probe->time(probe->context, what->part, repeat, us);
    case TARGET_OPTIMIZER:
        return probe->time_optimizer(probe->context, what->size, repeat, us);
    case TARGET_REDUCE:
        break;
    }
    return probe->time_reduce(probe->context, what->size, repeat, us);
}

smp_status smp__sync_ranks(const smp_probe *probe, smp_status status)
{
    return probe->sync ? probe->sync(probe->context, status) : status;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double smp__median(double *values, int64_t n)
{
    if (n == 0)
        return 0;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static double quantile(const double *sorted, int64_t n, double share)
{
    const double at = share * (double)(n - 1);
    const int64_t below = (int64_t)at;
    const int64_t above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

double smp__quartile_range(double *values, int64_t n)
{
    if (n == 0)
        return 0;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return quantile(values, n, 0.75) - quantile(values, n, 0.25);
}

double smp__middle_mean(double *values, int64_t n)
{
    double sum = 0;
    if (n < 4)
        return smp__median(values, n);
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    for (int64_t i = n / 4; i < n - n / 4; i++)
        sum += values[i];
    return sum / (double)(n - n / 4 * 2);
}

double smp__scatter(double range, double middle)
{
    return fmin(1.0, nearbyint(1e4 * range / (1.349 * middle)) / 1e4);
}

double smp__to_ns(double us)
{
    return nearbyint(us * 1e3) / 1e3;
}

/* Runs that fill a sample. The first estimate is one run, the second a first full sample. What is
 * told may be next to nothing, as the difference of two times is: runs count by the clock, too. */
static smp_status calibrate(const session *s, const target *what, int *repeat)
{
    double us;
    *repeat = 1;
    for (int pass = 0; pass < 2; pass++) {
        const double begin_s = smp_clock_s();
        SMP_TRY(time_target(s->probe, what, *repeat, &us));
        const double spent_us = 1e6 * (smp_clock_s() - begin_s) / *repeat;
        const double run_us = fmax(us, spent_us / SPENT_FOR_TOLD);
        const double wanted = run_us > 0 ? ceil(s->options->min_sample_us / run_us) : MAX_REPEAT;
        *repeat = wanted < 1 ? 1 : wanted > MAX_REPEAT ? MAX_REPEAT : (int)wanted;
    }
    return SMP_OK;
}

/* One round: a warm-up, then samples into the series. */
static smp_status take_samples(const session *s, const target *what, series *into)
{
    double us;
    SMP_TRY(time_target(s->probe, what, 1, &us));
    if (into->repeat == 0)
        SMP_TRY(calibrate(s, what, &into->repeat));
    for (int i = 0; i < s->samples_per_round; i++) {
        SMP_TRY(time_target(s->probe, what, into->repeat, &us));
        into->sample[into->n++] = us;
        if (us * into->repeat > LONG_SAMPLE_US)
            break;
    }
    return SMP_OK;
}

static smp_status series_create(const session *s, series *out)
{
    *out = (series){0};
    out->sample = SMP_ARENA_NEW(s->arena, double, (size_t)(s->rounds * s->samples_per_round));
    return out->sample ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status create_classes(session *s)
{
    SMP_TRY(smp__distinct_ops(s->graph, s->arena, &s->distinct));
    s->classes = SMP_ARENA_NEW(s->arena, op_class, (size_t)s->distinct.n);
    s->list = SMP_ARENA_NEW(s->arena, int32_t, (size_t)s->distinct.n);
    if (!s->classes || !s->list)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < s->distinct.n; i++) {
        s->classes[i].op = s->distinct.first[i];
        for (int part = 0; part < PARTS; part++)
            SMP_TRY(series_create(s, &s->classes[i].part[part]));
    }
    return SMP_OK;
}

static smp_status sample_class(const session *s, op_class *class)
{
    const smp_op *op = &s->graph->op[class->op];
    const bool second = s->probe->fuses && smp__is_fused_second(s->graph, op);
    const bool behind = s->probe->fuses && smp__is_fused_backward(s->graph, op);
    const bool runs[PARTS] = {!second, !behind && smp__runs_backward_input(s->graph, op),
                              smp__runs_backward_weight(s->graph, op)};
    for (int part = 0; part < PARTS; part++) {
        const target what = {.kind = TARGET_PART, .part = (smp_op_part)part};
        if (runs[part])
            SMP_TRY(take_samples(s, &what, &class->part[part]));
    }
    return SMP_OK;
}

/* Its samples make a measurement, which counts unless an earlier one scatters less. */
static void settle(series *part)
{
    const double range_us = smp__quartile_range(part->sample, part->n);
    const double us = smp__median(part->sample, part->n);
    if (part->n > 0 && (!part->known || range_us * part->us < part->range_us * us)) {
        part->us = us;
        part->range_us = range_us;
        part->known = true;
    }
    part->n = 0;
}

static double spread_of(const op_class *class)
{
    double us = 0, range_us = 0;
    for (int part = 0; part < PARTS; part++) {
        us += class->part[part].us;
        range_us += class->part[part].range_us;
    }
    return us > 0 ? range_us / us : 0;
}

/* How the times of what takes longest scatter, which is how an action's do: the deviation that the
 * quartiles of normal samples tell, over their mean; each class by its time in the model. */
static double scatter_of(const session *s)
{
    double all_us = 0, range_us = 0;
    for (int32_t i = 0; i < s->graph->n_op; i++)
        for (int part = 0; part < PARTS; part++) {
            const series *of = &s->classes[s->distinct.class_of[i]].part[part];
            all_us += of->us;
            range_us += of->range_us;
        }
    return all_us > 0 ? smp__scatter(range_us, all_us) : 0;
}

/* All samples of some classes. */
static smp_status measure_classes(session *s, const int32_t *list, int32_t n, bool first)
{
    const smp_probe *probe = s->probe;
    const int total = s->rounds * (int)n;
    smp_status status = SMP_OK;
    for (int i = 0; i < total; i++) {
        op_class *class = &s->classes[list[i % n]];
        bool opened = false;
        if (status == SMP_OK) {
            status = probe->open(probe->context, s->graph, &s->graph->op[class->op],
                                 s->options->microbatch_size);
            opened = status == SMP_OK;
        }
        status = smp__sync_ranks(s->probe, status);
        const bool all_opened = status == SMP_OK;
        if (all_opened)
            status =
                smp_fail_context(sample_class(s, class), "op '%s'", s->graph->op[class->op].name);
        if (opened)
            probe->close(probe->context);
        if (!all_opened)
            return status;
        if (first && s->options->progress)
            s->options->progress(s->options->progress_context, i + 1, total);
    }
    for (int32_t i = 0; i < n; i++)
        for (int part = 0; part < PARTS; part++)
            settle(&s->classes[list[i]].part[part]);
    return smp__sync_ranks(s->probe, status);
}

/* Those whose times scatter on rank 0, which are the ones that are written. */
static smp_status list_scattered(const session *s, int32_t *list, int32_t *n)
{
    *n = 0;
    for (int32_t i = 0; i < s->distinct.n; i++)
        if (spread_of(&s->classes[i]) > s->options->most_spread)
            list[(*n)++] = i;
    if (!s->probe->share)
        return SMP_OK;
    SMP_TRY(s->probe->share(s->probe->context, n, sizeof *n));
    return s->probe->share(s->probe->context, list, s->distinct.n * (int64_t)sizeof *list);
}

static smp_status measure_ops(session *s)
{
    int32_t n = s->distinct.n, *list = s->list;
    for (int32_t i = 0; i < n; i++)
        list[i] = i;
    SMP_TRY(measure_classes(s, list, n, true));
    for (int again = 0; again < s->options->again; again++) {
        SMP_TRY(list_scattered(s, list, &n));
        if (n == 0)
            break;
        if (s->options->again_progress)
            s->options->again_progress(s->options->progress_context, n, s->distinct.n);
        SMP_TRY(measure_classes(s, list, n, false));
    }
    return SMP_OK;
}

/* Bytes per second of an element-wise update. */
static smp_status measure_rate(const session *s, int kind, int64_t elements, double element_bytes,
                               double *bytes_per_s)
{
    target what = {.kind = kind, .size = elements};
    series values;
    smp_status status;
    if (what.size < MIN_ELEMENTS)
        what.size = MIN_ELEMENTS;
    if (what.size > MAX_ELEMENTS)
        what.size = MAX_ELEMENTS;
    status = series_create(s, &values);
    for (int round = 0; round < s->rounds && status == SMP_OK; round++)
        status = take_samples(s, &what, &values);
    status = smp__sync_ranks(s->probe, status);
    if (status == SMP_OK) {
        const double us = smp__median(values.sample, values.n);
        *bytes_per_s = us > 0 ? nearbyint(1e6 * element_bytes * (double)what.size / us) : 0;
    }
    return status;
}

static int64_t total_weights(const smp_graph *graph)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < graph->n_param && elements < MAX_ELEMENTS; i++)
        elements += graph->param[i].elements;
    return elements;
}

/* Gradient contributions to a tensor. */
static int32_t contributions(const smp_graph *graph, int32_t tensor)
{
    int32_t n = 0;
    for (int64_t i = graph->consumer_begin[tensor]; i < graph->consumer_begin[tensor + 1]; i++)
        n += smp_op_has_gradient(graph, &graph->op[graph->consumer[i].op]);
    return n;
}

static int64_t largest_fan_out(const session *s)
{
    int64_t largest = 0;
    for (int32_t t = 0; t < s->graph->n_tensor; t++) {
        const smp_tensor *tensor = &s->graph->tensor[t];
        if (tensor->needs_grad && tensor->elements > largest && contributions(s->graph, t) > 1)
            largest = tensor->elements;
    }
    return largest > MAX_ELEMENTS ? MAX_ELEMENTS : largest * s->options->microbatch_size;
}

static smp_status measure_rates(const session *s, smp_profile *profile)
{
    if (!s->graph->training)
        return SMP_OK;
    if (s->probe->time_optimizer && s->graph->n_param > 0)
        SMP_TRY(measure_rate(s, TARGET_OPTIMIZER, total_weights(s->graph), 4,
                             &profile->optimizer_bytes_per_s));
    if (s->probe->time_reduce)
        SMP_TRY(measure_rate(s, TARGET_REDUCE, largest_fan_out(s),
                             smp_dtype_bytes(smp_precision_dtype(s->graph->target.precision)),
                             &profile->reduce_bytes_per_s));
    return SMP_OK;
}

/* All but the first contribution to a tensor's gradient are added to it; the first in the order of
 * addition is that of the last consumer. */
static void charge_additions(const session *s, double bytes_per_s, smp_op_cost *cost)
{
    const smp_graph *graph = s->graph;
    for (int32_t t = 0; t < graph->n_tensor && bytes_per_s > 0; t++) {
        const smp_tensor *tensor = &graph->tensor[t];
        int32_t left = tensor->needs_grad ? contributions(graph, t) : 0;
        const double bytes = (double)smp_dtype_bytes(tensor->dtype) * (double)tensor->elements *
                             (double)(tensor->batched ? s->options->microbatch_size : 1);
        for (int64_t i = graph->consumer_begin[t]; left > 1; i++) {
            const int32_t op = graph->consumer[i].op;
            if (!smp_op_has_gradient(graph, &graph->op[op]))
                continue;
            cost[op].backward_input_us += bytes / bytes_per_s * 1e6;
            left--;
        }
    }
}

/* A pair that may be parted: its forward time is shared out by the bytes that each op moves. */
static void share_pair(const session *s, int32_t op, smp_op_cost *cost)
{
    const smp_graph *graph = s->graph;
    const smp_op *first = &graph->op[op];
    const int64_t batch = s->options->microbatch_size;
    if (!s->probe->fuses || !smp_op_fused(graph, op) || smp_op_tied_forward(graph, op))
        return;
    double own = (double)smp_tensor_bytes(graph, first->out, batch);
    const double next = (double)smp__fused_second_bytes(graph, first + 1, batch);
    for (int32_t i = 0; i < first->n_in; i++)
        own += (double)smp_tensor_bytes(graph, first->in[i], batch);
    const double us = cost[op].forward_us;
    cost[op].forward_us = smp__to_ns(us * own / (own + next));
    cost[op + 1].forward_us = smp__to_ns(us - cost[op].forward_us);
}

static smp_status assemble(const session *s, smp_profile *profile)
{
    const smp_graph *graph = s->graph;
    const size_t n = (size_t)graph->n_op;
    const char **names = SMP_ARENA_NEW(profile->arena, const char *, n);
    smp_op_cost *cost = SMP_ARENA_NEW(profile->arena, smp_op_cost, n);
    double *spread = SMP_ARENA_NEW(profile->arena, double, n);
    smp_graph chosen = *graph; /* to be computed as was fastest */
    if (!names || !cost || !spread)
        return SMP_ERR_NO_MEMORY;
    if (s->probe->products)
        SMP_TRY(s->probe->products(s->probe->context, profile->arena, &profile->products));
    chosen.products = &profile->products;
    SMP_TRY(smp__estimate_bytes(&chosen, s->options->microbatch_size, cost));
    for (size_t i = 0; i < n; i++) {
        names[i] = smp_arena_strdup(profile->arena, graph->op[i].name);
        if (!names[i])
            return SMP_ERR_NO_MEMORY;
        const op_class *class = &s->classes[s->distinct.class_of[i]];
        cost[i].forward_us = smp__to_ns(class->part[SMP_OP_FORWARD].us);
        cost[i].backward_input_us = smp__to_ns(class->part[SMP_OP_BACKWARD_INPUT].us);
        cost[i].backward_weight_us = smp__to_ns(class->part[SMP_OP_BACKWARD_WEIGHT].us);
        spread[i] = smp__to_ns(spread_of(class));
    }
    for (int32_t i = 0; i < graph->n_op; i++)
        share_pair(s, i, cost);
    charge_additions(s, profile->reduce_bytes_per_s, cost);
    for (size_t i = 0; i < n; i++) {
        cost[i].backward_input_us = smp__to_ns(cost[i].backward_input_us);
        cost[i].backward_us = smp__to_ns(cost[i].backward_input_us + cost[i].backward_weight_us);
    }
    profile->scatter = scatter_of(s);
    profile->n_op = graph->n_op;
    profile->name = names;
    profile->op = cost;
    profile->spread = spread;
    return SMP_OK;
}

static smp_status describe(const session *s, smp_profile *profile)
{
    profile->model = smp_arena_strdup(profile->arena, s->graph->name);
    profile->device = smp_arena_strdup(profile->arena, s->probe->device);
    profile->dtype = smp_precision_name(s->graph->target.precision);
    profile->memory_bytes = s->probe->memory_bytes;
    profile->fingerprint = s->graph->fingerprint;
    profile->microbatch_size = s->options->microbatch_size;
    return profile->model && profile->device ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status measure_core_switch(const session *s, smp_profile *profile)
{
    smp_status status = SMP_OK;
    double us = 0;
    if (s->probe->time_core_switch)
        status = s->probe->time_core_switch(s->probe->context, CORE_TURNS, &us);
    profile->core_switch_us = smp__to_ns(us);
    return smp__sync_ranks(s->probe, status);
}

static smp_status measure_keeping(const session *s, smp_profile *profile)
{
    smp_status status = SMP_OK;
    if (s->probe->time_keeping)
        status = s->probe->time_keeping(s->probe->context, &profile->keep_bytes_per_s);
    profile->keep_bytes_per_s = floor(profile->keep_bytes_per_s);
    return smp__sync_ranks(s->probe, status);
}

static smp_status measure_launches(const session *s, smp_profile *profile)
{
    smp_launch_costs *launch = &profile->launch;
    smp_status status = SMP_OK;
    if (s->probe->time_launches && s->graph->training)
        status = s->probe->time_launches(s->probe->context, launch);
    launch->kernel_us = smp__to_ns(launch->kernel_us);
    launch->graph_us = smp__to_ns(launch->graph_us);
    launch->graph_kernel_us = smp__to_ns(launch->graph_kernel_us);
    return smp__sync_ranks(s->probe, status);
}

/* At the end, when every kernel has run. */
static smp_status measure_libraries(const session *s, smp_profile *profile)
{
    smp_status status = SMP_OK;
    if (s->probe->library_bytes)
        status = s->probe->library_bytes(s->probe->context, &profile->library_bytes);
    profile->memory_bytes -= profile->library_bytes;
    return smp__sync_ranks(s->probe, status);
}

static smp_status measure_all(session *s, smp_profile *profile)
{
    smp_status status = describe(s, profile);
    if (status == SMP_OK)
        status = create_classes(s);
    SMP_TRY(smp__sync_ranks(s->probe, status));
    SMP_TRY(measure_ops(s));
    SMP_TRY(measure_rates(s, profile));
    SMP_TRY(measure_core_switch(s, profile));
    SMP_TRY(measure_keeping(s, profile));
    SMP_TRY(measure_launches(s, profile));
    if (s->options->links)
        SMP_TRY(smp__measure_links(s->probe, s->options, s->arena, profile));
    SMP_TRY(measure_libraries(s, profile));
    return smp__sync_ranks(s->probe, assemble(s, profile));
}

static smp_status check_options(const smp_profile_options *options)
{
    if (options->microbatch_size < 1 || options->microbatch_size > SMP__MAX_MICROBATCH)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size: got %lld, expected 1 to %d",
                        (long long)options->microbatch_size, SMP__MAX_MICROBATCH);
    if (options->samples < 1 || options->samples > MAX_SAMPLES)
        return smp_fail(SMP_ERR_INPUT, "samples: got %d, expected 1 to %d", options->samples,
                        MAX_SAMPLES);
    if (options->links && !(options->link_s > 0))
        return smp_fail(SMP_ERR_INPUT, "time for links: got %g s, expected more", options->link_s);
    return SMP_OK;
}

smp_status smp_profile_measure(const smp_graph *graph, const smp_probe *probe,
                               const smp_profile_options *options, smp_profile **out)
{
    session s = {.graph = graph, .probe = probe, .options = options};
    smp_arena *arena = NULL;
    smp_profile *profile = NULL;
    smp_status status = check_options(options);
    if (status != SMP_OK)
        return status;
    s.rounds = options->samples < ROUNDS ? options->samples : ROUNDS;
    s.samples_per_round = (options->samples + s.rounds - 1) / s.rounds;
    s.arena = smp_arena_create();
    arena = smp_arena_create();
    profile = arena ? SMP_ARENA_NEW(arena, smp_profile, 1) : NULL;
    status = smp__sync_ranks(probe, s.arena && profile ? SMP_OK : SMP_ERR_NO_MEMORY);
    if (status == SMP_OK) {
        profile->arena = arena;
        status = measure_all(&s, profile);
    }
    if (status == SMP_OK) {
        *out = profile;
        arena = NULL;
    }
    smp_arena_destroy(arena);
    smp_arena_destroy(s.arena);
    return status;
}
