/* Convolutions of ResNets on one thread: the three passes of graph/math/convolution.h, in bf16 too
 * where the processor has it, and the product way, against a large matrix product measured in
 * between. The best of several interleaved runs each, in time of the thread. Prints GFLOP/s, and
 * all three passes as a share of the product, and of the roofline: no faster either than a copy,
 * measured likewise, moves each array once; and how much faster they are in bf16.
 * Usage: bench_convolution [batch [repeats]]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/base/random.h"
#include "graph/math/convolution.h"
#include "graph/math/convolution_gemm.h"
#include "graph/math/half.h"
#include "graph/math/math.h"

enum { BATCH = 8, REPEATS = 20, CEILING = 1024, COPY = 7, HALF = 8, WAYS = 11 };

/* Read and written, more than a cache holds. */
#define COPY_BYTES ((size_t)128 << 20)

typedef struct layer {
    int64_t in, out, size, kernel, stride, groups;
} layer;

static const layer LAYERS[] = {
    {3, 64, 224, 7, 2, 1},    {64, 64, 56, 3, 1, 1},    {128, 128, 28, 3, 1, 1},
    {256, 256, 14, 3, 1, 1},  {512, 512, 7, 3, 1, 1},   {64, 128, 56, 3, 2, 1},
    {64, 256, 56, 1, 1, 1},   {256, 64, 56, 1, 1, 1},   {512, 128, 28, 1, 1, 1},
    {1024, 256, 14, 1, 1, 1}, {256, 1024, 14, 1, 1, 1}, {2048, 512, 7, 1, 1, 1},
    {256, 512, 56, 1, 2, 1},  {128, 128, 56, 3, 1, 32}, {144, 144, 56, 3, 1, 144},
};

typedef struct work {
    smp_convolution_shape shape;
    smp_convolution *convolution, *half; /* half: NULL without bf16 */
    float *x, *w, *y, *dx, *dw, *workspace, *square[3], *copied[2];
    uint16_t *x16, *w16, *y16; /* the same values */
} work;

static void check(smp_status status)
{
    if (status == SMP_OK)
        return;
    fprintf(stderr, "bench_convolution: %s\n", smp_last_error());
    exit(1);
}

static float *make(int64_t n)
{
    float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) / 64 * 64);
    if (!x)
        check(smp_fail_memory((size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)(smp_random_mix((uint64_t)i) >> 11) * 0x1p-52 - 1);
    return x;
}

static uint16_t *make_half(const float *from, int64_t n)
{
    uint16_t *x = malloc((size_t)n * sizeof *x);
    if (!x)
        check(smp_fail_memory((size_t)n * sizeof *x));
    smp__to_bf16(x, from, n);
    return x;
}

static smp_status run_half(const work *k, int pass)
{
    const smp_convolution_weights w = {k->w, k->w16};
    if (!k->half)
        return SMP_OK;
    if (pass == 0)
        return smp_convolution_forward(k->half, k->x16, w, NULL, k->y, k->workspace);
    if (pass == 1)
        return smp_convolution_backward_input(k->half, k->y16, w, k->dx, k->workspace);
    return smp_convolution_backward_weight(k->half, k->x16, k->y16, k->dw, k->workspace);
}

static smp_status run(const work *k, int way)
{
    const smp_convolution_shape *s = &k->shape;
    const smp_convolution_weights w = {k->w, k->w16};
    switch (way) {
    case 0:
        return smp_math_gemm(false, false, CEILING, CEILING, CEILING, 1, k->square[0], CEILING,
                             k->square[1], CEILING, 0, k->square[2], CEILING);
    case 1:
        return smp_convolution_forward(k->convolution, k->x, w, NULL, k->y, k->workspace);
    case 2:
        return smp_convolution_backward_input(k->convolution, k->y, w, k->dx, k->workspace);
    case 3:
        return smp_convolution_backward_weight(k->convolution, k->x, k->y, k->dw, k->workspace);
    case 4:
        return smp__convolution_gemm_forward(s, k->x, k->w, NULL, k->y, k->workspace);
    case 5:
        return smp__convolution_gemm_backward_input(s, k->y, k->w, k->dx, k->workspace);
    case 6:
        return smp__convolution_gemm_backward_weight(s, k->x, k->y, k->dw, k->workspace);
    case COPY:
        memcpy(k->copied[1], k->copied[0], COPY_BYTES / 2);
        return SMP_OK;
    default:
        return run_half(k, way - HALF);
    }
}

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench(const layer *l, int64_t batch, int repeats, float *const square[3],
                  float *const copied[2])
{
    work k = {.square = {square[0], square[1], square[2]}, .copied = {copied[0], copied[1]}};
    const int64_t padding = l->kernel / 2,
                  out = (l->size + 2 * padding - l->kernel) / l->stride + 1;
    k.shape = (smp_convolution_shape){.batch = batch,
                                      .in = {l->in, l->size, l->size},
                                      .out = {l->out, out, out},
                                      .groups = l->groups,
                                      .kernel = {l->kernel, l->kernel},
                                      .stride = {l->stride, l->stride},
                                      .padding = {padding, padding},
                                      .dilation = {1, 1}};
    const int64_t n_x = batch * l->in * l->size * l->size, n_y = batch * l->out * out * out;
    const int64_t n_w = l->out * smp_convolution_taps(&k.shape);
    k.x = make(n_x), k.dx = make(n_x), k.y = make(n_y), k.w = make(n_w), k.dw = make(n_w);
    k.x16 = make_half(k.x, n_x), k.y16 = make_half(k.y, n_y), k.w16 = make_half(k.w, n_w);
    smp_convolution_shape half = k.shape;
    half.half = true;
    const int64_t bytes[] = {smp_convolution_workspace(&k.shape), smp_convolution_workspace(&half),
                             smp__convolution_gemm_workspace(&k.shape)};
    const int64_t most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    k.workspace = make((most > bytes[2] ? most : bytes[2]) / (int64_t)sizeof(float) + 1);
    check(smp_convolution_create(&k.shape, false, true, &k.convolution));
    if (smp_math_has_bf16())
        check(smp_convolution_create(&half, false, true, &k.half));

    double best[WAYS] = {0};
    for (int i = 0; i < repeats * WAYS; i++) {
        const double start = thread_s();
        check(run(&k, i % WAYS));
        const double seconds = thread_s() - start;
        if (i < WAYS || seconds < best[i % WAYS])
            best[i % WAYS] = seconds;
    }
    const double flops = 2e-9 * (double)n_y * (double)smp_convolution_taps(&k.shape);
    const double ceiling = 2e-9 * CEILING * CEILING * CEILING / best[0];
    printf("%4d > %4d %3d^2 %d^2 /%d %3d ", (int)l->in, (int)l->out, (int)l->size, (int)l->kernel,
           (int)l->stride, (int)l->groups);
    const double moved = (double)sizeof(float) * (double)(n_x + n_y + n_w);
    const double moving = moved / (double)COPY_BYTES * best[COPY],
                 took = best[1] + best[2] + best[3];
    const double least = moving > flops / ceiling ? moving : flops / ceiling;
    for (int i = 1; i < COPY; i++)
        printf(" %7.1f", flops / best[i]);
    for (int i = HALF; i < WAYS; i++)
        printf(" %7.1f", k.half ? flops / best[i] : 0);
    printf(" %8.1f %6.1f %6.2f %6.2f %6.2f\n", ceiling, 1e-9 * (double)COPY_BYTES / best[COPY],
           3 * flops / ceiling / took, 3 * least / took,
           k.half ? took / (best[HALF] + best[HALF + 1] + best[HALF + 2]) : 0);
    smp_convolution_destroy(k.convolution);
    smp_convolution_destroy(k.half);
    void *all[] = {k.x, k.dx, k.y, k.w, k.dw, k.workspace, k.x16, k.y16, k.w16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

int main(int argc, char **argv)
{
    const int64_t batch = argc > 1 ? strtoll(argv[1], NULL, 10) : BATCH;
    const int repeats = argc > 2 ? atoi(argv[2]) : REPEATS;
    if (batch < 1 || batch > 4096 || repeats < 1) {
        fprintf(stderr, "usage: bench_convolution [batch [repeats]]\n");
        return 2;
    }
    float *square[3];
    for (int i = 0; i < 3; i++)
        square[i] = make(CEILING * CEILING);
    float *copied[2];
    for (int i = 0; i < 2; i++)
        copied[i] = make(COPY_BYTES / 2 / sizeof(float));
    printf("one thread, GFLOP/s, best of %d, batch %lld: %s\n", repeats, (long long)batch,
           smp_math_name());
    printf("%-27s %23s %23s %23s\n", "", "as chosen", "by products", "bf16");
    printf("%-27s %7s %7s %7s %7s %7s %7s %7s %7s %7s %8s %6s %6s %6s %6s\n",
           "channels, image, kernel, /s, g", "y", "dx", "dw", "y", "dx", "dw", "y", "dx", "dw",
           "GEMM", "GB/s", "share", "roof", "bf16");
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++)
        bench(&LAYERS[i], batch, repeats, square, copied);
    for (int i = 0; i < 3; i++)
        free(square[i]);
    for (int i = 0; i < 2; i++)
        free(copied[i]);
    return 0;
}
