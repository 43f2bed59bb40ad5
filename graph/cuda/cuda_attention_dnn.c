/* Attention as graphs of cuDNN operations, which its runtime-compiled engines carry out as a few
 * kernels. The graphs are put together as cuDNN's own front end does it, because engines recognise
 * that form alone. (The single attention operation of cuDNN 9.19 has no causal mask.) Any failure
 * means that there is no plan, which is no error: the tiled kernels do it.
 *
 * Forward: S = Q K^T, times a scalar, row >= column ? S : -infinity, maximum, S - maximum, exp,
 * sum, and P = exp / sum in 16 bits; maximum + log(sum) is kept.
 *
 * Backward: P = exp(S - what was kept), dV = P^T dO; dS = P (dO V^T - sum of dO O) times the
 * scalar, dK = dS^T Q, dQ = dS K. Heads that share a key head each make dK and dV in 16 bits,
 * which are added up. dQ is written by the product that makes it, which is how an engine is asked
 * to keep dS in its workspace and to add in one order; one that adds to dQ as its blocks finish
 * would have an fp32 array for the sums. */
#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"

/* What the engines are known to take; rows of whole 16 bytes; offsets within 32 bits. */
bool smp__dnn_attention_suits(const smp_cuda *cuda, const smp__attention *at, int64_t batch)
{
    const int64_t widest = cuda->capability >= 90 ? 256 : 128;
    const int64_t longest = at->queries > at->keys ? at->queries : at->keys;
    return cuda->capability >= 80 && smp__attention_is_plain(at) &&
           (!at->causal || at->queries == at->keys) && /* it hides by index, not by position */
           at->width % 8 == 0 && at->width <= widest &&
           longest <= INT32_MAX / batch / at->stride[SMP__Q];
}

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include <math.h>
#include <stdlib.h>

typedef smp__dnn_descriptor descriptor;
typedef smp__dnn_shape shape;

enum { WHOLE_TILES = 91500 }; /* the last version whose backward wants such keys */

struct smp__dnn_attention {
    descriptor plan;
    bool causal;
    float scale, hidden, one;
};

/* What both graphs begin with. */
typedef struct attention_graph {
    smp__dnn_graph *g;
    cudnnDataType_t half;     /* of q, k, v, the result and their gradients */
    shape scores, rows;       /* (batch, heads, queries, keys) and one for each of their rows */
    shape query, key, value;  /* arrays of the caller's */
    shape result;             /* of out and its gradient */
    descriptor scale, hidden; /* hidden: NULL unless causal */
} attention_graph;

static shape heads_shape(int64_t batch, int64_t heads, int64_t rows, int64_t width, int64_t stride)
{
    return (shape){{batch, heads, rows, width}, {rows * stride, width, stride, 1}};
}

static shape transposed(shape s)
{
    return (shape){{s.dim[0], s.dim[1], s.dim[3], s.dim[2]},
                   {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

static attention_graph attention_graph_of(smp__dnn_graph *g, const smp_cuda *cuda,
                                          const smp__attention *at, int64_t batch)
{
    const int64_t h = at->heads, kh = at->kv_heads, tq = at->queries, tk = at->keys, w = at->width;
    smp__dnn_graph_open(g, cuda->dnn, cuda->dnn_device);
    return (attention_graph){
        .g = g,
        .half = cuda->precision == SMP_PRECISION_FP16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
        .scores = {{batch, h, tq, tk}, {h * tq * tk, tq * tk, tk, 1}},
        .rows = {{batch, h, tq, 1}, {h * tq, tq, 1, 1}},
        .query = heads_shape(batch, h, tq, w, at->stride[SMP__Q]),
        .key = heads_shape(batch, kh, tk, w, at->stride[SMP__K]),
        .value = heads_shape(batch, kh, tk, w, at->stride[SMP__V]),
        .result = heads_shape(batch, h, tq, w, at->d),
    };
}

/* Numbers that a call binds after its arrays. */
static void add_numbers(attention_graph *a, bool causal)
{
    a->scale = smp__dnn_number(a->g);
    a->hidden = causal ? smp__dnn_number(a->g) : NULL;
}

/* In fp32; z may be NULL. */
static descriptor float_op(const attention_graph *a, cudnnPointwiseMode_t mode, descriptor x,
                           descriptor z, const shape *s)
{
    descriptor y = smp__dnn_inner(a->g, CUDNN_DATA_FLOAT, s);
    smp__dnn_pointwise(a->g, mode, CUDNN_DATA_FLOAT, -1, x, z, NULL, y);
    return y;
}

/* Scores of keys after the query become -infinity. */
static descriptor hide(const attention_graph *a, descriptor score)
{
    smp__dnn_graph *g = a->g;
    descriptor row = smp__dnn_inner(g, CUDNN_DATA_INT32, &a->scores),
               column = smp__dnn_inner(g, CUDNN_DATA_INT32, &a->scores),
               seen = smp__dnn_inner(g, CUDNN_DATA_BOOLEAN, &a->scores),
               y = smp__dnn_inner(g, CUDNN_DATA_FLOAT, &a->scores);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, score, NULL, NULL, row);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, score, NULL, NULL,
                       column);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, score, a->hidden,
                       seen, y);
    return y;
}

static descriptor scores_of(const attention_graph *a, descriptor q, descriptor k_transposed)
{
    descriptor product = smp__dnn_inner(a->g, CUDNN_DATA_FLOAT, &a->scores);
    smp__dnn_matmul(a->g, q, k_transposed, product);
    descriptor score = float_op(a, CUDNN_POINTWISE_MUL, product, a->scale, &a->scores);
    return a->hidden ? hide(a, score) : score;
}

/* Binds q, k, v, out, lse, and the numbers. */
static void build_forward(attention_graph *a, bool causal)
{
    smp__dnn_graph *g = a->g;
    const shape k_transposed = transposed(a->key);
    descriptor q = smp__dnn_array(g, a->half, &a->query);
    descriptor k = smp__dnn_array(g, a->half, &k_transposed);
    descriptor v = smp__dnn_array(g, a->half, &a->value);
    descriptor out = smp__dnn_array(g, a->half, &a->result);
    descriptor lse = smp__dnn_array(g, CUDNN_DATA_FLOAT, &a->rows);
    add_numbers(a, causal);
    descriptor score = scores_of(a, q, k);
    descriptor top = smp__dnn_inner(g, CUDNN_DATA_FLOAT, &a->rows),
               sum = smp__dnn_inner(g, CUDNN_DATA_FLOAT, &a->rows);
    smp__dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, score, top);
    descriptor less = float_op(a, CUDNN_POINTWISE_SUB, score, top, &a->scores);
    descriptor power = float_op(a, CUDNN_POINTWISE_EXP, less, NULL, &a->scores);
    smp__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, power, sum);
    descriptor log_sum = float_op(a, CUDNN_POINTWISE_LOG, sum, NULL, &a->rows);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, top, log_sum, NULL, lse);
    descriptor p = smp__dnn_inner(g, a->half, &a->scores);
    smp__dnn_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, power, sum, NULL, p);
    smp__dnn_matmul(g, p, v, out);
}

/* gradient = x^T y, of scores and of an array of the queries; where heads share a key head, the sum
 * over them. */
static void multiply_transposed(const attention_graph *a, descriptor x, descriptor y,
                                const shape *of_keys, descriptor gradient)
{
    smp__dnn_graph *g = a->g;
    const int64_t h = a->query.dim[1], tk = of_keys->dim[2], w = of_keys->dim[3];
    const shape turned = transposed(a->scores);
    const shape each = {{a->query.dim[0], h, tk, w}, {h * tk * w, tk * w, w, 1}};
    descriptor x_transposed = smp__dnn_inner(g, a->half, &turned);
    smp__dnn_reshape(g, x, x_transposed);
    if (h == of_keys->dim[1]) {
        smp__dnn_matmul(g, x_transposed, y, gradient);
        return;
    }
    descriptor of_heads = smp__dnn_inner(g, a->half, &each);
    smp__dnn_matmul(g, x_transposed, y, of_heads);
    smp__dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
}

/* The sum of a row's dO * O. The front end multiplies by one where dropout would scale, and engines
 * want it: here and of dP. */
static descriptor delta_of(const attention_graph *a, descriptor dout, descriptor out,
                           descriptor one)
{
    const int64_t h = a->query.dim[1], tq = a->query.dim[2], w = a->query.dim[3];
    const shape plain = {{a->query.dim[0], h, tq, w}, {h * tq * w, tq * w, h * w, 1}};
    descriptor product = float_op(a, CUDNN_POINTWISE_MUL, dout, out, &plain);
    descriptor sum = smp__dnn_inner(a->g, CUDNN_DATA_FLOAT, &a->rows);
    smp__dnn_reduce(a->g, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    return float_op(a, CUDNN_POINTWISE_MUL, sum, one, &a->rows);
}

/* Binds q, k, v, out, lse, dout, dq, dk, dv, one, and the numbers. */
static void build_backward(attention_graph *a, bool causal)
{
    smp__dnn_graph *g = a->g;
    const shape k_transposed = transposed(a->key), v_transposed = transposed(a->value);
    descriptor q = smp__dnn_array(g, a->half, &a->query);
    descriptor k = smp__dnn_array(g, a->half, &k_transposed);
    descriptor v = smp__dnn_array(g, a->half, &v_transposed);
    descriptor out = smp__dnn_array(g, a->half, &a->result);
    descriptor lse = smp__dnn_array(g, CUDNN_DATA_FLOAT, &a->rows);
    descriptor dout = smp__dnn_array(g, a->half, &a->result);
    descriptor dq = smp__dnn_array(g, a->half, &a->query);
    descriptor dk = smp__dnn_array(g, a->half, &a->key);
    descriptor dv = smp__dnn_array(g, a->half, &a->value);
    descriptor one = smp__dnn_number(g);
    add_numbers(a, causal);
    descriptor delta = delta_of(a, dout, out, one);
    descriptor less = float_op(a, CUDNN_POINTWISE_SUB, scores_of(a, q, k), lse, &a->scores);
    descriptor p = float_op(a, CUDNN_POINTWISE_EXP, less, NULL, &a->scores);
    multiply_transposed(a, p, dout, &a->value, dv);
    descriptor product = smp__dnn_inner(g, CUDNN_DATA_FLOAT, &a->scores);
    smp__dnn_matmul(g, dout, v, product);
    descriptor dp = float_op(a, CUDNN_POINTWISE_MUL, product, one, &a->scores);
    descriptor off = float_op(a, CUDNN_POINTWISE_SUB, dp, delta, &a->scores);
    descriptor slope = float_op(a, CUDNN_POINTWISE_MUL, off, p, &a->scores);
    descriptor ds = float_op(a, CUDNN_POINTWISE_MUL, slope, a->scale, &a->scores);
    multiply_transposed(a, ds, q, &a->key, dk);
    descriptor k_plain = smp__dnn_inner(g, a->half, &a->key);
    smp__dnn_reshape(g, k, k_plain);
    smp__dnn_matmul(g, ds, k_plain, dq);
}

static smp__dnn_attention *create(const smp_cuda *cuda, const smp__attention *at, int64_t batch,
                                  void (*build)(attention_graph *, bool), int64_t workspace_bytes)
{
    smp__dnn_graph graph;
    smp__dnn_attention *made = malloc(sizeof *made);
    attention_graph a = attention_graph_of(&graph, cuda, at, batch);
    build(&a, at->causal);
    descriptor plan = smp__dnn_graph_plan(&graph, made ? workspace_bytes : -1);
    if (!plan) {
        free(made);
        return NULL;
    }
    *made = (smp__dnn_attention){plan, at->causal, at->scale, -INFINITY, 1};
    return made;
}

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    return create(cuda, at, batch, build_forward, cuda->workspace_bytes);
}

/* The graph asks for one order on Hopper alone: engines for older cards have none, and those for
 * newer ones want it of their configuration, which heuristics do not give. A single query of a
 * single key is refused by the front end; up to 9.15.0 so are keys that fill no tile without a
 * mask of their number. */
static bool backward_suits(const smp_cuda *cuda, const smp__attention *at)
{
    return cuda->capability / 10 == 9 && (at->queries > 1 || at->keys > 1) &&
           (at->keys % SMP__DNN_TILE == 0 ||
            (smp__dnn.cudnnGetVersion && smp__dnn.cudnnGetVersion() > WHOLE_TILES));
}

smp__dnn_attention *smp__dnn_attention_create_backward(const smp_cuda *cuda,
                                                       const smp__attention *at, int64_t batch,
                                                       int64_t workspace_bytes)
{
    return backward_suits(cuda, at) ? create(cuda, at, batch, build_backward, workspace_bytes)
                                    : NULL;
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    if (!plan)
        return;
    smp__dnn.cudnnBackendDestroyDescriptor(plan->plan);
    free(plan);
}

int64_t smp__dnn_attention_workspace(const smp__dnn_attention *plan)
{
    return smp__dnn_plan_workspace(plan->plan);
}

/* -infinity is bound last, and only where it is in the graph. */
smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    void *const address[] = {(void *)data->q, (void *)data->k,      (void *)data->v,      data->out,
                             data->lse,       (void *)&plan->scale, (void *)&plan->hidden};
    const int n = (int)(sizeof address / sizeof *address) - !plan->causal;
    return smp__dnn_plan_run(plan->plan, cuda->dnn, n, address, cuda->workspace,
                             "attention by cuDNN");
}

smp_status smp__dnn_attention_backward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                       const smp__dnn_attention_data *data,
                                       const smp__dnn_attention_gradients *to)
{
    void *const address[] = {(void *)data->q,
                             (void *)data->k,
                             (void *)data->v,
                             data->out,
                             data->lse,
                             (void *)to->dout,
                             to->dq,
                             to->dk,
                             to->dv,
                             (void *)&plan->one,
                             (void *)&plan->scale,
                             (void *)&plan->hidden};
    const int n = (int)(sizeof address / sizeof *address) - !plan->causal;
    return smp__dnn_plan_run(plan->plan, cuda->dnn, n, address, to->workspace,
                             "attention backward by cuDNN");
}

#elif !defined(SMP_EMULATED) /* the emulator has one of its own */

static smp_status fail_without(void)
{
    return smp_fail(SMP_ERR_FAILED, "this library was built without cuDNN");
}

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    (void)cuda, (void)at, (void)batch;
    return NULL;
}

smp__dnn_attention *smp__dnn_attention_create_backward(const smp_cuda *cuda,
                                                       const smp__attention *at, int64_t batch,
                                                       int64_t workspace_bytes)
{
    (void)cuda, (void)at, (void)batch, (void)workspace_bytes;
    return NULL;
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    (void)plan;
}

int64_t smp__dnn_attention_workspace(const smp__dnn_attention *plan)
{
    (void)plan;
    return 0;
}

smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    (void)plan, (void)cuda, (void)data;
    return fail_without();
}

smp_status smp__dnn_attention_backward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                       const smp__dnn_attention_data *data,
                                       const smp__dnn_attention_gradients *to)
{
    (void)plan, (void)cuda, (void)data, (void)to;
    return fail_without();
}

#endif
