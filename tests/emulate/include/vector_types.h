/* CUDA's small vectors and dim3, for C and C++. */
#ifndef SMP_TESTS_EMULATE_VECTOR_TYPES_H
#define SMP_TESTS_EMULATE_VECTOR_TYPES_H

#define EMULATE_ALIGN(n) __attribute__((aligned(n)))

/* type, name, alignment of the vectors of two and four */
#define EMULATE_VECTORS(X)                                                                         \
    X(signed char, char, 2, 4)                                                                     \
    X(unsigned char, uchar, 2, 4)                                                                  \
    X(short, short, 4, 8)                                                                          \
    X(unsigned short, ushort, 4, 8)                                                                \
    X(int, int, 8, 16)                                                                             \
    X(unsigned, uint, 8, 16)                                                                       \
    X(long long, longlong, 16, 16)                                                                 \
    X(unsigned long long, ulonglong, 16, 16)                                                       \
    X(float, float, 8, 16)                                                                         \
    X(double, double, 16, 16)

#define EMULATE_VECTOR(type, name, align2, align4)                                                 \
    typedef struct name##1                                                                         \
    {                                                                                              \
        type x;                                                                                    \
    }                                                                                              \
    name##1;                                                                                       \
    typedef struct EMULATE_ALIGN(align2) name##2                                                   \
    {                                                                                              \
        type x, y;                                                                                 \
    }                                                                                              \
    name##2;                                                                                       \
    typedef struct name##3                                                                         \
    {                                                                                              \
        type x, y, z;                                                                              \
    }                                                                                              \
    name##3;                                                                                       \
    typedef struct EMULATE_ALIGN(align4) name##4                                                   \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    }                                                                                              \
    name##4;
EMULATE_VECTORS(EMULATE_VECTOR)
#undef EMULATE_VECTOR

#ifdef __cplusplus
#define EMULATE_MAKE(type, name, align2, align4)                                                   \
    inline name##1 make_##name##1(type x)                                                          \
    {                                                                                              \
        return name##1 {x};                                                                        \
    }                                                                                              \
    inline name##2 make_##name##2(type x, type y)                                                  \
    {                                                                                              \
        return name##2 {x, y};                                                                     \
    }                                                                                              \
    inline name##3 make_##name##3(type x, type y, type z)                                          \
    {                                                                                              \
        return name##3 {x, y, z};                                                                  \
    }                                                                                              \
    inline name##4 make_##name##4(type x, type y, type z, type w)                                  \
    {                                                                                              \
        return name##4 {x, y, z, w};                                                               \
    }
EMULATE_VECTORS(EMULATE_MAKE)
#undef EMULATE_MAKE
#endif

typedef struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
#endif
} dim3;

#endif
