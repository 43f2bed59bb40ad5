/* Peaks are what the fastest ops reach, so that shares are of these. A product whose sum is over k
 * takes as long as one over k + lost_k at the peak; of a grid the lost_k counts that least absolute
 * deviations of logarithms choose. */
#include "profile/describe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "profile/estimate.h"
#include "profile/measure.h"

enum { PARTS = 3, GRID = 400, GRID_STEP = 5 };

/* Bytes from which on an op's time is that of its bytes, and up to which it is that of a call. */
enum { LARGE_BYTES = 1 << 20, TINY_BYTES = 1 << 12 };

/* A part of an op that was measured. */
typedef struct part {
    smp_op_work work;
    smp_op_part of;
    double flops, bytes, us;
    int64_t k; /* of a product */
} part;

typedef struct parts {
    part *part;
    int n;
    double *scratch; /* [n] */
} parts;

static part part_of(const smp_graph *graph, const smp_profile *profile, int32_t op, smp_op_part of)
{
    const smp_op_cost *cost = &profile->op[op];
    const double us[PARTS] = {cost->forward_us, cost->backward_input_us, cost->backward_weight_us};
    part p = {.of = of, .us = us[of]};
    smp_op_work_get(graph, &graph->op[op], profile->microbatch_size, &p.work);
    p.us = fmax(p.us - smp_blocks_us(&p.work, of), 1e-3 * p.us);
    const smp_part_amount amount = smp_part_amount_of(&p.work, of);
    p.flops = amount.flops;
    p.bytes = amount.bytes;
    p.k = smp_part_product(&p.work.product, of).k;
    return p;
}

static smp_status find_parts(const smp_graph *graph, const smp_profile *profile, parts *out)
{
    const size_t most = (size_t)graph->n_op * PARTS + 1;
    out->part = calloc(most, sizeof *out->part);
    out->scratch = calloc(most, sizeof *out->scratch);
    if (!out->part || !out->scratch)
        return smp_fail_memory(most * sizeof *out->part);
    for (int32_t i = 0; i < graph->n_op; i++)
        for (int of = 0; of < PARTS; of++) {
            const bool fused = smp__is_fused_second(graph, &graph->op[i]) ||
                               smp__is_fused_backward(graph, &graph->op[i]);
            const part p = part_of(graph, profile, i, (smp_op_part)of);
            if (p.us > 0 && !fused)
                out->part[out->n++] = p;
        }
    return SMP_OK;
}

static double rate_of(const part *p, double amount, double call_us)
{
    return 1e6 * amount / fmax(p->us - call_us, 1e-3 * p->us);
}

/* Median of what attention reaches; 0: there is none. */
static double median_share(const parts *all, double call_us, double peak, smp_op_part of)
{
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        if (p->work.kind == SMP_OP_ATTENTION && p->of == of)
            all->scratch[n++] = fmin(1, rate_of(p, p->flops, call_us) / peak);
    }
    return n > 0 ? smp__median(all->scratch, n) : 0;
}

static double bandwidth_of(const parts *all, double call_us)
{
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        if (p->work.kind == SMP_OP_PLAIN && p->bytes >= LARGE_BYTES)
            all->scratch[n++] = rate_of(p, p->bytes, call_us);
    }
    return n > 0 ? smp__median(all->scratch, n) : 0;
}

/* Of products with a sum over k, as if it had no end: what the fastest one reaches. */
static double peak_of(const parts *all, double call_us, double lost_k)
{
    double peak = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        if (p->work.kind == SMP_OP_PRODUCT && p->k > 0)
            peak = fmax(peak, rate_of(p, p->flops, call_us) * (1 + lost_k / (double)p->k));
    }
    return peak;
}

/* Of the logarithms of products' times. */
static double deviations(const parts *all, double call_us, double peak, double lost_k)
{
    double off = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        if (p->work.kind == SMP_OP_PRODUCT && p->k > 0)
            off +=
                fabs(log((1e6 * p->flops / peak * (1 + lost_k / (double)p->k) + call_us) / p->us));
    }
    return off;
}

static void fit_products(const parts *all, smp_device_measure *m)
{
    double least = INFINITY;
    for (int g = 0; g < GRID; g++) {
        const double lost_k = (double)g * GRID_STEP;
        const double peak = peak_of(all, m->call_us, lost_k);
        const double off = deviations(all, m->call_us, peak, lost_k);
        if (peak > 0 && off < least) {
            least = off;
            m->flops_per_s = peak;
            m->lost_k = lost_k;
        }
    }
}

static smp_efficiency efficiency_of(const smp_device_measure *m)
{
    smp_efficiency e = smp_efficiency_ideal;
    e.call_us = m->call_us;
    e.lost_k = m->lost_k;
    if (m->attention_forward > 0)
        e.attention_forward = m->attention_forward;
    if (m->attention_backward > 0)
        e.attention_backward = m->attention_backward;
    return e;
}

static double error_of(const smp_device_measure *m, const parts *all)
{
    const smp_efficiency e = efficiency_of(m);
    double off = 0, sum = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        const double peak = p->work.kind == SMP_OP_PLAIN ? m->plain_flops_per_s : m->flops_per_s;
        off += fabs(smp_efficiency_us(&e, &p->work, p->of, peak, m->bytes_per_s) - p->us);
        sum += p->us;
    }
    return sum > 0 ? off / sum : 0;
}

static void find_calls(const parts *all, smp_device_measure *m)
{
    m->call_us = INFINITY;
    for (int i = 0; i < all->n; i++)
        if (all->part[i].bytes <= TINY_BYTES)
            m->call_us = fmin(m->call_us, all->part[i].us);
    if (!isfinite(m->call_us))
        m->call_us = 0;
    for (int i = 0; i < all->n; i++) {
        const part *p = &all->part[i];
        if (p->work.kind == SMP_OP_PLAIN)
            m->plain_flops_per_s = fmax(m->plain_flops_per_s, rate_of(p, p->flops, m->call_us));
    }
}

static smp_status measure(const smp_graph *graph, const parts *all, smp_device_measure *m)
{
    find_calls(all, m);
    fit_products(all, m);
    m->bytes_per_s = bandwidth_of(all, m->call_us);
    if (m->flops_per_s <= 0 || m->bytes_per_s <= 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %s was measured: a device is described by products and by operators "
                        "that move over 1 MiB (examples/profiles/describe-device.yaml)",
                        graph->path,
                        m->flops_per_s <= 0 ? "no product" : "nothing that moves memory");
    if (graph->target.precision == SMP_PRECISION_FP32)
        m->plain_flops_per_s = m->flops_per_s;
    m->attention_forward = median_share(all, m->call_us, m->flops_per_s, SMP_OP_FORWARD);
    m->attention_backward = median_share(all, m->call_us, m->flops_per_s, SMP_OP_BACKWARD_INPUT);
    m->n_part = all->n;
    m->error = error_of(m, all);
    return SMP_OK;
}

smp_status smp_device_measure_get(const smp_graph *graph, const smp_profile *profile,
                                  smp_device_measure *out)
{
    parts all = {0};
    *out = (smp_device_measure){0};
    smp_status status = find_parts(graph, profile, &all);
    if (status == SMP_OK)
        status = measure(graph, &all, out);
    free(all.part);
    free(all.scratch);
    return status;
}

smp_status smp_device_describe(const smp_device_measure *m, const smp_graph *graph,
                               const char *name, int64_t memory_bytes, smp_text *yaml)
{
    const smp_precision precision = graph->target.precision;
    smp_text_append(
        yaml,
        "# Measured with %d parts of operators of %s in %s, which it predicts %.0f %% off, mean "
        "over time.\nsmp: 1\nname: ",
        m->n_part, graph->name, smp_precision_name(precision), 100 * m->error);
    smp_text_append_quoted(yaml, name);
    smp_text_append(yaml, "\nmemory: %" PRId64 "\ncompute: {fp32: %.4g", memory_bytes,
                    m->plain_flops_per_s);
    if (precision != SMP_PRECISION_FP32)
        smp_text_append(yaml, ", %s: %.4g", smp_precision_name(precision), m->flops_per_s);
    smp_text_append(yaml,
                    "} # what the fastest operators reach\nbandwidth: %.4g\nefficiency:\n"
                    "  lost_k: %.0f\n  call_us: %.3g\n",
                    m->bytes_per_s, m->lost_k, m->call_us);
    if (m->attention_forward > 0)
        smp_text_append(yaml, "  attention_forward: %.3g\n", fmax(m->attention_forward, 0.001));
    if (m->attention_backward > 0)
        smp_text_append(yaml, "  attention_backward: %.3g\n", fmax(m->attention_backward, 0.001));
    smp_text_append(yaml, "  from: ");
    smp_text_append_quoted(yaml, "measured here");
    smp_text_append(yaml, "\n");
    return yaml->failed ? smp_fail_memory(yaml->length) : SMP_OK;
}
