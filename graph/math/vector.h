/* Rows of floats: the elementwise and reduction loops that several operators share.
 *
 * Every function gives the same bits on every machine, for every alignment: elementwise work is
 * plain IEEE arithmetic (no contraction, no reassociation), and a sum is taken in one written-out
 * order: SMP_LANES partial sums, element i in lane i mod SMP_LANES, folded in halves. The compiler
 * vectorises the lanes; what it may choose is only how wide a register is.
 *
 * Loads stand outside of conditions (`y[i] = x[i] * (keep ? a : b)`): gcc 12 mixes up the masks of
 * conditional loads when it unrolls a nested loop for AVX2.
 *
 * SMP_VECTOR on a function makes it once per instruction set, chosen when the program starts. It is
 * empty where function multiversioning is not to be had: other compilers and machines, no
 * optimisation, and under sanitizers (the choice runs before their start-up code). A build may name
 * the one set it wants instead, SMP_VECTOR_TARGET: tests compare the bits of the sets so. */
#ifndef SMP_GRAPH_MATH_VECTOR_H
#define SMP_GRAPH_MATH_VECTOR_H

#include <stdint.h>
#include <string.h>

#ifdef SMP_VECTOR_TARGET
#define SMP_VECTOR __attribute__((target(SMP_VECTOR_TARGET)))
#elif defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) &&     \
    defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SMP_VECTOR __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define SMP_VECTOR
#endif

enum { SMP_LANES = 16 };

/* The lanes as a value, where a loop must keep several in registers; and as they lie in memory, at
 * any address. The compiler takes as many registers as the lanes need. */
typedef float smp__lanes __attribute__((vector_size(64)));
typedef float smp__loose __attribute__((vector_size(64), aligned(4), may_alias));

/* Adds the lanes in halves: 8 pairs, 4 pairs, ... In registers: a loop over the array would wait
 * for its own stores at every step, longer than a short row takes to be added. */
static inline float smp__fold(const float lane[SMP_LANES])
{
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight low, high;
    memcpy(&low, lane, sizeof low);
    memcpy(&high, lane + 8, sizeof high);
    low += high;
    four first, second;
    memcpy(&first, &low, sizeof first);
    memcpy(&second, (const char *)&low + sizeof first, sizeof second);
    first += second;
    return (first[0] + first[2]) + (first[1] + first[3]);
}

float smp__sum(const float *x, int64_t n);
float smp__max(const float *x, int64_t n); /* n >= 1; a NaN may be passed over */
float smp__dot(const float *x, const float *y, int64_t n);
float smp__sum_squares(const float *x, float mean, int64_t n); /* of (x - mean)^2 */

void smp__add(float *restrict y, const float *a, const float *b, int64_t n); /* y = a + b */
void smp__mul(float *restrict y, const float *a, const float *b, int64_t n); /* y = a * b */
void smp__accumulate(float *restrict y, const float *restrict x, int64_t n); /* y += x */
void smp__scale(float *y, float factor, int64_t n);                          /* y *= factor */

/* total[c] += sum over r of x[r * stride + c], rows in order, for c < columns. */
void smp__column_sums(float *restrict total, const float *restrict x, int64_t rows, int64_t columns,
                      int64_t stride);

/* y[i] = exp(x[i] - shift), returns their sum; shift >= every x[i]. In place allowed. Relative
 * error of an element under 2^-22 down to exp(-87.3); exactly 0 below exp(-88); NaN stays NaN. */
float smp__exp_row(float *y, const float *x, float shift, int64_t n);
/* The sum alone, the same bits. */
float smp__exp_sum(const float *x, float shift, int64_t n);

/* y = exp(-|x|), for what must not overflow; accurate as above. In place allowed. */
void smp__exp_magnitude(float *y, const float *x, int64_t n);
/* y = 1 / (1 + exp(-x)), from that; NaN stays NaN. In place allowed. */
void smp__sigmoid(float *y, const float *x, int64_t n);

#endif
