/* Matrix products on a GPU through cuBLASLt. A plan is made once for a shape (descriptors, layouts
 * and an entry in the device's list of products) and run any number of times; a run allocates
 * nothing and returns when its kernel is enqueued. Which of the library's algorithms it takes the
 * list says (graph/math/gemm_algorithms.h); one that the library refuses is followed by the next,
 * as long as the list is not settled, and the last resort is the epilogue apart. All matrices are
 * row-major, and start at multiples of 64 bytes unless a shape says otherwise. Readable as C. */
#ifndef SMP_GRAPH_CUDA_CUDA_GEMM_CUH
#define SMP_GRAPH_CUDA_CUDA_GEMM_CUH

#ifdef __cplusplus
extern "C" {
#endif
#include "graph/model/graph.h"
#ifdef __cplusplus
}
#endif
#include "graph/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum smp__gemm_epilogue {
    SMP__GEMM_PLAIN, /* C = P, where P = alpha op(A) op(B) + beta C */
    SMP__GEMM_BIAS,  /* C = P + bias, [n], of C's type, the same for every row */
    SMP__GEMM_GELU,  /* aux = P, C = gelu(P) by the tanh approximation; n a multiple of 8 */
    SMP__GEMM_GELU_BIAS,
    SMP__GEMM_GELU_GRADIENT, /* C = P gelu'(aux), aux [m,n] being read; n a multiple of 8 */
    SMP__GEMM_BIAS_GRADIENT  /* C = P, aux[m] = sums of the rows of op(A), out of the same reads */
} smp__gemm_epilogue;

/* Factors of 8 bits (graph/math/fp8.h), each with a scale on the device (smp__gemm_scale). A is not
 * transposed and B is: there are no other products on Hopper. k is a multiple of 16, rows start at
 * multiples of 16 bytes, and no epilogue reads the factors. */
typedef enum smp__gemm_fp8 {
    SMP__GEMM_NO_FP8,
    SMP__GEMM_FP8,         /* E4M3, and sums on tensor cores in as many bits as these keep */
    SMP__GEMM_FP8_GRADIENT /* A is E5M2, B E4M3; what tensor cores add up is brought to fp32 */
} smp__gemm_fp8;

/* C[m,n] = epilogue(alpha * op(A)[m,k] * op(B)[k,n] + beta * C). Sums are fp32. */
typedef struct smp__gemm_shape {
    bool trans_a, trans_b; /* A is stored [k,m], B [n,k] */
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* row strides in elements; of an aux [m,n] too: ldc */
    smp_dtype in;          /* of A and B: SMP_F32, SMP_BF16 or SMP_F16; SMP_BF16 with fp8 */
    smp__gemm_fp8 fp8;
    smp_dtype out; /* of C, aux and bias: SMP_F32, or as `in` */
    smp__gemm_epilogue epilogue;
    int64_t count;     /* as many products at once, no epilogue: 0 is 1 */
    int64_t step[3];   /* elements from one to the next, of A, B and C */
    int64_t alignment; /* bytes of which every matrix starts at a multiple: 0 is 64 */
} smp__gemm_shape;

typedef struct smp__gemm smp__gemm;
struct smp_gemm; /* graph/math/gemm_algorithms.h */

/* fp32 factors are rounded to TF32 if that is the device's precision. SMP_ERR_FAILED if the library
 * has no algorithm for the shape without its epilogue. Freed with smp__gemm_destroy. */
smp_status smp__gemm_create(const smp_cuda *cuda, const smp__gemm_shape *shape, smp__gemm **out);
void smp__gemm_destroy(smp__gemm *gemm); /* accepts NULL */

/* Of a product in fp8: where the factors' scales are, until the next call. */
smp_status smp__gemm_scale(smp__gemm *gemm, const float *a, const float *b);

/* `cuda`: the context that the plan was made for. bias, aux: NULL where the epilogue has none. With
 * beta 0 the contents of C are not read. SMP_ERR_FAILED if the library refuses. */
smp_status smp__gemm_run(const smp_cuda *cuda, smp__gemm *gemm, float alpha, const void *a,
                         const void *b, float beta, void *c, const void *bias, void *aux);

/* The library refuses the algorithm of an entry of the list that is chosen: it is the next one, or
 * the list is settled or has no other, and that is an error. */
smp_status smp__gemm_refuse(const smp_cuda *cuda, struct smp_gemm *product, const char *library,
                            const char *why);

/* Is the epilogue done apart? A bias is then added by smp__gemm_run, in a pass before the product.
 * Of GELU it leaves aux = P, with beta 0, and C = gelu(aux) to the caller; of a gradient C = P and
 * all else. Ask after the run, which may be the one that finds it out. */
bool smp__gemm_is_apart(const smp__gemm *gemm);

#ifdef __cplusplus
}
#endif

#endif
