/* Floats of 8 bits (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), a value at a time:
 * E4M3 has 4 bits of exponent and 3 of fraction, 448 at most and no infinity; E5M2 has 5 and 2, and
 * 57344 at most. With the bits of the GPU's cvt.rn.satfinite: to the nearest, ties to even, what is
 * larger than the largest number becomes that. All of it is integer arithmetic and sums that are
 * exact or rounded once: a host and a GPU agree. Readable as C++ and CUDA. */
#ifndef SMP_GRAPH_MATH_FP8_H
#define SMP_GRAPH_MATH_FP8_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SMP__FP8_ANYWHERE __host__ __device__ static inline
#else
#define SMP__FP8_ANYWHERE static inline
#endif

typedef enum smp_fp8 { SMP_E4M3, SMP_E5M2 } smp_fp8;

SMP__FP8_ANYWHERE float smp_fp8_largest(smp_fp8 format)
{
    return format == SMP_E4M3 ? 448.0f : 57344.0f;
}

SMP__FP8_ANYWHERE uint32_t smp__fp8_fraction(smp_fp8 format) /* bits of it */
{
    return format == SMP_E4M3 ? 3u : 2u;
}

/* The biased exponent, in a float, of the least normal number: 2^-6 or 2^-14. */
SMP__FP8_ANYWHERE uint32_t smp__fp8_least(smp_fp8 format)
{
    return format == SMP_E4M3 ? 127u - 6u : 127u - 14u;
}

SMP__FP8_ANYWHERE float smp__fp8_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

SMP__FP8_ANYWHERE uint32_t smp__fp8_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* The number of the format that is nearest to x, as a float; a NaN stays one. */
SMP__FP8_ANYWHERE float smp_fp8_round(smp_fp8 format, float x)
{
    const uint32_t bits = smp__fp8_bits_of(x), least = smp__fp8_least(format), most = 127u + 31u;
    uint32_t exponent = bits >> 23 & 0xffu;
    exponent = exponent < least ? least : exponent > most ? most : exponent;
    /* in floats of this size the last bit is a step of the format at x: the sum rounds */
    const float steps =
        smp__fp8_of_bits((exponent + 23u - smp__fp8_fraction(format)) << 23 | 0x400000u);
    const float size = smp__fp8_of_bits(bits & 0x7fffffffu);
    const float near = (size + steps) - steps, largest = smp_fp8_largest(format);
    const float bounded = near > largest ? largest : near;
    return smp__fp8_of_bits(smp__fp8_bits_of(bounded) | (bits & 0x80000000u));
}

/* Its code. */
SMP__FP8_ANYWHERE uint8_t smp_fp8_encode(smp_fp8 format, float x)
{
    const uint32_t bits = smp__fp8_bits_of(smp_fp8_round(format, x)), size = bits & 0x7fffffffu;
    const uint32_t fraction = smp__fp8_fraction(format), least = smp__fp8_least(format);
    /* below the least normal number a code counts steps, as bits of a float do that stands so much
     * above them */
    const float shifted = smp__fp8_of_bits(size) + smp__fp8_of_bits((least + 23u - fraction) << 23);
    const uint32_t small = smp__fp8_bits_of(shifted) - ((least + 23u - fraction) << 23);
    const uint32_t number = (size >> (23u - fraction)) - ((least - 1u) << fraction);
    const uint32_t code = size > 0x7f800000u ? 0x7fu : size < (least << 23) ? small : number;
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/* Exact. */
SMP__FP8_ANYWHERE float smp_fp8_decode(smp_fp8 format, uint8_t code)
{
    const uint32_t size = code & 0x7fu, fraction = smp__fp8_fraction(format);
    const uint32_t least = smp__fp8_least(format), sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t number = (size << (23u - fraction)) + ((least - 1u) << 23);
    const float step = smp__fp8_of_bits((least - fraction) << 23);
    const uint32_t small = smp__fp8_bits_of((float)(int32_t)size * step);
    uint32_t bits = size >> fraction == 0 ? small : number;
    if (format == SMP_E4M3 && size == 0x7fu)
        bits = 0x7fc00000u;
    if (format == SMP_E5M2 && size >= 0x7cu)
        bits = size == 0x7cu ? 0x7f800000u : 0x7fc00000u;
    return smp__fp8_of_bits(bits | sign);
}

/* What a tensor is multiplied by before it is rounded, and its values by afterwards. Both are
 * powers of two: neither product rounds, so that a factor is the same number whether a scale is
 * applied to it or to a sum, and everywhere. */
typedef struct smp_fp8_scale {
    float to, from;
} smp_fp8_scale;

/* The largest that brings `largest`, the size of the largest value of a tensor, within the format;
 * at most 2^110, so that every rounded value times `from` is a normal float. 1 of zeroes. Of a
 * tensor that is not finite `from` is NaN, and whatever is made of it. */
SMP__FP8_ANYWHERE smp_fp8_scale smp_fp8_scale_of(smp_fp8 format, float largest)
{
    const uint32_t bits = smp__fp8_bits_of(largest) & 0x7fffffffu, most = 127u + 110u;
    /* 448 and 57344 are 1.75 * 2^8 and 1.75 * 2^15 */
    const uint32_t top = 2u * 127u + (format == SMP_E4M3 ? 8u : 15u);
    uint32_t exponent = top - (bits >> 23) - ((bits & 0x7fffffu) > 0x600000u ? 1u : 0u);
    smp_fp8_scale scale;
    exponent = exponent > most ? most : exponent;
    exponent = bits == 0 || bits >= 0x7f800000u ? 127u : exponent;
    scale.to = smp__fp8_of_bits(exponent << 23);
    scale.from = smp__fp8_of_bits(bits >= 0x7f800000u ? 0x7fc00000u : (254u - exponent) << 23);
    return scale;
}

#endif
