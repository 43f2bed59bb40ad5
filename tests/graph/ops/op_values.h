/* Random values for the buffers of an op_run, and its double-precision reference. */
#ifndef SMP_TESTS_GRAPH_OPS_OP_VALUES_H
#define SMP_TESTS_GRAPH_OPS_OP_VALUES_H

#include "tests/graph/ops/op_cases.h"

enum { FIRST_ACCUMULATOR = 1 };

/* Double copies of what the reference reads; out has room for the output. */
typedef struct doubles {
    double *in[SMP_OP_MAX_IN], *param[SMP_OP_MAX_PARAM], *out;
} doubles;

static inline double *doubles_of(const buffer *b, bool is_float)
{
    size_t n = b->bytes / 4;
    double *values = malloc((n + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = is_float ? (double)((float *)b->data)[i] : (double)((int32_t *)b->data)[i];
    return values;
}

static inline doubles doubles_make(const op_run *run)
{
    doubles d = {0};
    for (int i = 0; i < run->op->n_in; i++)
        d.in[i] = doubles_of(&run->in[i], op_run_in_is_float(run, i));
    for (int i = 0; i < run->op->n_param; i++)
        d.param[i] = doubles_of(&run->param[i], true);
    d.out = doubles_of(&run->out, true);
    return d;
}

static inline void doubles_free(const op_run *run, doubles *d)
{
    for (int i = 0; i < run->op->n_in; i++)
        free(d->in[i]);
    for (int i = 0; i < run->op->n_param; i++)
        free(d->param[i]);
    free(d->out);
}

static inline reference_call reference_of(const op_run *run, const doubles *d)
{
    return (reference_call){
        .graph = run->graph,
        .op = run->op,
        .batch = run->batch,
        .in = (const double *const *)d->in,
        .param = (const double *const *)d->param,
        .out = d->out,
        .step = run->step,
    };
}

/* d->out by the operator's own forward, in buffers of its own. */
static inline void own_forward(const op_run *run, const doubles *d)
{
    op_run copy = *run;
    op_run_allocate(&copy, 1);
    for (int i = 0; i < run->op->n_in; i++)
        for (size_t e = 0; e < run->in[i].bytes / 4; e++)
            if (op_run_in_is_float(run, i))
                ((float *)copy.in[i].data)[e] = (float)d->in[i][e];
            else
                ((int32_t *)copy.in[i].data)[e] = (int32_t)d->in[i][e];
    for (int i = 0; i < run->op->n_param; i++)
        for (size_t e = 0; e < run->param[i].bytes / 4; e++)
            ((float *)copy.param[i].data)[e] = (float)d->param[i][e];
    assert_int_equal(op_run_forward(&copy), SMP_OK);
    for (size_t e = 0; e < run->out.bytes / 4; e++)
        d->out[e] = (double)((float *)copy.out.data)[e];
    op_run_free_buffers(&copy);
}

/* Reference output into d->out, and its product with dout. */
static inline double reference_loss(const op_run *run, const op_case *c, doubles *d)
{
    reference_call call = reference_of(run, d);
    if (c->reference)
        c->reference(&call);
    else
        own_forward(run, d);
    double loss = 0;
    for (size_t i = 0; i < run->out.bytes / 4; i++)
        loss += d->out[i] * (double)((float *)run->dout.data)[i];
    return loss;
}

/* The derivative of that in *value, by a central difference: a small one in double, one that floats
 * can tell where the reference is made of them. */
static inline double central_difference(const op_run *run, const op_case *c, doubles *d,
                                        double *value)
{
    const double at = *value, h = c->reference ? 1e-5 : 0x1p-7;
    *value = at + h;
    double high = reference_loss(run, c, d);
    *value = at - h;
    double low = reference_loss(run, c, d);
    *value = at;
    return (high - low) / (2 * h);
}

static inline void fill_floats(buffer *b, uint64_t *rng, double magnitude)
{
    for (size_t i = 0; i < b->bytes / 4; i++) {
        double x = (2 * random_unit(rng) - 1) * magnitude;
        if (fabs(x) < 0.01) /* away from the kink of relu */
            x += x < 0 ? -0.02 : 0.02;
        ((float *)b->data)[i] = (float)x;
    }
}

static inline void fill(op_run *run, const model_text *m, uint64_t *rng)
{
    for (int i = 0; i < run->op->n_in; i++) {
        int64_t min = -5, max = 5;
        if (op_run_in_is_float(run, i)) {
            fill_floats(&run->in[i], rng, m->magnitude);
            continue;
        }
        if (run->op->kind->index_range)
            run->op->kind->index_range(run->graph, run->op, i, &min, &max);
        for (int64_t e = 0; e < op_run_in_elements(run, i); e++)
            ((int32_t *)run->in[i].data)[e] = (int32_t)random_int(rng, min, max);
    }
    for (int i = 0; i < run->op->n_param; i++) {
        fill_floats(&run->param[i], rng, 1);
        if (op_run_is_running(run, i)) /* a variance is positive */
            for (size_t e = 0; e < run->param[i].bytes / 4; e++)
                ((float *)run->param[i].data)[e] = fabsf(((float *)run->param[i].data)[e]);
        for (size_t e = 0; e < run->dparam[i].bytes / 4; e++)
            ((float *)run->dparam[i].data)[e] = FIRST_ACCUMULATOR;
    }
    fill_floats(&run->dout, rng, 1);
    run->step.seed = smp_random_mix(*rng);
    run->step.turn = smp_random_mix(run->step.seed);
    run->step.following = random_int(rng, 0, 3);
}

static inline double largest(const float *values, size_t n, double offset)
{
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)values[i] - offset));
    return max;
}

#endif
