/* What the CPU's and the GPU's attention share: sizes, where q, k and v lie, what is added to
 * scores for the distance of a key. */
#ifndef SMP_GRAPH_MATH_ATTENTION_H
#define SMP_GRAPH_MATH_ATTENTION_H

#include <math.h>
#include <stdio.h>

#include "graph/math/choice.h"
#include "graph/model/op.h"

enum { SMP__Q, SMP__K, SMP__V };

/* Value x of head h of row t of part i: in[input[i]][offset[i] + t * stride[i] + h * width + x]. Of
 * k and v there are kv_heads heads, each read by heads / kv_heads heads of q that lie side by
 * side. Row t of q is at position before + t. */
typedef struct smp__attention {
    int64_t queries, keys, d, heads, kv_heads, width;
    int64_t before; /* positions before query 0: those of other devices */
    int input[3];
    int64_t offset[3];
    int64_t stride[3];
    int64_t window; /* position t sees keys t - window + 1 .. t; all: the number of keys or more */
    bool alibi;     /* scores are less by a slope for each position between query and key */
    int mask;       /* input (Tk) of int32: 0 hides a key from every query; -1: there is none */
    bool causal;    /* position t sees keys 0 .. t, otherwise all */
    int64_t buckets, max_distance; /* of a bias that is learned; buckets 0: none */
    float scale;                   /* 1 / sqrt(width) unless the model says */
    float softcap; /* scores s are softcap tanh(s / softcap); 0: as they are. No bias then */
} smp__attention;

/* For functions that kernels call too. */
#ifdef __CUDACC__
#define SMP__ANYWHERE __host__ __device__
#else
#define SMP__ANYWHERE
#endif

/* ALiBi (Press et al. 2022): 2^(-8 (head + 1) / heads), and where heads is no power of two, the
 * slopes of the next lower one, then every second of the next higher one (the authors' code).
 * Square roots and products alone: the same bits everywhere. */
static inline SMP__ANYWHERE double smp__attention_slope(int64_t heads, int64_t head)
{
    int64_t power = 1, exponent = head + 1;
    double ratio = 0x1p-8, slope = 1;
    for (; 2 * power <= heads; power *= 2)
        ratio = sqrt(ratio);
    if (head >= power) {
        ratio = sqrt(ratio);
        exponent = 2 * (head - power) + 1;
    }
    for (int64_t i = 0; i < exponent; i++)
        slope *= ratio;
    return slope;
}

/* The bucket of a distance key - query (Raffel et al., "T5", 2020): half of them for single
 * distances, the others wider and wider up to max_distance; not causal, as many for either side.
 * The bounds of the wide ones are no integers, or nearly; that hair's breadth (1e-9) is what keeps
 * logarithms of different libraries to one opinion. */
static inline SMP__ANYWHERE int64_t smp__attention_bucket(const smp__attention *at,
                                                          int64_t distance)
{
    const int64_t side = at->causal ? at->buckets : at->buckets / 2, single = side / 2;
    const int64_t behind = distance < 0 ? -distance : 0;
    const int64_t far = distance > 0 && !at->causal ? distance : behind;
    const int64_t first = distance > 0 && !at->causal ? side : 0;
    if (far < single)
        return first + far;
    const double share =
        log((double)far / (double)single) / log((double)at->max_distance / (double)single);
    const int64_t wide = (int64_t)(share * (double)(side - single) + 1e-9);
    return first + single + (wide < side - single ? wide : side - single - 1);
}

/* What is added to a score, a function of the distance key - query. weight: (buckets, heads). */
static inline SMP__ANYWHERE float smp__attention_bias(const smp__attention *at, const float *weight,
                                                      int64_t head, int64_t distance)
{
    if (at->buckets > 0)
        return weight[smp__attention_bucket(at, distance) * at->heads + head];
    double far = (double)(distance < 0 ? -distance : distance);
    return (float)(-smp__attention_slope(at->heads, head) * far);
}

/* Is a bias added? There are queries + keys - 1 distances then, from 1 - queries - before on. */
static inline bool smp__attention_is_biased(const smp__attention *at)
{
    return at->alibi || at->buckets > 0;
}

/* Is a score nothing but the product and its scale, of all keys or those up to the query? */
static inline bool smp__attention_is_plain(const smp__attention *at)
{
    return at->mask < 0 && !smp__attention_is_biased(at) && at->softcap == 0 &&
           at->window >= at->queries && at->window >= at->keys &&
           (!at->causal || at->window >= at->before + at->queries);
}

/* Backward in 16 bits on a GPU makes dQ beside dK and dV where it has so many floats of workspace:
 * sums for tiles of queries, and as many turns as there are tiles of 32, and one, after them. 0:
 * it does not. */
enum { SMP__DQ_TILE = 64, SMP__DQ_WIDTH = 128 };
static inline int64_t smp__attention_dq_floats(const smp__attention *at, int64_t batch)
{
    const int64_t columns = (at->width + 31) / 32 * 32;
    const int64_t rows = (at->queries + SMP__DQ_TILE - 1) / SMP__DQ_TILE * SMP__DQ_TILE;
    return smp__attention_is_plain(at) && at->width <= SMP__DQ_WIDTH
               ? batch * at->heads * rows * columns
               : 0;
}

static inline int64_t smp__attention_dq_turns(const smp__attention *at, int64_t batch)
{
    return 1 + batch * at->heads * ((at->queries + 31) / 32);
}

/* Backward of one head of keys, and of the heads of queries that read it, beside another: where
 * what it needs and what it makes lie, in bytes. */
typedef struct smp__attention_trial {
    int64_t delta, sums, turns, dq, dk, dv, end;
} smp__attention_trial;

static inline smp__attention_trial smp__attention_trial_of(const smp__attention *at)
{
    smp__attention one = *at;
    one.heads = at->heads / at->kv_heads;
    one.kv_heads = 1;
    const int64_t rows = one.heads * at->queries, key_bytes = at->keys * at->width * 2;
    const int64_t bytes[] = {4 * rows,
                             4 * smp__attention_dq_floats(&one, 1),
                             4 * smp__attention_dq_turns(&one, 1),
                             2 * rows * at->width,
                             key_bytes,
                             key_bytes};
    int64_t begin[7] = {0};
    for (int i = 0; i < 6; i++)
        begin[i + 1] = begin[i] + (bytes[i] + 63) / 64 * 64;
    return (smp__attention_trial){begin[0], begin[1], begin[2], begin[3],
                                  begin[4], begin[5], begin[6]};
}

/* Bytes of workspace of a backward by cuDNN in 16 bits that adds in one order: dS of all heads in
 * 16 bits and tiles, sums of rows in fp32, and of heads that share a key head their own dK and dV
 * (tests/dnn holds cuDNN to that); or of the trial beside our kernels. 0: cuDNN is not asked for
 * it. */
enum { SMP__DNN_ALIGNMENT = 256, SMP__DNN_TILE = 128, SMP__DNN_MOST_ROWS = 1 << 20 };
static inline int64_t smp__attention_dnn_bytes(const smp__attention *at, int64_t batch)
{
    const int64_t rows = (at->queries + SMP__DNN_TILE - 1) / SMP__DNN_TILE * SMP__DNN_TILE;
    const int64_t columns = (at->keys + SMP__DNN_TILE - 1) / SMP__DNN_TILE * SMP__DNN_TILE;
    const int64_t shared = at->kv_heads < at->heads ? 2 * columns * at->width : 0;
    const int64_t trial = smp__attention_trial_of(at).end;
    int64_t heads, bytes;
    if (!smp__attention_is_plain(at) || (at->causal && at->queries != at->keys) ||
        at->width % 8 != 0 || at->width > SMP__DQ_WIDTH || rows > SMP__DNN_MOST_ROWS ||
        columns > SMP__DNN_MOST_ROWS || __builtin_mul_overflow(batch, at->heads, &heads) ||
        __builtin_mul_overflow(heads, 2 * (rows * columns + shared + 2 * rows), &bytes))
        return 0;
    bytes += SMP__DNN_ALIGNMENT; /* its own */
    return (bytes > trial ? bytes : trial) + SMP__DNN_ALIGNMENT;
}

/* Its name among choices and products: all that a library's plan and its bits depend on. */
static inline void smp__attention_about(char about[SMP__CHOICE_ABOUT], const char *what,
                                        smp_precision precision, const smp__attention *at,
                                        int64_t batch)
{
    snprintf(about, SMP__CHOICE_ABOUT,
             "%s, %s, %lld x %lld/%lld heads of %lld, %lld%s%lld, steps %lld %lld %lld, %.9g", what,
             smp_precision_name(precision), (long long)batch, (long long)at->heads,
             (long long)at->kv_heads, (long long)at->width, (long long)at->queries,
             at->causal ? " causal " : " x ", (long long)at->keys, (long long)at->stride[SMP__Q],
             (long long)at->stride[SMP__K], (long long)at->stride[SMP__V], (double)at->scale);
}

/* What backward is called there, and the algorithm that is ours; cuDNN's is its name. */
#define SMP__ATTENTION_BACKWARD "attention backward"
#define SMP__ATTENTION_TILED "tiled"

/* Floats of workspace for sums of the learned bias's gradient on a GPU: of every head and every
 * diagonal of tiles of SMP__BIAS_TILE rows and keys, those of its distances. */
enum { SMP__BIAS_TILE = 32 };
static inline SMP__ANYWHERE int64_t smp__attention_tiles(int64_t rows)
{
    return (rows + SMP__BIAS_TILE - 1) / SMP__BIAS_TILE;
}

static inline SMP__ANYWHERE int64_t smp__attention_diagonals(int64_t queries, int64_t keys)
{
    return smp__attention_tiles(queries) + smp__attention_tiles(keys) - 1;
}

static inline int64_t smp__attention_bias_parts(const smp__attention *at)
{
    const int64_t diagonals = smp__attention_diagonals(at->queries, at->keys);
    return at->buckets > 0 ? at->heads * diagonals * (2 * SMP__BIAS_TILE - 1) : 0;
}

/* The head of part i that head `head` of the queries reads. */
static inline int64_t smp__attention_head(const smp__attention *at, int part, int64_t head)
{
    return part == SMP__Q ? head : head / (at->heads / at->kv_heads);
}

smp__attention smp__attention_of(const smp_graph *graph, const smp_op *op);
/* smp__attention_dnn_bytes of an operator whose backward a library may do: in training, in 16 bits,
 * and with gradients of q, k and v, which cuDNN makes together. Else 0. */
int64_t smp__attention_library_bytes(const smp_graph *graph, const smp_op *op,
                                     const smp__attention *at, int64_t batch);
/* Is backward by a library, as the graph's `products` say? */
bool smp__attention_asks_dnn(const smp_graph *graph, const smp_op *op, const smp__attention *at,
                             int64_t batch);

#endif
