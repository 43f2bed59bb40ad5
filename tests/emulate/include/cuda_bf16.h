/* <cuda_bf16.h> of the emulator. There are no implicit conversions and no arithmetic on bf16:
 * kernels convert by name and compute in float, so that what is rounded when can be read. */
#ifndef SMP_TESTS_EMULATE_CUDA_BF16_H
#define SMP_TESTS_EMULATE_CUDA_BF16_H

#include <stdint.h>
#include <string.h>

#include "vector_types.h"

/* The upper half of a float, rounded to nearest, ties to even; every NaN becomes 0x7fff. */
inline uint16_t emulate_bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
inline float emulate_bf16_value(uint16_t bits)
{
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

struct EMULATE_ALIGN(2) __nv_bfloat16 {
    uint16_t emulate_bits;

    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) : emulate_bits(emulate_bf16_bits(x)) {}
    explicit operator float() const
    {
        return emulate_bf16_value(emulate_bits);
    }
};
typedef __nv_bfloat16 nv_bfloat16;

struct EMULATE_ALIGN(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;

    __nv_bfloat162() = default;
    __nv_bfloat162(const __nv_bfloat16 &x_, const __nv_bfloat16 &y_) : x(x_), y(y_) {}
};
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16(x);
}
inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __nv_bfloat16(x);
}
inline float __bfloat162float(__nv_bfloat16 x)
{
    return static_cast<float>(x);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.emulate_bits;
}
inline short __bfloat16_as_short(__nv_bfloat16 x)
{
    return static_cast<short>(x.emulate_bits);
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    __nv_bfloat16 x;
    x.emulate_bits = bits;
    return x;
}
inline __nv_bfloat16 __short_as_bfloat16(short bits)
{
    return __ushort_as_bfloat16(static_cast<unsigned short>(bits));
}

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y)
{
    return {x, y};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x)
{
    return {x, x};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __floats2bfloat162_rn(v.x, v.y);
}
inline __nv_bfloat162 __float2bfloat162_rn(float x)
{
    return __floats2bfloat162_rn(x, x);
}
inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}
inline float __low2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.x);
}
inline float __high2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.y);
}

#endif
