/* What linear and ring_linear share on a GPU: the gradients of weight and bias. */
#ifndef SMP_GRAPH_OPS_LINEAR_CUH
#define SMP_GRAPH_OPS_LINEAR_CUH

#include "graph/cuda/cuda_axis.cuh"
#include "graph/ops/matmul/linear_fp8.h"
#include "graph/cuda/cuda_gemm.cuh"
extern "C" {
#include "graph/ops/ops.h"
}

/* dW (features, in) of dy (rows, features) and x (rows, in). */
struct smp_linear_weight {
    smp__gemm *product;
    int64_t rows, features;
    int64_t chunks; /* of rows, for the bias's gradient; 0: there is none, or another makes it */
};

/* fp8: of transposed factors, and the bias's gradient is made apart. The product is freed with
 * smp__gemm_destroy. */
static inline smp_status smp_linear_weight_create(const smp_cuda *cuda, smp_dtype type, bool fp8,
                                                  int64_t rows, int64_t in, int64_t features,
                                                  bool bias, smp_linear_weight *out)
{
    const int64_t row_bytes = features * (int64_t)sizeof(float);
    smp__gemm_shape shape = {};
    shape.trans_a = true;
    shape.m = features, shape.n = in, shape.k = rows;
    shape.lda = features, shape.ldb = in, shape.ldc = in;
    shape.in = type;
    shape.out = SMP_F32;
    shape.epilogue = bias && !fp8 ? SMP__GEMM_BIAS_GRADIENT : SMP__GEMM_PLAIN;
    if (fp8) {
        shape.fp8 = SMP__GEMM_FP8_GRADIENT;
        shape.trans_a = false, shape.trans_b = true;
        shape.k = shape.lda = shape.ldb = smp__fp8_row(rows);
    }
    out->rows = rows;
    out->features = features;
    out->chunks = bias ? smp__column_sum_bytes(rows, features) / row_bytes : 0;
    return smp__gemm_create(cuda, &shape, &out->product);
}

/* dparam[1] += the column sums of dout, through the sums of chunks in the workspace; or = (fresh).
 * Nothing where there is no bias. */
static inline smp_status smp_linear_sum_columns(const smp_op_call *call, const smp_linear_weight *w)
{
    if (w->chunks == 0)
        return SMP_OK;
    return SMP_AS(smp_dtype_of_call(call), smp_add_column_sums, call, call->dparam[1], w->rows,
                  w->features, w->chunks);
}

/* dparam[0] += dy^T x, and dparam[1] += the column sums of dy, which is the call's dout then; or =
 * (fresh). The library writes sums, where it makes them: into the workspace, from where they are
 * added. Where it does not, two kernels of ours do, through the sums of chunks in the workspace. */
static inline smp_status smp_linear_weigh(const smp_op_call *call, const smp_linear_weight *w,
                                          const void *dy, const void *x)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const bool writes = w->chunks > 0 && call->fresh;
    float *sums = writes ? call->dparam[1] : static_cast<float *>(call->workspace);
    SMP_TRY(smp__gemm_run(cuda, w->product, 1, dy, x, call->fresh ? 0 : 1, call->dparam[0], NULL,
                          w->chunks > 0 ? sums : NULL));
    if (w->chunks > 0 && smp__gemm_is_apart(w->product))
        return smp_linear_sum_columns(call, w);
    if (w->chunks == 0 || writes)
        return SMP_OK;
    return smp_launch_column_sums<float, 1, true>(cuda, sums, call->dparam[1], 1, w->features, 1);
}

#endif
