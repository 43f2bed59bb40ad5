/* Naive double-precision forward of every operator with kernels: written from the definitions, one
 * element at a time, and sharing nothing with graph/ops/. Integer inputs are passed as doubles. */
#ifndef SMP_TESTS_GRAPH_OPS_OP_REFERENCE_H
#define SMP_TESTS_GRAPH_OPS_OP_REFERENCE_H

#include <math.h>
#include <stdlib.h>

#include "graph/base/random.h"
#include "graph/model/op.h"

typedef struct reference_call {
    const smp_graph *graph;
    const smp_op *op;
    int64_t batch;
    const double *const *in;
    const double *const *param;
    double *out;
    uint64_t seed;
    int64_t step, microbatch;
} reference_call;

typedef void (*reference_function)(const reference_call *call);

static inline const smp_tensor *ref_in(const reference_call *c, int slot)
{
    return &c->graph->tensor[c->op->in[slot]];
}

static inline int64_t ref_count(const reference_call *c, int slot)
{
    return ref_in(c, slot)->elements * (ref_in(c, slot)->batched ? c->batch : 1);
}

static inline int64_t ref_last(const reference_call *c, int slot)
{
    const smp_shape *shape = &ref_in(c, slot)->shape;
    return shape->dim[shape->n_dim - 1];
}

static inline const smp_attr_value *ref_attr(const reference_call *c, const char *name)
{
    int index = smp_op_attr_index(c->op->kind, name);
    if (index < 0)
        abort();
    return &c->op->attr[index];
}

static inline void ref_embedding(const reference_call *c)
{
    int64_t features = ref_attr(c, "features")->i;
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        for (int64_t f = 0; f < features; f++)
            c->out[i * features + f] = c->param[0][(int64_t)c->in[0][i] * features + f];
}

static inline void ref_position_embedding(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] + c->param[0][i % ref_in(c, 0)->elements];
}

static inline void ref_linear(const reference_call *c)
{
    int64_t in = ref_last(c, 0), features = ref_attr(c, "features")->i;
    for (int64_t r = 0; r < ref_count(c, 0) / in; r++)
        for (int64_t f = 0; f < features; f++) {
            double sum = c->op->n_param > 1 ? c->param[1][f] : 0;
            for (int64_t k = 0; k < in; k++)
                sum += c->in[0][r * in + k] * c->param[0][f * in + k];
            c->out[r * features + f] = sum;
        }
}

static inline void ref_layernorm(const reference_call *c)
{
    int64_t n = ref_last(c, 0);
    double eps = ref_attr(c, "eps")->f;
    for (int64_t r = 0; r < ref_count(c, 0) / n; r++) {
        const double *x = c->in[0] + r * n;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++)
            c->out[r * n + i] =
                (x[i] - mean) / sqrt(variance + eps) * c->param[0][i] + c->param[1][i];
    }
}

static inline void ref_gelu(const reference_call *c)
{
    const double pi = 3.14159265358979323846;
    bool by_tanh = ref_attr(c, "approximate")->i == 0;
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        double x = c->in[0][i];
        c->out[i] = by_tanh ? 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
                            : 0.5 * x * (1 + erf(x / sqrt(2)));
    }
}

static inline void ref_relu(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = fmax(c->in[0][i], 0);
}

static inline void ref_tanh(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = tanh(c->in[0][i]);
}

static inline void ref_softmax_row(const double *x, double *y, int64_t n)
{
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

static inline void ref_softmax(const reference_call *c)
{
    int64_t n = ref_last(c, 0);
    for (int64_t r = 0; r < ref_count(c, 0) / n; r++)
        ref_softmax_row(c->in[0] + r * n, c->out + r * n, n);
}

/* Element `i` of row `t` of q (part 0), k (1) or v (2) of sample b. */
static inline double ref_qkv(const reference_call *c, int part, int64_t b, int64_t t, int64_t i)
{
    bool packed = c->op->n_in == 1;
    const smp_shape *shape = &ref_in(c, packed ? 0 : part)->shape;
    int64_t row = b * shape->dim[0] + t;
    if (packed)
        return c->in[0][row * shape->dim[1] + part * (shape->dim[1] / 3) + i];
    return c->in[part][row * shape->dim[1] + i];
}

static inline void ref_attention(const reference_call *c)
{
    bool packed = c->op->n_in == 1, causal = ref_attr(c, "causal")->i;
    int64_t queries = ref_in(c, 0)->shape.dim[0];
    int64_t keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    int64_t d = packed ? ref_last(c, 0) / 3 : ref_last(c, 0);
    int64_t heads = ref_attr(c, "heads")->i, width = d / heads;
    double *p = malloc((size_t)keys * sizeof *p);
    if (!p)
        abort();
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t q = 0; q < queries; q++) {
                int64_t n = causal ? q + 1 : keys;
                for (int64_t k = 0; k < n; k++) {
                    p[k] = 0;
                    for (int64_t i = h * width; i < (h + 1) * width; i++)
                        p[k] += ref_qkv(c, 0, b, q, i) * ref_qkv(c, 1, b, k, i);
                    p[k] /= sqrt((double)width);
                }
                ref_softmax_row(p, p, n);
                for (int64_t i = h * width; i < (h + 1) * width; i++) {
                    double sum = 0;
                    for (int64_t k = 0; k < n; k++)
                        sum += p[k] * ref_qkv(c, 2, b, k, i);
                    c->out[(b * queries + q) * d + i] = sum;
                }
            }
    free(p);
}

static inline void ref_add(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] + c->in[1][i];
}

static inline void ref_mul(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] * c->in[1][i];
}

/* The documented contract: which counter and word an element's random number comes from. */
static inline void ref_dropout(const reference_call *c)
{
    double p = ref_attr(c, "p")->f;
    uint64_t index = (uint64_t)(c->op - c->graph->op);
    uint64_t key = smp_random_mix(c->seed + smp_random_mix(index));
    uint64_t high = (uint64_t)c->step << 32 ^ (uint64_t)c->microbatch;
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        int64_t group = i / 64, word = i / 16 % 4, lane = i % 16;
        smp_random4 r = smp_random_philox(key, (uint64_t)(group * 16 + lane), high);
        c->out[i] = smp_random_uniform(r.v[word]) < p ? 0 : c->in[0][i] / (1 - p);
    }
}

static inline void ref_copy(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i];
}

static inline void ref_concat(const reference_call *c)
{
    const smp_shape *first = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i, outer = c->batch, inner = 1, at = 0;
    axis += axis < 0 ? first->n_dim : 0;
    for (int64_t i = 0; i < axis; i++)
        outer *= first->dim[i];
    for (int64_t i = axis + 1; i < first->n_dim; i++)
        inner *= first->dim[i];
    for (int64_t o = 0; o < outer; o++)
        for (int slot = 0; slot < c->op->n_in; slot++) {
            int64_t chunk = ref_in(c, slot)->shape.dim[axis] * inner;
            for (int64_t i = 0; i < chunk; i++)
                c->out[at++] = c->in[slot][o * chunk + i];
        }
}

static inline void ref_patchify(const reference_call *c)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t channels = shape->n_dim == 3 ? shape->dim[0] : 1;
    int64_t height = shape->dim[shape->n_dim - 2], width = shape->dim[shape->n_dim - 1];
    int64_t patch = ref_attr(c, "patch")->i;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t ch = 0; ch < channels; ch++)
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++) {
                    int64_t row = y / patch * (width / patch) + x / patch;
                    int64_t column = (ch * patch + y % patch) * patch + x % patch;
                    int64_t columns = channels * patch * patch;
                    c->out[b * ref_in(c, 0)->elements + row * columns + column] =
                        c->in[0][((b * channels + ch) * height + y) * width + x];
                }
}

static inline void ref_mean_pool(const reference_call *c)
{
    int64_t positions = ref_in(c, 0)->shape.dim[0], d = ref_last(c, 0);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < d; i++) {
            double sum = 0;
            for (int64_t t = 0; t < positions; t++)
                sum += c->in[0][(b * positions + t) * d + i];
            c->out[b * d + i] = sum / (double)positions;
        }
}

static inline void ref_cross_entropy(const reference_call *c)
{
    int64_t classes = ref_last(c, 0), used = 0;
    double loss = 0;
    for (int64_t r = 0; r < ref_count(c, 1); r++) {
        const double *x = c->in[0] + r * classes;
        double max = x[0], sum = 0;
        if (c->in[1][r] < 0)
            continue;
        for (int64_t i = 1; i < classes; i++)
            max = fmax(max, x[i]);
        for (int64_t i = 0; i < classes; i++)
            sum += exp(x[i] - max);
        loss += log(sum) + max - x[(int64_t)c->in[1][r]];
        used++;
    }
    c->out[0] = used > 0 ? loss / (double)used : 0;
}

static inline void ref_mse(const reference_call *c)
{
    double sum = 0;
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        sum += (c->in[0][i] - c->in[1][i]) * (c->in[0][i] - c->in[1][i]);
    c->out[0] = sum / (double)ref_count(c, 0);
}

#endif
