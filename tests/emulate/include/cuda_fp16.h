/* <cuda_fp16.h> of the emulator, as its <cuda_bf16.h>: no implicit conversions, no arithmetic. */
#ifndef SMP_TESTS_EMULATE_CUDA_FP16_H
#define SMP_TESTS_EMULATE_CUDA_FP16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vector_types.h"

/* IEEE binary16 by its definition, in double: to nearest, ties to even; every NaN becomes
 * 0x7fff. */
inline uint16_t emulate_fp16_bits(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs(static_cast<double>(x));
    if (isnan(x))
        return 0x7fff;
    if (size == 0.0)
        return sign;
    if (size >= 65520.0)
        return static_cast<uint16_t>(sign | 0x7c00);
    int exponent = 0;
    frexp(size, &exponent); /* size = m 2^exponent, m from 1/2 on */
    const int least = exponent < -13 ? -13 : exponent;
    const double unit = ldexp(1.0, least - 11);                  /* of the last place */
    const int places = static_cast<int>(nearbyint(size / unit)); /* up to 2048 */
    return static_cast<uint16_t>(sign | ((least + 13) * 1024 + places));
}
inline float emulate_fp16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent > 0 ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return static_cast<float>(bits & 0x8000 ? -size : size);
}

struct EMULATE_ALIGN(2) __half {
    uint16_t emulate_bits;

    __half() = default;
    explicit __half(float x) : emulate_bits(emulate_fp16_bits(x)) {}
    explicit operator float() const
    {
        return emulate_fp16_value(emulate_bits);
    }
};

struct EMULATE_ALIGN(4) __half2 {
    __half x, y;

    __half2() = default;
    __half2(const __half &x_, const __half &y_) : x(x_), y(y_) {}
};

inline __half __float2half_rn(float x)
{
    return __half(x);
}
inline float __half2float(__half x)
{
    return static_cast<float>(x);
}
inline unsigned short __half_as_ushort(__half x)
{
    return x.emulate_bits;
}
inline __half __ushort_as_half(unsigned short bits)
{
    __half x;
    x.emulate_bits = bits;
    return x;
}
inline __half2 __floats2half2_rn(float x, float y)
{
    return {__half(x), __half(y)};
}

#endif
