/* Rows of floats (graph/math/vector.h). Each function is one pass: O(n), bound by memory except for
 * the exponentials (graph/math/exponential.h). */
#include "graph/math/vector.h"

#include <stddef.h>
#include <string.h>

#include "graph/math/exponential.h"

enum { COLUMN_BLOCK = 256 };

SMP_VECTOR float smp__sum(const float *x, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += x[i + l];
    for (int l = 0; i + l < n; l++)
        tail[l] = x[i + l];
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR float smp__max(const float *x, int64_t n)
{
    float lane[SMP_LANES];
    float tail[SMP_LANES];
    int64_t i = 0;
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] = tail[l] = x[0];
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; i + l < n; l++)
        tail[l] = x[i + l];
    float max = x[0];
    for (int l = 0; l < SMP_LANES; l++) {
        max = lane[l] > max ? lane[l] : max;
        max = tail[l] > max ? tail[l] : max;
    }
    return max;
}

SMP_VECTOR float smp__dot(const float *x, const float *y, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (int l = 0; i + l < n; l++)
        tail[l] = x[i + l] * y[i + l];
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR float smp__sum_squares(const float *x, float mean, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    for (int l = 0; i + l < n; l++)
        tail[l] = (x[i + l] - mean) * (x[i + l] - mean);
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR void smp__add(float *restrict y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

SMP_VECTOR void smp__mul(float *restrict y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

SMP_VECTOR void smp__accumulate(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

SMP_VECTOR void smp__scale(float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

/* A block of columns at a time, so that the running sums stay in the first-level cache. */
SMP_VECTOR void smp__column_sums(float *restrict total, const float *restrict x, int64_t rows,
                                 int64_t columns, int64_t stride)
{
    float sum[COLUMN_BLOCK];
    for (int64_t begin = 0; begin < columns; begin += COLUMN_BLOCK) {
        int64_t width = columns - begin < COLUMN_BLOCK ? columns - begin : COLUMN_BLOCK;
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r < rows; r++) {
            const float *row = x + r * stride + begin;
            for (int64_t c = 0; c < width; c++)
                sum[c] += row[c];
        }
        for (int64_t c = 0; c < width; c++)
            total[begin + c] += sum[c];
    }
}

SMP_VECTOR float smp__exp_row(float *y, const float *x, float shift, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = smp__exp_nonpositive(x[i] - shift);
    return smp__sum(y, n);
}

SMP_VECTOR float smp__exp_sum(const float *x, float shift, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES)
        for (int l = 0; l < SMP_LANES; l++)
            lane[l] += smp__exp_nonpositive(x[i + l] - shift);
    for (int l = 0; i + l < n; l++)
        tail[l] = smp__exp_nonpositive(x[i + l] - shift);
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    return smp__fold(lane);
}

SMP_VECTOR void smp__exp_magnitude(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = smp__exp_magnitude_of(x[i]);
}

SMP_VECTOR void smp__sigmoid(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = smp__sigmoid_of(x[i]);
}
