/* attention on a GPU: tiled kernels (cuda_attention_*.cu), or cuDNN's fused ones in 16 bits where
 * it has them: forward if it can, backward if that was measured to be faster. Neither forward puts
 * the T x T matrix into memory: forward saves the logarithm of each row's sum of exponentials, (B,
 * heads, Tq), and backward computes the probabilities again. In fp32 and TF32 nothing is rounded
 * below fp32. cuDNN's is for the plain kind; masks, windows and biases are for the tiled kernels.
 * SMP_ATTENTION=tiled or cudnn insists on one kind. */
#include "graph/ops/attention/attention_choice.cuh"

#include "graph/ops/ops.h"

#include <stdlib.h>
#include <string.h>

/* The gradient of a learned bias: dS, computed once more in fp32 by tiles of TILE queries and keys,
 * is summed along the diagonals of tiles, then by bucket. A thread has column threadIdx.x % TILE of
 * a tile and its rows threadIdx.x / TILE + ROWS i. */
constexpr int TILE = SMP__BIAS_TILE, ROWS = SMP_BLOCK / TILE, EACH = TILE / ROWS;

/* P and dP of the tile whose first query is `row` and first key `column`; P is 0 where there is no
 * score. shared: (4, TILE, TILE + 1), free on return after the next __syncthreads. */
template <typename T>
__device__ __forceinline__ void bias_tile(const attention_args<T> &args, int64_t sample, int head,
                                          int row, int column, float (*shared)[TILE][TILE + 1],
                                          float (&p)[EACH], float (&dp)[EACH])
{
    const int y = threadIdx.x / TILE, x = threadIdx.x % TILE;
    const attention_part<T> parts[4] = {args.q, args.dout, args.k, args.v};
    for (int i = 0; i < EACH; i++)
        p[i] = dp[i] = 0;
    for (int begin = 0; begin < args.width; begin += TILE) {
        __syncthreads();
        for (int part = 0; part < 4; part++) {
            const bool by_query = part < 2;
            const int limit = by_query ? args.queries : args.keys;
            const T *from =
                parts[part].head(sample, by_query ? head : head / args.group, args.width);
            for (int i = 0; i < EACH; i++) {
                const int at = y + ROWS * i, t = (by_query ? row : column) + at;
                const bool inside = t < limit && begin + x < args.width;
                shared[part][at][x] =
                    inside ? smp_float(from[t * parts[part].stride + begin + x]) : 0.0f;
            }
        }
        __syncthreads();
        for (int e = 0; e < TILE; e++)
            for (int i = 0; i < EACH; i++) {
                p[i] = fmaf(shared[0][y + ROWS * i][e], shared[2][x][e], p[i]);
                dp[i] = fmaf(shared[1][y + ROWS * i][e], shared[3][x][e], dp[i]);
            }
    }
    for (int i = 0; i < EACH; i++) {
        const int query = row + y + ROWS * i;
        const float score = attention_score(args, sample, head, query, column + x, p[i]);
        const int64_t at = (sample * args.heads + head) * args.queries + query;
        p[i] = score == -INFINITY ? 0 : expf(score - args.lse[at]);
    }
}

/* delta again, as the sum of P * dP: the output is not there. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) bias_delta(attention_args<T> args)
{
    __shared__ float shared[4][TILE][TILE + 1];
    const int tiles = (args.queries + TILE - 1) / TILE;
    const int64_t n = (int64_t)args.batch * args.heads * tiles;
    for (int64_t item = blockIdx.x; item < n; item += gridDim.x) {
        const int row = (int)(item % tiles) * TILE, head = (int)(item / tiles % args.heads);
        const int64_t sample = item / tiles / args.heads;
        float p[EACH], dp[EACH], sum[EACH] = {};
        for (int column = 0; column < args.keys; column += TILE) {
            bias_tile(args, sample, head, row, column, shared, p, dp);
            for (int i = 0; i < EACH; i++)
                sum[i] = fmaf(p[i], dp[i], sum[i]);
        }
        for (int i = 0; i < EACH; i++) {
            const int query = row + threadIdx.x / TILE + ROWS * i;
            sum[i] = smp_warp_sum(sum[i]);
            if (threadIdx.x % TILE == 0 && query < args.queries)
                args.delta[(sample * args.heads + head) * args.queries + query] = sum[i];
        }
    }
}

/* A block sums dS over all samples and all tiles that have one distance, for each of the distances
 * in such tiles. parts: (heads, diagonals, 2 TILE - 1). */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK) bias_diagonals(attention_args<T> args, float *parts)
{
    __shared__ float shared[4][TILE][TILE + 1], ds[TILE][TILE + 1];
    const int rows = (int)smp__attention_tiles(args.queries);
    const int columns = (int)smp__attention_tiles(args.keys), diagonals = rows + columns - 1;
    const int y = threadIdx.x / TILE, x = threadIdx.x % TILE;
    const int offset = (int)threadIdx.x - (TILE - 1); /* of a key to its query in the tile */
    for (int64_t item = blockIdx.x; item < (int64_t)args.heads * diagonals; item += gridDim.x) {
        const int head = (int)(item / diagonals), ahead = (int)(item % diagonals) - (rows - 1);
        const int first = max(0, -ahead), last = min(rows, columns - ahead);
        float sum = 0;
        for (int64_t i = 0; i < (int64_t)args.batch * (last - first); i++) {
            const int64_t sample = i / (last - first);
            const int row = (first + (int)(i % (last - first))) * TILE;
            float p[EACH], dp[EACH];
            bias_tile(args, sample, head, row, row + ahead * TILE, shared, p, dp);
            for (int k = 0; k < EACH; k++) {
                const int at = y + ROWS * k;
                const int64_t of = (sample * args.heads + head) * args.queries + row + at;
                ds[at][x] = row + at < args.queries ? p[k] * (dp[k] - args.delta[of]) : 0;
            }
            __syncthreads();
            for (int k = max(0, -offset); offset < TILE && k < min((int)TILE, TILE - offset); k++)
                sum += ds[k][k + offset];
        }
        if (offset < TILE)
            parts[item * (2 * TILE - 1) + threadIdx.x] = sum;
    }
}

/* dweight (buckets, heads) += what the diagonals hold, in the order of distances, here those of
 * rows: a key is at->before further from its query than they say. */
__global__ void __launch_bounds__(SMP_BLOCK)
    bias_fold(smp__attention at, const float *parts, float *dweight)
{
    const int64_t tiles = smp__attention_tiles(at.queries);
    const int64_t diagonals = smp__attention_diagonals(at.queries, at.keys);
    for (int64_t i = smp_thread(); i < at.buckets * at.heads; i += smp_threads()) {
        const float *own = parts + i % at.heads * diagonals * (2 * TILE - 1);
        float sum = 0;
        for (int64_t distance = 1 - at.queries; distance < at.keys; distance++) {
            if (smp__attention_bucket(&at, distance - at.before) != i / at.heads)
                continue;
            /* tiles before and after: their keys are by `offset` further, and by TILE less */
            const int64_t moved = distance + tiles * TILE;
            const int64_t before = moved / TILE - 1, offset = moved % TILE;
            if (before >= 0)
                sum += own[before * (2 * TILE - 1) + TILE - 1 + offset];
            if (offset > 0 && before + 1 < diagonals)
                sum += own[(before + 1) * (2 * TILE - 1) + offset - 1];
        }
        dweight[i] += sum;
    }
}

/* Do calls have the workspace of a backward by cuDNN? */
static bool has_dnn_workspace(const smp_cuda *cuda, const smp_graph *graph, const smp_op *op,
                              const smp__attention *at, int64_t batch)
{
    const int64_t bytes = smp__attention_library_bytes(graph, op, at, batch);
    return smp__attention_asks_dnn(graph, op, at, batch) ||
           (bytes > 0 && bytes <= cuda->products->workspace_bytes);
}

static smp_status choose(const smp_graph *graph, const smp_op *op, int64_t batch,
                         const smp_cuda *cuda, attention_state *s)
{
    const smp__attention at = smp__attention_of(graph, op);
    const char *given = getenv("SMP_ATTENTION"), *kind = given ? given : "";
    const bool only_dnn = strcmp(kind, "cudnn") == 0;
    SMP_TRY(attention_check(graph, op, &at, at.before + at.queries));
    if (*kind && !only_dnn && strcmp(kind, "tiled") != 0)
        return smp_fail(SMP_ERR_INPUT, "SMP_ATTENTION=%s: expected tiled or cudnn", kind);
    if (smp_precision_is_half(graph->target.precision) && (only_dnn || !*kind) &&
        smp__dnn_attention_suits(cuda, &at, batch))
        SMP_TRY(attention_choose(cuda, at, batch, &s->forward));
    if (only_dnn && (!s->forward || smp__choice_way(s->forward) != SMP_BY_DNN))
        return smp_fail_at(smp_op_where(graph, op),
                           "op '%s' (attention): SMP_ATTENTION=cudnn, but cuDNN has no plan for it",
                           op->name);
    if (only_dnn)
        s->forward->ways = SMP_BY_DNN + 1;
    if (s->forward && has_dnn_workspace(cuda, graph, op, &at, batch))
        return attention_choose_backward(cuda, at, batch, only_dnn, &s->backward);
    return s->forward && smp__attention_library_bytes(graph, op, &at, batch) > 0
               ? attention_list_tiled(cuda, at, batch)
               : SMP_OK;
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    attention_state *s = static_cast<attention_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    const smp_status status = choose(graph, op, batch, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        *state = s;
    else
        free(s);
    return status;
}

/* din NULL: forward. */
template <typename T>
static smp_status make_args(const smp_op_call *call, float *const *din, attention_args<T> *made)
{
    const smp__attention at = smp__attention_of(call->graph, call->op);
    attention_args<T> args = attention_args_of<T>(call, at);
    attention_part<T> *const grad[3] = {&args.dq, &args.dk, &args.dv};
    for (int i = SMP__Q; i <= SMP__V; i++)
        if (din && din[at.input[i]])
            *grad[i] = attention_input(call, at, i, reinterpret_cast<T *>(din[at.input[i]]));
    args.lse = static_cast<float *>(call->aux);
    args.delta = static_cast<float *>(call->workspace);
    const int64_t sums = smp__attention_dq_floats(&at, call->batch);
    if (din && sizeof(T) == 2 && sums > 0) {
        args.sums = args.delta + (call->batch * at.heads * at.queries + 3) / 4 * 4;
        args.turns = reinterpret_cast<int *>(args.sums + sums);
    }
    /* the biases of all heads, after the deltas in the workspace */
    SMP_TRY(attention_fill_bias(call, at, args.delta + call->batch * at.heads * at.queries,
                                &args.bias));
    *made = args;
    return SMP_OK;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    attention_args<T> args;
    SMP_TRY(make_args(call, NULL, &args));
    smp__choice *choice = static_cast<const attention_state *>(call->state)->forward;
    if (choice && smp_dnn_begins_trial(cuda, choice))
        SMP_TRY(attention_try(call, choice, args));
    if (choice && smp__choice_way(choice) == SMP_BY_DNN)
        return attention_by_dnn(cuda, choice, args);
    return attention_forward(cuda, args);
}

/* fp32 has no choice. */
template <> smp_status forward<float>(const smp_op_call *call)
{
    attention_args<float> args;
    SMP_TRY(make_args(call, NULL, &args));
    return attention_forward(smp_cuda_of(call), args);
}

template <typename T>
static smp_status backward_tiled(const smp_cuda *cuda, const attention_args<T> &args)
{
    SMP_TRY(attention_fill_delta(cuda, args));
    return attention_backward(cuda, args);
}

/* cuDNN makes all three gradients. */
template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_dnn_product &of = static_cast<const attention_state *>(call->state)->backward;
    attention_args<T> args;
    bool done = false;
    SMP_TRY(make_args(call, call->din, &args));
    if (of.choice && args.dq.at && args.dk.at && args.dv.at)
        SMP_TRY(attention_backward_as_listed(call, of, args, &done));
    return done ? SMP_OK : backward_tiled(smp_cuda_of(call), args);
}

/* fp32 has no choice. */
template <> smp_status backward_input<float>(const smp_op_call *call)
{
    attention_args<float> args;
    SMP_TRY(make_args(call, call->din, &args));
    return backward_tiled(smp_cuda_of(call), args);
}

/* The gradient of the learned bias; the workspace holds what make_args says, and after it the sums.
 */
template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__attention at = smp__attention_of(call->graph, call->op);
    const int64_t tiles = smp__attention_tiles(at.queries);
    const int64_t diagonals = smp__attention_diagonals(at.queries, at.keys);
    const int64_t resident = 8 * (int64_t)cuda->multiprocessors;
    attention_args<T> args;
    SMP_TRY(make_args(call, NULL, &args));
    float *parts = const_cast<float *>(args.bias) + at.heads * (at.queries + at.keys - 1);
    SMP_LAUNCH(bias_delta<T>, smp_blocks(call->batch * at.heads * tiles, 1, resident), SMP_BLOCK, 0,
               cuda->stream, args);
    SMP_TRY(smp__cuda_launched("attention, delta for the bias"));
    SMP_LAUNCH(bias_diagonals<T>, smp_blocks(at.heads * diagonals, 1, resident), SMP_BLOCK, 0,
               cuda->stream, args, parts);
    SMP_TRY(smp__cuda_launched("attention, sums for the bias"));
    SMP_LAUNCH(bias_fold, smp_grid(cuda, at.buckets * at.heads), SMP_BLOCK, 0, cuda->stream, at,
               parts, call->dparam[0]);
    return smp__cuda_launched("attention, gradient of the bias");
}

SMP_CUDA_KERNELS(attention) = {
    .prepare = prepare,
    .release = free,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
};
