/* CUDA's arithmetic functions on the CPU. The fast ones (__expf) are computed exactly: a test must
 * allow for their error anyway. */
#ifndef SMP_TESTS_EMULATE_EMULATE_MATH_H
#define SMP_TESTS_EMULATE_EMULATE_MATH_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>

/* The C library declares some of these names for its own use: as macros they do not collide. */
#define __expf(x) ::expf(x)
#define __exp10f(x) ::exp10f(x)
#define __logf(x) ::logf(x)
#define __log2f(x) ::log2f(x)
#define __log10f(x) ::log10f(x)
#define __powf(x, y) ::powf(x, y)
#define __sinf(x) ::sinf(x)
#define __cosf(x) ::cosf(x)
#define __tanf(x) ::tanf(x)
#define __sincosf(x, s, c) ::sincosf(x, s, c)
#define __tanhf(x) ::tanhf(x)

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline float __frsqrt_rn(float x)
{
    return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __saturatef(float x)
{
    return x > 0.0f ? fminf(x, 1.0f) : 0.0f;
}
inline float normcdff(float x)
{
    return 0.5f * erfcf(-x * 0.70710678118654752f);
}
inline float fdividef(float x, float y)
{
    return x / y;
}
inline float __fadd_rn(float x, float y)
{
    return x + y;
}
inline float __fsub_rn(float x, float y)
{
    return x - y;
}
inline float __fmul_rn(float x, float y)
{
    return x * y;
}
inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline double __dadd_rn(double x, double y)
{
    return x + y;
}
inline double __dmul_rn(double x, double y)
{
    return x * y;
}
inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}

template <typename To, typename From> inline To emulate_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline int __float_as_int(float x)
{
    return emulate_bits<int>(x);
}
inline unsigned __float_as_uint(float x)
{
    return emulate_bits<unsigned>(x);
}
inline float __int_as_float(int x)
{
    return emulate_bits<float>(x);
}
inline float __uint_as_float(unsigned x)
{
    return emulate_bits<float>(x);
}
inline long long __double_as_longlong(double x)
{
    return emulate_bits<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return emulate_bits<double>(x);
}

inline float __int2float_rn(int x)
{
    return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x)
{
    return static_cast<float>(x);
}
inline float __ll2float_rn(long long x)
{
    return static_cast<float>(x);
}
inline float __ull2float_rn(unsigned long long x)
{
    return static_cast<float>(x);
}
inline float __double2float_rn(double x)
{
    return static_cast<float>(x);
}
inline int __float2int_rn(float x)
{
    return static_cast<int>(nearbyintf(x));
}
inline int __float2int_rz(float x)
{
    return static_cast<int>(x);
}
inline int __float2int_rd(float x)
{
    return static_cast<int>(floorf(x));
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x)
{
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned __umulhi(unsigned x, unsigned y)
{
    return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
inline int __mulhi(int x, int y)
{
    return static_cast<int>(static_cast<int64_t>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    __extension__ typedef unsigned __int128 wide;
    return static_cast<unsigned long long>(static_cast<wide>(x) * y >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> (4 * i);
        unsigned byte = static_cast<unsigned>(both >> (8 * (choice & 7)) & 0xff);
        if (choice & 8) /* the sign alone, replicated */
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}

/* min and max of two numbers of one width; of different widths they are ambiguous, as in CUDA. A
 * NaN loses, as with fminf. */
template <typename A, typename B> struct emulate_common {
    static_assert(std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, "numbers only");
    static_assert(std::is_floating_point<A>::value == std::is_floating_point<B>::value &&
                      (sizeof(A) == sizeof(B) || std::is_floating_point<A>::value),
                  "min or max of different types: convert one");
    typedef typename std::common_type<A, B>::type type;
};
template <typename A, typename B> inline typename emulate_common<A, B>::type min(A a, B b)
{
    typedef typename emulate_common<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value)
        return std::fmin(static_cast<T>(a), static_cast<T>(b));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B> inline typename emulate_common<A, B>::type max(A a, B b)
{
    typedef typename emulate_common<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value)
        return std::fmax(static_cast<T>(a), static_cast<T>(b));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

#endif
