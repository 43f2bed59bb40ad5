/* GEMM on the shapes of GPT-2 124M, one thread: the library behind graph/math/math.h against
 * OpenBLAS, for the three products of a linear layer. The better of several interleaved runs each;
 * the results are compared, too. Prints GFLOP/s and the ratio. Usage: bench_gemm [rows]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "graph/base/random.h"
#include "graph/math/math.h"

#ifdef SMP_HAVE_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int threads); /* a cblas.h of another BLAS lacks it */
#endif

enum { ROWS = 1024, REPEATS = 5 };

typedef struct layer {
    const char *name;
    int64_t in, features;
} layer;

static const layer LAYERS[] = {
    {"attn.qkv", 768, 2304}, {"attn.proj", 768, 768},        {"mlp.up", 768, 3072},
    {"mlp.down", 3072, 768}, {"head (1/8)", 768, 50257 / 8},
};

/* C[m,n] = op(A) op(B), dense. */
typedef struct product {
    const char *name;
    bool trans_a, trans_b;
    int64_t m, n, k;
} product;

typedef void (*gemm_function)(const product *p, const float *a, const float *b, float *c);

static void gemm_smp(const product *p, const float *a, const float *b, float *c)
{
    if (smp_math_gemm(p->trans_a, p->trans_b, p->m, p->n, p->k, 1, a, p->trans_a ? p->m : p->k, b,
                      p->trans_b ? p->k : p->n, 0, c, p->n) != SMP_OK) {
        fprintf(stderr, "bench_gemm: %s\n", smp_last_error());
        exit(1);
    }
}

#ifdef SMP_HAVE_OPENBLAS
static void gemm_openblas(const product *p, const float *a, const float *b, float *c)
{
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans,
                p->trans_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1, a,
                (int)(p->trans_a ? p->m : p->k), b, (int)(p->trans_b ? p->k : p->n), 0, c,
                (int)p->n);
}
#endif

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(gemm_function gemm, const product *p, const float *a, const float *b, float *c,
                    double *best_s)
{
    double start = now_s();
    gemm(p, a, b, c);
    double seconds = now_s() - start;
    if (*best_s == 0 || seconds < *best_s)
        *best_s = seconds;
}

static float *matrix(int64_t elements, uint64_t seed)
{
    float *x = aligned_alloc(64, ((size_t)elements * sizeof *x + 63) / 64 * 64);
    if (!x) {
        fprintf(stderr, "bench_gemm: out of memory\n");
        exit(1);
    }
    for (int64_t i = 0; i < elements; i++)
        x[i] = (float)((double)(smp_random_mix((seed << 40) + (uint64_t)i) >> 11) * 0x1p-52 - 1);
    return x;
}

#ifdef SMP_HAVE_OPENBLAS
static double largest_difference(const float *x, const float *y, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)x[i] - (double)y[i]));
    return largest;
}
#endif

static void bench(const layer *l, const product *p)
{
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    double smp_s = 0;
    float *a = matrix(p->m * p->k, 1), *b = matrix(p->k * p->n, 2), *c = matrix(p->m * p->n, 3);
#ifdef SMP_HAVE_OPENBLAS
    double openblas_s = 0;
    float *d = matrix(p->m * p->n, 4);
    for (int i = 0; i < REPEATS; i++) {
        measure(gemm_smp, p, a, b, c, &smp_s);
        measure(gemm_openblas, p, a, b, d, &openblas_s);
    }
    printf("%-11s %-9s %5lld x %5lld x %5lld %9.1f %9.1f %7.3f   %.1e\n", l->name, p->name,
           (long long)p->m, (long long)p->n, (long long)p->k, flops / smp_s * 1e-9,
           flops / openblas_s * 1e-9, openblas_s / smp_s, largest_difference(c, d, p->m * p->n));
    free(d);
#else
    for (int i = 0; i < REPEATS; i++)
        measure(gemm_smp, p, a, b, c, &smp_s);
    printf("%-11s %-9s %5lld x %5lld x %5lld %9.1f\n", l->name, p->name, (long long)p->m,
           (long long)p->n, (long long)p->k, flops / smp_s * 1e-9);
#endif
    free(a);
    free(b);
    free(c);
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 1 ? strtoll(argv[1], NULL, 10) : ROWS;
    if (rows < 1 || rows > 1 << 20) {
        fprintf(stderr, "usage: bench_gemm [rows]\n");
        return 2;
    }
    printf("one thread, GFLOP/s, best of %d: %s", REPEATS, smp_math_name());
#ifdef SMP_HAVE_OPENBLAS
    openblas_set_num_threads(1);
    printf(" against OpenBLAS; ratio above 1: %s is faster", smp_math_name());
    printf("\n%-11s %-9s %5s   %5s   %5s %9s %9s %7s   %s\n", "layer", "product", "m", "n", "k",
           "oneDNN", "OpenBLAS", "ratio", "largest difference");
#else
    printf("\n%-11s %-9s %5s   %5s   %5s %9s\n", "layer", "product", "m", "n", "k", "oneDNN");
#endif
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++) {
        const layer *l = &LAYERS[i];
        bench(l, &(product){"y = xW'", false, true, rows, l->features, l->in});
        bench(l, &(product){"dx = dyW", false, false, rows, l->in, l->features});
        bench(l, &(product){"dW = dy'x", true, false, l->features, l->in, rows});
    }
    return 0;
}
