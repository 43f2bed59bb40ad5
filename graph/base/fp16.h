/* IEEE 754 binary16, a value at a time: 5 bits of exponent, 10 of fraction. What is below 2^-14 is
 * a multiple of 2^-24; the largest number is 65504. With the same bits as x86's F16C, on every
 * machine: a NaN keeps the upper bits of its fraction and becomes a quiet one. */
#ifndef SMP_GRAPH_BASE_FP16_H
#define SMP_GRAPH_BASE_FP16_H

#include <stdint.h>
#include <string.h>

/* Exact. */
static inline float smp_fp16_widen(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, size = x & 0x7fffu;
    const float multiple = (float)(int32_t)size * 0x1p-24f;
    uint32_t small, bits = (size << 13) + (112u << 23);
    memcpy(&small, &multiple, sizeof(small));
    bits = size >= 0x7c00u ? 0x7f800000u | size << 13 : bits;
    bits = size > 0x7c00u ? bits | 0x400000u : bits;
    bits = (size < 0x400u ? small : bits) | sign;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* To the nearest, ties to even; infinite from 65520 on. */
static inline uint16_t smp_fp16_narrow(float x)
{
    uint32_t bits, sum_bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    const uint32_t number = (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13;
    float sum; /* a float at 1/2 steps by 2^-24: the addition rounds */
    memcpy(&sum, &size, sizeof(sum));
    sum += 0.5f;
    memcpy(&sum_bits, &sum, sizeof(sum_bits));
    uint32_t half = size < 0x38800000u ? sum_bits - 0x3f000000u : number;
    half = size >= 0x477ff000u ? 0x7c00u : half;
    half = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x3ffu) : half;
    return (uint16_t)(half | sign);
}

#endif
