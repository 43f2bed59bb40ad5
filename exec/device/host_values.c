/* Values in host memory as a GPU sees them; see the header. */
#include "exec/device/host_values.h"

#include <string.h>

#include "exec/device/device.h"
#include "graph/math/half.h"

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1u);
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : nearest) >> 16);
}

void smp__host_round(smp_dtype half, void *target16, const float *source, int64_t elements)
{
    uint16_t *restrict target = target16;
    if (half != SMP_BF16) {
        smp__to_half(half, target, source, elements);
        return;
    }
    for (int64_t i = 0; i < elements; i++)
        target[i] = to_bf16(source[i]);
}

/* Threads of a block there: each takes four values and every BLOCK-th four after them, and one of
 * the last three; then the lower half of the threads adds what the upper half has. */
enum { BLOCK = 256, QUAD = 4 };

static double square_of(float value)
{
    return (double)value * (double)value; /* exact */
}

static double squares_of_piece(const float *values, int64_t n)
{
    double thread[BLOCK] = {0};
    const int64_t quads = n / QUAD;
    for (int64_t i = 0; i < quads; i++)
        for (int k = 0; k < QUAD; k++)
            thread[i % BLOCK] += square_of(values[QUAD * i + k]);
    for (int64_t i = QUAD * quads; i < n; i++)
        thread[i - QUAD * quads] += square_of(values[i]);
    for (int half = BLOCK / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            thread[i] += thread[i + half];
    return thread[0];
}

void smp__host_squares(const float *values, int64_t elements, double *sum)
{
    for (int64_t at = 0; at < elements; at += SMP_SQUARE_PIECE) {
        const int64_t left = elements - at;
        *sum++ = squares_of_piece(values + at, left < SMP_SQUARE_PIECE ? left : SMP_SQUARE_PIECE);
    }
}
