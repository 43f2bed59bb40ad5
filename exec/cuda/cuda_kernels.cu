/* The kernels over a rank's arena on a GPU: sums, rounding, the gradient norm. Each reads and
 * writes every value once, 16 bytes at a time where the addresses allow it. */
#include "exec/cuda/cuda_kernels.h"
#include "exec/optimizer/cuda_update.cuh"

/* Packs of 16 bytes if `packed`, else single values: the same results, as no element depends on
 * another. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    accumulate_kernel(T *target, const T *source, int64_t n, bool packed) // each [n]
{
    const int64_t packs = packed ? n / smp_pack<T>::N : 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        smp_pack<T> x = smp_load16(target + i * smp_pack<T>::N);
        const smp_pack<T> y = smp_load16(source + i * smp_pack<T>::N);
        for (int k = 0; k < smp_pack<T>::N; k++)
            x.v[k] = smp_from<T>(smp_float(x.v[k]) + smp_float(y.v[k]));
        smp_store(target + i * smp_pack<T>::N, x);
    }
    for (int64_t i = packs * smp_pack<T>::N + smp_thread(); i < n; i += smp_threads())
        target[i] = smp_from<T>(smp_float(target[i]) + smp_float(source[i]));
}

template <typename T>
static smp_status accumulate_as(void *stream, void *target, const void *source, int64_t n)
{
    const bool packed = !smp_misaligned(target, 16) && !smp_misaligned(source, 16);
    if (n <= 0)
        return SMP_OK;
    SMP_LAUNCH(accumulate_kernel<T>, smp_arena_grid(packed ? n / smp_pack<T>::N : n), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), static_cast<T *>(target),
               static_cast<const T *>(source), n, packed);
    return smp__cuda_launched("accumulate");
}

smp_status smp__cuda_accumulate(void *stream, smp_dtype dtype, void *target, const void *source,
                                int64_t elements)
{
    return SMP_AS(dtype, accumulate_as, stream, target, source, elements);
}

/* What one launch of a fold gets; more terms than it has room for go through several. */
struct fold_table {
    enum { LEVELS = SMP_MAX_GRADIENT_NODES, FEW_LEVELS = 12, SMALL_BLOCK = 64 };
    smp__fold of;
    int first, n; /* terms of this launch */
    int carried;  /* nodes that the last launch left on the stack: in of.carry */
    int nodes;    /* as many as this one leaves there, or the last one in of.sum */
    bool last;
    bool packed;                         /* 16 bytes at a time */
    unsigned char adds[SMP__FOLD_TERMS]; /* [n], of each: as smp__fold says */
};
static_assert(sizeof(fold_table) <= 4096, "what a launch takes");
static_assert(fold_table::FEW_LEVELS * (int)SMP_BLOCK * 16 <= 48 << 10 &&
                  fold_table::LEVELS * fold_table::SMALL_BLOCK * 16 <= 48 << 10,
              "shared memory that every GPU has");

/* Array k of n, of elements from i on. */
template <typename F>
__device__ __forceinline__ F *fold_array(const smp__fold &of, F *data, int k, int n, int64_t i)
{
    return (k + 1 == n ? data : of.more + k * of.apart) + i;
}

__device__ __forceinline__ float fold_rounded(const smp__fold &of, float x)
{
    return of.bf16 ? smp_float(smp_from<bf16>(x)) : x;
}

template <int W>
__device__ __forceinline__ smp_pack<float, W> fold_term(const smp__fold &of, int term, int64_t i)
{
    const int k = term - of.first_own;
    const int64_t at = term * of.stride + i;
    if (!of.bf16 && (k < 0 || k >= of.n_own))
        return smp_load<W>(static_cast<const float *>(of.came) + at);
    smp_pack<float, W> x;
    if (k < 0 || k >= of.n_own) {
        const smp_pack<bf16, W> y = smp_load<W>(static_cast<const bf16 *>(of.came) + at);
        for (int j = 0; j < W; j++)
            x.v[j] = smp_float(y.v[j]);
        return x;
    }
    x = smp_load<W>(fold_array(of, of.own, k, of.n_own, i));
    for (int j = 0; j < W; j++)
        x.v[j] = fold_rounded(of, x.v[j]);
    return x;
}

/* W elements from i on. stack: this thread's, of shared memory: 4 floats of every level, `apart`
 * floats from one to the next. The next term is read while this one is added. */
template <int W>
__device__ __forceinline__ void fold_at(const fold_table &t, int64_t i, float *stack, int apart)
{
    const smp__fold &of = t.of;
    float *top = stack;
    for (int k = 0; k < t.carried; k++, top += apart)
        smp_store(top, smp_load<W>(of.carry + k * of.carry_stride + i));
    smp_pack<float, W> next = fold_term<W>(of, t.first, i);
    for (int term = 0; term < t.n; term++) {
        smp_pack<float, W> x = next;
        if (term + 1 < t.n)
            next = fold_term<W>(of, t.first + term + 1, i);
        for (int add = t.adds[term]; add > 0; add--) {
            const smp_pack<float, W> y = smp_load<W>(top -= apart);
            for (int j = 0; j < W; j++)
                x.v[j] = y.v[j] + x.v[j];
        }
        smp_store(top, x);
        top += apart;
    }
    for (int k = 0; k < t.nodes; k++) {
        smp_pack<float, W> x = smp_load<W>(stack + k * apart);
        for (int j = 0; t.last && j < W; j++)
            x.v[j] = fold_rounded(of, x.v[j]);
        float *carry = of.carry + k * of.carry_stride + i;
        smp_store(t.last ? fold_array(of, of.sum, k, t.nodes, i) : carry, x);
    }
}

__global__ void __launch_bounds__(SMP_BLOCK)
    fold_kernel(const __grid_constant__ fold_table table, int64_t n) // n: elements of every array
{
    constexpr int N = smp_pack<float>::N;
    SMP_SHARED(float, shared);
    float *stack = shared + N * threadIdx.x;
    const int apart = N * (int)blockDim.x;
    const int64_t packs = table.packed ? n / N : 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads())
        fold_at<N>(table, i * N, stack, apart);
    for (int64_t i = packs * N + smp_thread(); i < n; i += smp_threads())
        fold_at<1>(table, i, stack, apart);
}

static bool fold_is_packed(const smp__fold *of)
{
    constexpr int N = smp_pack<float>::N;
    const bool more = of->n_own > 1 || (of->tree && of->tree->n_left > 1);
    return !smp_misaligned(of->own, 16) && !smp_misaligned(of->sum, 16) &&
           !(more && (smp_misaligned(of->more, 16) || of->apart % N != 0)) &&
           !smp_misaligned(of->came, of->bf16 ? 8 : 16) && of->stride % N == 0 &&
           !smp_misaligned(of->carry, 16) && of->carry_stride % N == 0;
}

/* The stack as the host follows it: each node's leftmost term, and the tree's next addition. */
struct fold_stack {
    int depth, add, place[fold_table::LEVELS];
};

/* Adds term `term`; how often the last two nodes became one, or -1: there are too many. */
static int fold_push(const smp__fold *of, int term, fold_stack *s)
{
    const smp_sum_terms *t = of->tree;
    int adds = 0, sum = term;
    for (; s->depth > 0; adds++) {
        if (t && (s->add == t->n_add || t->from[s->add] != sum ||
                  t->to[s->add] != s->place[s->depth - 1]))
            break;
        sum = s->place[--s->depth];
        s->add++;
    }
    if (s->depth == fold_table::LEVELS)
        return -1;
    s->place[s->depth++] = sum;
    return adds;
}

static smp_status launch_fold(void *stream, const fold_table *table, int levels, int64_t n)
{
    const int block = levels <= table->FEW_LEVELS ? (int)SMP_BLOCK : (int)table->SMALL_BLOCK;
    const int64_t items = table->packed ? n / smp_pack<float>::N : n;
    SMP_LAUNCH(fold_kernel, smp_blocks(items, block, 1 << 14), block,
               (size_t)levels * (size_t)block * sizeof(smp_pack<float>),
               static_cast<cudaStream_t>(stream), *table, n);
    return smp__cuda_launched("fold");
}

smp_status smp__cuda_fold(void *stream, const smp__fold *of, int64_t elements)
{
    fold_table table = {};
    fold_stack stack = {};
    if (elements <= 0)
        return SMP_OK;
    table.of = *of;
    table.packed = fold_is_packed(of);
    for (; table.first < of->n; table.first += table.n) {
        const int left = of->n - table.first;
        int adds = 0, levels = stack.depth;
        table.n = left < SMP__FOLD_TERMS ? left : (int)SMP__FOLD_TERMS;
        table.last = table.n == left;
        table.carried = stack.depth;
        for (int i = 0; i < table.n && adds >= 0; i++) {
            adds = fold_push(of, table.first + i, &stack);
            table.adds[i] = (unsigned char)adds;
            levels = stack.depth > levels ? stack.depth : levels;
        }
        if (adds < 0 || (table.last && of->tree &&
                         (stack.add != of->tree->n_add || stack.depth != of->tree->n_left)))
            return smp_fail(SMP_ERR_FAILED, "fold: %d terms make no stack of %d nodes", of->n,
                            (int)table.LEVELS);
        table.nodes = stack.depth;
        SMP_TRY(launch_fold(stream, &table, levels, elements));
    }
    return SMP_OK;
}

/* Arrays of one launch, as in smp_update_table. */
struct convert_table {
    smp__conversion array[SMP__CONVERSIONS];
    unsigned first[SMP__CONVERSIONS + 1];
};
static_assert(sizeof(convert_table) <= 4096, "what a launch takes");

/* to[i] = from[i], of another type; four at a time where the addresses allow it. */
template <typename To, typename From>
__global__ void __launch_bounds__(SMP_BLOCK)
    convert_kernel(const __grid_constant__ convert_table table)
{
    int at = 0;
    while (blockIdx.x >= table.first[at + 1])
        at++;
    const int64_t thread = (int64_t)(blockIdx.x - table.first[at]) * SMP_BLOCK + threadIdx.x;
    const int64_t threads = (int64_t)(table.first[at + 1] - table.first[at]) * SMP_BLOCK;
    const int64_t n = table.array[at].elements;
    const From *from = static_cast<const From *>(table.array[at].from);
    To *to = static_cast<To *>(table.array[at].to);
    const bool packed = reinterpret_cast<uintptr_t>(to) % (4 * sizeof(To)) == 0 &&
                        reinterpret_cast<uintptr_t>(from) % (4 * sizeof(From)) == 0;
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = thread; i < quads; i += threads) {
        const smp_pack<From, 4> x = smp_load<4>(from + 4 * i);
        smp_pack<To, 4> y;
        for (int k = 0; k < 4; k++)
            y.v[k] = smp_from<To>(smp_float(x.v[k]));
        smp_store(to + 4 * i, y);
    }
    for (int64_t i = quads * 4 + thread; i < n; i += threads)
        to[i] = smp_from<To>(smp_float(from[i]));
}

template <typename To, typename From>
static smp_status convert(void *stream, const smp__conversion *of, int n)
{
    convert_table table = {};
    for (int i = 0; i < n;) {
        int at = 0;
        for (; i < n && at < SMP__CONVERSIONS; i++) {
            if (of[i].elements <= 0)
                continue;
            table.array[at] = of[i];
            table.first[at + 1] = table.first[at] + smp_arena_grid(of[i].elements / 4);
            at++;
        }
        if (at == 0)
            break;
        SMP_LAUNCH((convert_kernel<To, From>), table.first[at], SMP_BLOCK, 0,
                   static_cast<cudaStream_t>(stream), table);
        SMP_TRY(smp__cuda_launched("convert"));
    }
    return SMP_OK;
}

smp_status smp__cuda_round16(void *stream, smp_dtype half, const smp__conversion *of, int n)
{
    return half == SMP_F16 ? convert<fp16, float>(stream, of, n)
                           : convert<bf16, float>(stream, of, n);
}

smp_status smp__cuda_widen16(void *stream, const smp__conversion *of, int n)
{
    return convert<float, bf16>(stream, of, n);
}

/* Arrays of one launch: as many as its parameters hold. Blocks first[i] .. first[i + 1] - 1 are of
 * array i, a piece each. */
struct squares_table {
    enum { N = 128 };
    const void *values[N];
    double *sum[N];
    int64_t elements[N];
    unsigned first[N + 1];
};
static_assert(sizeof(squares_table) <= 4096, "what a launch takes");

/* A block each. Four values at a time whatever the alignment, so that the order is the same.
 * Squares of floats are exact in double. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    square_pieces(const __grid_constant__ squares_table table)
{
    int at = 0;
    while (blockIdx.x >= table.first[at + 1])
        at++;
    const int64_t number = blockIdx.x - table.first[at], begin = number * SMP_SQUARE_PIECE;
    const int64_t left = table.elements[at] - begin;
    const int64_t n = left < SMP_SQUARE_PIECE ? left : (int64_t)SMP_SQUARE_PIECE, quads = n / 4;
    const T *values = static_cast<const T *>(table.values[at]) + begin;
    const bool packed = reinterpret_cast<uintptr_t>(values) % (4 * sizeof(T)) == 0;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < quads; i += SMP_BLOCK) {
        smp_pack<T, 4> x;
        if (packed)
            x = smp_load<4>(values + 4 * i);
        else
            for (int k = 0; k < 4; k++)
                x.v[k] = values[4 * i + k];
        for (int k = 0; k < 4; k++)
            sum += (double)smp_float(x.v[k]) * (double)smp_float(x.v[k]);
    }
    const int64_t last = quads * 4 + threadIdx.x;
    if (last < n)
        sum += (double)smp_float(values[last]) * (double)smp_float(values[last]);
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        table.sum[at][number] = sum;
}

template <typename T> static smp_status square_as(void *stream, const smp_squares *of, int n)
{
    squares_table table = {};
    for (int i = 0; i < n;) {
        int at = 0;
        for (; i < n && at < table.N; i++) {
            if (of[i].elements <= 0)
                continue;
            table.values[at] = of[i].values;
            table.sum[at] = of[i].sum;
            table.elements[at] = of[i].elements;
            table.first[at + 1] =
                table.first[at] + (unsigned)((of[i].elements - 1) / SMP_SQUARE_PIECE + 1);
            at++;
        }
        if (at == 0)
            break;
        SMP_LAUNCH(square_pieces<T>, table.first[at], SMP_BLOCK, 0,
                   static_cast<cudaStream_t>(stream), table);
        SMP_TRY(smp__cuda_launched("square_sums"));
    }
    return SMP_OK;
}

smp_status smp__cuda_square_sums(void *stream, smp_dtype dtype, const smp_squares *of, int n)
{
    return dtype == SMP_BF16 ? square_as<bf16>(stream, of, n) : square_as<float>(stream, of, n);
}
