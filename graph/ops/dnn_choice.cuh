/* What cuDNN computes as well as kernels of ours do: ways 0 and 1 of a choice of all ranks
 * (graph/math/choice.h), one for all operators that compute the same, so that cuDNN's plan is made
 * once. In the first run of the kernels both compute the same numbers, and what differs more than
 * rounding explains refuses cuDNN.
 *
 * What cuDNN may do only where a plan asks for it (because it needs workspace, or is not faster
 * everywhere) is an entry of the device's list of products, too, whose algorithms are ours, first,
 * and cuDNN of the version here; what the choice of ways refuses the list refuses. */
#ifndef SMP_GRAPH_OPS_DNN_CHOICE_CUH
#define SMP_GRAPH_OPS_DNN_CHOICE_CUH

#include <stdlib.h>
#include <string.h>

#include "graph/cuda/cuda_dnn.h"
#include "graph/cuda/cuda_gemm.cuh"
#include "graph/cuda/cuda_kernel.cuh"
extern "C" {
#include "graph/math/gemm_algorithms.h"
}

enum { SMP_BY_DNN, SMP_BY_OURS };
enum { SMP_TRIAL_BLOCKS = 64 };

/* What was made for a choice. */
template <typename Plan> struct smp_dnn_ways {
    Plan *plan;     // NULL: there is none
    float *differs; // [SMP_TRIAL_BLOCKS], pinned
    void (*destroy)(Plan *plan);

    static void release(void *made)
    {
        smp_dnn_ways *ways = static_cast<smp_dnn_ways *>(made);
        if (ways) {
            ways->destroy(ways->plan);
            cudaFreeHost(ways->differs);
        }
        free(ways);
    }
};

template <typename Plan>
static inline smp_dnn_ways<Plan> *smp_dnn_ways_of(const smp__choice *choice)
{
    return static_cast<smp_dnn_ways<Plan> *>(choice->made);
}

/* Both ways; the plan, NULL: there is none, is the choice's. */
template <typename Plan>
static inline smp_status smp_dnn_add_ways(const smp_cuda *cuda, smp__choice *choice, Plan *plan,
                                          void (*destroy)(Plan *plan))
{
    smp_dnn_ways<Plan> *ways = static_cast<smp_dnn_ways<Plan> *>(calloc(1, sizeof *ways));
    choice->made = ways;
    choice->release = smp_dnn_ways<Plan>::release;
    choice->ways = SMP_BY_OURS + 1;
    if (!ways) {
        destroy(plan);
        return smp_fail_memory(sizeof *ways);
    }
    ways->plan = plan;
    ways->destroy = destroy;
    if (!plan)
        smp__choice_refuse(choice, SMP_BY_DNN, "cuDNN %s",
                           cuda->dnn ? "has no plan for it" : "is not here");
    return SMP_CUDA(cudaHostAlloc, reinterpret_cast<void **>(&ways->differs),
                    SMP_TRIAL_BLOCKS * sizeof *ways->differs, cudaHostAllocDefault);
}

/* An entry of the list of products. */
struct smp_dnn_product {
    smp__choice *choice; // NULL: it is ours
    smp_gemm *product;
    const char *ours; // the name of our algorithm
};

/* Its algorithms: on every rank that has the operator, whether cuDNN is here or not. */
template <typename Plan>
static inline smp_status smp_dnn_list(const smp_cuda *cuda, const char *about, bool only_dnn,
                                      smp_dnn_product *of)
{
    char dnn[SMP__DNN_NAME_BYTES];
    SMP_TRY(smp_gemms_get(cuda->products, about, &of->product));
    if (of->product->here)
        return SMP_OK;
    of->product->here = true;
    if (only_dnn) {
        of->product->asked = false;
        of->product->n_algorithm = 0;
    } else {
        smp_gemm_add(of->product, of->ours);
    }
    smp__dnn_name(dnn);
    if (only_dnn || smp_dnn_ways_of<Plan>(of->choice)->plan)
        smp_gemm_add(of->product, dnn);
    return SMP_OK;
}

/* Begins a trial in the first run, whose numbers nobody needs. Is there one? Not of what is
 * refused, nor twice in a run. */
static inline bool smp_dnn_begins_trial(const smp_cuda *cuda, const smp__choice *choice)
{
    return cuda->choices->trying && !choice->differs && smp__choice_way(choice) == SMP_BY_DNN;
}

/* cuDNN has done it, or refuses: what is left to do is to compare. */
template <typename Plan> static inline bool smp_dnn_has_run(smp__choice *choice, smp_status status)
{
    if (status != SMP_OK) {
        smp__choice_refuse(choice, SMP_BY_DNN, "%s", smp_last_error());
        return false;
    }
    choice->differs = smp_dnn_ways_of<Plan>(choice)->differs;
    memset(smp_dnn_ways_of<Plan>(choice)->differs, 0, SMP_TRIAL_BLOCKS * sizeof *choice->differs);
    return true;
}

/* As the list of products says, if that is by cuDNN, of which `run` is the call; *done: it was. */
template <typename Run>
static inline smp_status smp_dnn_as_listed(const smp_cuda *cuda, const smp_dnn_product &of,
                                           const Run &run, bool *done)
{
    smp_gemm *product = of.product;
    char here[SMP__DNN_NAME_BYTES];
    smp__dnn_name(here);
    *done = false;
    while (!*done && strcmp(product->algorithm[product->chosen], of.ours) != 0) {
        const char *why = NULL;
        if (smp__choice_way(of.choice) != SMP_BY_DNN)
            why = of.choice->why;
        else if (strcmp(product->algorithm[product->chosen], here) != 0)
            why = "another version of it is here";
        else if (run() != SMP_OK)
            why = smp_last_error();
        *done = !why;
        if (why)
            SMP_TRY(smp__gemm_refuse(cuda, product, "cuDNN", why));
    }
    product->runs++;
    return SMP_OK;
}

/* Numbers like those of a model, of every size up to 2. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) smp_trial_numbers(T *to, int64_t n, uint32_t seed)
{
    for (int64_t i = smp_thread(); i < n; i += smp_threads()) {
        uint32_t x = (uint32_t)i * 2654435761u + seed; /* Wellons' lowbias32 */
        x = (x ^ x >> 16) * 0x21f0aaadu;
        x = (x ^ x >> 15) * 0xd35a2d97u;
        to[i] = smp_from<T>(ldexpf((float)(int32_t)(x ^ x >> 15), -30));
    }
}

/* In place of zeroes, which would show nothing. */
template <typename T>
static inline smp_status smp_fill_trial(const smp_cuda *cuda, T *to, int64_t n, uint32_t seed)
{
    SMP_LAUNCH(smp_trial_numbers<T>, smp_grid(cuda, n), SMP_BLOCK, 0, cuda->stream, to, n, seed);
    return smp__cuda_launched("numbers to compare");
}

/* Twice the distance that rounding may put between two results: each rounds sums of values up to
 * 2, and perhaps what they are made of. fp32: of long sums of factors in 16 bits. */
template <typename T> static constexpr float smp_trial_allowed = 0x1p-8f;
template <> constexpr float smp_trial_allowed<bf16> = 0x1p-5f;

/* *worst = the larger of it and the distance, in units of what is allowed. */
static __device__ __forceinline__ void smp_trial_worse(float a, float b, float allowed,
                                                       float *worst)
{
    const float off = fabsf(a - b) / allowed;
    *worst = off <= *worst ? *worst : off == off ? off : INFINITY;
}

/* differs[block] = the larger of it and the largest distance of the block's rows of a from those of
 * b, in units of what is allowed: a share of the row's largest value, since rows may be small
 * beside others (late ones of causal attention), and of a small share of the largest of all, as
 * rows that are zero but for rounding have none. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_trial_rows(const T *a, int64_t a_stride, const T *b, int64_t b_stride, int64_t rows,
                   int64_t columns, float *differs)
{
    __shared__ float scratch[SMP_WARP];
    float largest = 0x1p-20f, worst = differs[blockIdx.x];
    for (int64_t i = smp_thread(); i < rows * columns; i += smp_threads())
        largest = fmaxf(largest, fabsf(smp_float(b[i / columns * b_stride + i % columns])));
    largest = smp_block_max(largest, scratch);
    for (int64_t r = smp_thread(); r < rows; r += smp_threads()) {
        const T *got = a + r * a_stride, *wanted = b + r * b_stride;
        float of_row = 0x1p-6f * largest;
        for (int64_t c = 0; c < columns; c++)
            of_row = fmaxf(of_row, fabsf(smp_float(wanted[c])));
        for (int64_t c = 0; c < columns; c++)
            smp_trial_worse(smp_float(got[c]), smp_float(wanted[c]), smp_trial_allowed<T> * of_row,
                            &worst);
    }
    worst = smp_block_max(worst, scratch);
    if (threadIdx.x == 0)
        differs[blockIdx.x] = worst;
}

/* differs[0] = the largest; one warp. */
static __global__ void __launch_bounds__(SMP_WARP) smp_trial_worst(float *differs)
{
    float worst = 0;
    for (int i = threadIdx.x; i < SMP_TRIAL_BLOCKS; i += SMP_WARP)
        worst = fmaxf(worst, differs[i]);
    worst = smp_warp_max(worst);
    if (threadIdx.x == 0)
        differs[0] = worst;
}

/* After comparisons by several blocks. */
static inline smp_status smp_end_trial(const smp_cuda *cuda, float *differs)
{
    SMP_LAUNCH(smp_trial_worst, 1, SMP_WARP, 0, cuda->stream, differs);
    return smp__cuda_launched("numbers that differ");
}

#endif
