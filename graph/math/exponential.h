/* Exponentials of one value, for loops that the compiler vectorises (SMP_VECTOR): about 20
 * operations, the same bits in every such loop. Accuracy: graph/math/vector.h.
 *
 * exp: x = k ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), e^r by a polynomial of
 * degree 6 fitted for the least relative error, 2^k by writing the exponent field. k is found by
 * adding 1.5 * 2^23, whose low bits then hold the nearest integer: no conversion that would be
 * undefined for NaN. */
#ifndef SMP_GRAPH_MATH_EXPONENTIAL_H
#define SMP_GRAPH_MATH_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* e^x for x <= 0 or NaN. At the clamp k is -127, whose exponent field is that of zero. */
static inline float smp__exp_nonpositive(float x)
{
    const float log2_e = 1.44269504f;
    const float round = 12582912.0f; /* 1.5 * 2^23 */
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float clamped = x < -88.0f ? -88.0f : x;
    float shifted = clamped * log2_e + round;
    float k = shifted - round;
    float r = (clamped - k * ln2_high) - k * ln2_low;
    float p = 0x1.6db47ep-10f;
    p = p * r + 0x1.123b92p-7f;
    p = p * r + 0x1.55545ep-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* e^-|x| */
static inline float smp__exp_magnitude_of(float x)
{
    return smp__exp_nonpositive(x < 0 ? x : -x);
}

/* 1 / (1 + e^-x) */
static inline float smp__sigmoid_of(float x)
{
    float e = smp__exp_magnitude_of(x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

#endif
