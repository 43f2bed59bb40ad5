/* Tensor core products of tiles, for the attention kernels of 16 bits (T: bf16 or fp16): a warp
 * owns 16 MT rows. Its values are fragments as in graph/cuda/cuda_mma.cuh, acc[m][n / 8] being rows
 * 16 m .. and columns n .. n+7. */
#ifndef SMP_GRAPH_CUDA_CUDA_ATTENTION_HALF_CUH
#define SMP_GRAPH_CUDA_CUDA_ATTENTION_HALF_CUH

#include "graph/cuda/cuda_attention.cuh"

static const float ATTENTION_LOG2_E = 1.44269504088896341f;

/* acc (16 MT, N) = A (16 MT, K) B (N, K)^T, both in shared memory with rows LD apart. */
template <typename T, int MT, int N, int K, int LD>
__device__ __forceinline__ void attention_nt(float (&acc)[MT][N / 8][4], const T *a, const T *b)
{
    const int lane = threadIdx.x % SMP_WARP;
    a += lane % 16 * LD + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8;
    SMP_UNROLL
    for (int m = 0; m < MT; m++)
        for (int n = 0; n < N / 8; n++)
            for (int e = 0; e < 4; e++)
                acc[m][n][e] = 0;
    SMP_UNROLL
    for (int k = 0; k < K; k += 16) {
        uint32_t x[MT][4], y[4];
        SMP_UNROLL
        for (int m = 0; m < MT; m++)
            smp_ldmatrix_x4(x[m], a + m * 16 * LD + k);
        SMP_UNROLL
        for (int n = 0; n < N / 16; n++) {
            smp_ldmatrix_x4(y, b + n * 16 * LD + k);
            SMP_UNROLL
            for (int m = 0; m < MT; m++) {
                smp_mma_m16n8k16<T>(acc[m][2 * n], x[m], y[0], y[1]);
                smp_mma_m16n8k16<T>(acc[m][2 * n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* acc (16 MT, C) += P (16 MT, N) B (N, C); P in registers, rounded to T here: the C fragments of
 * two neighbouring products are the A fragment of the next. */
template <typename T, int MT, int N, int C, int LD>
__device__ __forceinline__ void attention_nn(float (&acc)[MT][C / 8][4],
                                             const float (&p)[MT][N / 8][4], const T *b)
{
    const int lane = threadIdx.x % SMP_WARP;
    b += lane % 16 * LD + lane / 16 * 8;
    SMP_UNROLL
    for (int n = 0; n < N / 16; n++) {
        uint32_t x[MT][4], y[4];
        SMP_UNROLL
        for (int m = 0; m < MT; m++)
            for (int e = 0; e < 4; e++) {
                const float *pair = &p[m][2 * n + e / 2][e % 2 * 2];
                x[m][e] = smp_pair<T>(pair[0], pair[1]);
            }
        SMP_UNROLL
        for (int c = 0; c < C / 16; c++) {
            smp_ldmatrix_x4_trans(y, b + n * 16 * LD + c * 16);
            SMP_UNROLL
            for (int m = 0; m < MT; m++) {
                smp_mma_m16n8k16<T>(acc[m][2 * c], x[m], y[0], y[1]);
                smp_mma_m16n8k16<T>(acc[m][2 * c + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Scores of what must not be seen become -infinity: columns from `columns` on, and keys after the
 * query's position if causal. row, column: of this lane's first value; KEYS: the rows are the
 * keys. */
template <int MT, int N, bool KEYS>
__device__ __forceinline__ void attention_hide(float (&s)[MT][N / 8][4], int row, int column,
                                               int columns, bool causal, int before)
{
    SMP_UNROLL
    for (int m = 0; m < MT; m++)
        for (int n = 0; n < N / 8; n++)
            for (int e = 0; e < 4; e++) {
                const int r = row + m * 16 + e / 2 * 8, c = column + n * 8 + e % 2;
                if (c >= columns || (causal && (KEYS ? r > c + before : c > r + before)))
                    s[m][n][e] = -INFINITY;
            }
}

/* What attention_score makes of products. row, column, KEYS: as above. */
template <typename T, int MT, int N, bool KEYS, int EXTRA>
__device__ __forceinline__ void attention_scores(float (&s)[MT][N / 8][4],
                                                 const attention_args<T> &args, int64_t sample,
                                                 int head, int row, int column)
{
    SMP_UNROLL
    for (int m = 0; m < MT; m++)
        for (int n = 0; n < N / 8; n++)
            for (int e = 0; e < 4; e++) {
                const int r = row + m * 16 + e / 2 * 8, c = column + n * 8 + e % 2;
                s[m][n][e] = attention_score<EXTRA>(args, sample, head, KEYS ? c : r, KEYS ? r : c,
                                                    s[m][n][e]);
            }
}

/* factor[m][half] * acc to a warp's rows of one head: `to` is the first of `rows` rows, of which
 * `columns` values are written. They go through `tile`, (16 MT, LD) of shared memory that is the
 * warp's own by now, so that they are written 16 bytes at a time. */
template <typename T, int MT, int C, int W>
__device__ __forceinline__ void attention_store(const float (&acc)[MT][C / 8][4],
                                                const float (&factor)[MT][2], T *tile, T *to,
                                                int64_t stride, int rows, int columns, int width)
{
    const int LD = attention_tile<T, W>::LD, lane = threadIdx.x % SMP_WARP;
    T *own = tile + lane / 4 * LD + lane % 4 * 2;
    __syncwarp();
    SMP_UNROLL
    for (int m = 0; m < MT; m++)
        for (int n = 0; n < C / 8; n++)
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<uint32_t *>(own + (m * 16 + half * 8) * LD + n * 8) =
                    smp_pair<T>(factor[m][half] * acc[m][n][2 * half],
                                factor[m][half] * acc[m][n][2 * half + 1]);
    __syncwarp();
    attention_tile<T, W>::store(to, tile, stride, min(rows, 16 * MT), min(columns, C), width, lane,
                                SMP_WARP);
}

#endif
