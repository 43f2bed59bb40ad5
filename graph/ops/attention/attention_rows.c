/* Rows of scores (attention_rows.h): sums and exponentials by graph/math/vector.h. */
#include "graph/ops/attention/attention_rows.h"

#include <string.h>

#include "graph/math/vector.h"
#include "graph/ops/ops.h"

int64_t smp__attention_place(const smp_op_call *call, const smp__attention *at, int part,
                             int64_t sample, int64_t h)
{
    return sample * smp__in(call->graph, call->op, at->input[part])->elements + at->offset[part] +
           smp__attention_head(at, part, h) * at->width;
}

smp_status smp__attention_check_mask(const smp_op_call *call, const smp__attention *at)
{
    const int32_t *mask = call->in[at->mask];
    for (int64_t i = 0; i < call->batch * at->keys; i++)
        if (mask[i] != 0 && mask[i] != 1)
            return smp_fail(SMP_ERR_INPUT,
                            "op '%s' (attention): mask %d at position %lld of the micro-batch, "
                            "expected 0 or 1",
                            call->op->name, (int)mask[i], (long long)i);
    return SMP_OK;
}

void smp__attention_fill_bias(const smp_op_call *call, const smp__attention *at, int64_t h,
                              float *bias)
{
    const float *weight = at->buckets > 0 ? call->param[0] : NULL;
    for (int64_t i = 0; i < at->queries + at->keys - 1; i++)
        bias[i] = smp__attention_bias(at, weight, h, i + 1 - at->queries - at->before);
}

static bool any_counts(const int32_t *mask, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (mask[k] != 0)
            return true;
    return false;
}

SMP_VECTOR static void hide(float *restrict scores, const int32_t *restrict mask, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        float score = scores[k];
        scores[k] = mask[k] != 0 ? score : -INFINITY;
    }
}

/* cap tanh(x / cap), with e = exp(-2 |x / cap|): near 0, where (1 - e) / (1 + e) would lose digits,
 * by its series. */
SMP_VECTOR static void cap_values(float *restrict x, const float *restrict e, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float u = x[i] / cap, square = u * u;
        const float terms = -17.0f / 315 + square * (62.0f / 2835);
        const float near = u + u * square * (-1.0f / 3 + square * (2.0f / 15 + square * terms));
        const float far = (1 - e[i]) / (1 + e[i]);
        x[i] = cap * (square < 0.0625f ? near : u < 0 ? -far : far);
    }
}

void smp__attention_cap(float *scores, float cap, int64_t n)
{
    enum { BLOCK = 256 };
    float e[BLOCK];
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t each = n - begin < BLOCK ? n - begin : BLOCK;
        memcpy(e, scores + begin, (size_t)each * sizeof *e);
        smp__scale(e, 2 / cap, each);
        smp__exp_magnitude(e, e, each);
        cap_values(scores + begin, e, cap, each);
    }
}

SMP_VECTOR static void weigh_by_slope(float *restrict ds, const float *restrict capped, float cap,
                                      int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float share = capped[i] / cap;
        ds[i] *= 1 - share * share;
    }
}

void smp__attention_cap_gradient(float *ds, float *scores, float cap, int64_t n)
{
    smp__attention_cap(scores, cap, n);
    weigh_by_slope(ds, scores, cap, n);
}

/* bias, mask: of these n keys, or NULL. */
static void softmax_row(float *p, const float *bias, const int32_t *mask, int64_t n)
{
    if (bias)
        smp__accumulate(p, bias, n);
    if (mask)
        hide(p, mask, n);
    float top = smp__max(p, n);
    if (mask && top == -INFINITY && !any_counts(mask, n)) {
        memset(p, 0, (size_t)n * sizeof *p);
        return;
    }
    float sum = smp__exp_row(p, p, top, n);
    smp__scale(p, 1.0f / sum, n);
}

/* Keys of a row that it must not see, though its block computed them: up to `from`, from `to`. */
static void clear_sides(float *row, int64_t from, int64_t to, int64_t low, int64_t high)
{
    memset(row, 0, (size_t)(from - low) * sizeof *row);
    memset(row + to - low, 0, (size_t)(high - to) * sizeof *row);
}

void smp__attention_softmax(const smp__attention *at, const smp__attention_terms *terms, float *row,
                            int64_t t, int64_t low, int64_t high)
{
    const int64_t from = smp__attention_first(at, t), to = smp__attention_end(at, t + 1);
    const float *bias = terms->bias ? terms->bias + at->queries - 1 - t + from : NULL;
    if (at->softcap > 0)
        smp__attention_cap(row + from - low, at->softcap, to - from);
    softmax_row(row + from - low, bias, terms->mask ? terms->mask + from : NULL, to - from);
    clear_sides(row, from, to, low, high);
}

/* ds = p * (ds - sum), the gradient of the scores from that of the probabilities. */
SMP_VECTOR static void score_row(float *restrict ds, const float *restrict p, float sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ds[i] = p[i] * (ds[i] - sum);
}

void smp__attention_gradient(const smp__attention *at, float *dp, const float *p, int64_t t,
                             int64_t low, int64_t high)
{
    const int64_t from = smp__attention_first(at, t), to = smp__attention_end(at, t + 1);
    const int64_t n = to - from;
    float *ds = dp + from - low;
    p += from - low;
    score_row(ds, p, smp__dot(p, ds, n), n);
    clear_sides(dp, from, to, low, high);
}
