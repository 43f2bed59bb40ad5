/* Attention forward as a graph of cuDNN operations, which its runtime-compiled engines carry out
 * as one kernel: scores, scale, causal mask by index, softmax, values. The graph is put together
 * as cuDNN's own front end does it, because engines recognise that form alone: S = Q K^T, times a
 * scalar, row >= column ? S : -infinity, maximum, S - maximum, exp, sum, and P = exp / sum in
 * 16 bits; maximum + log(sum) is kept. (The single attention operation of cuDNN 9.19 has no causal
 * mask.) Any failure means that there is no plan, which is no error: the tiled kernels do it. */
#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"

#include <stdio.h>

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

void smp__dnn_attention_about(char about[SMP__CHOICE_ABOUT], const smp_cuda *cuda,
                              const smp__attention *at, int64_t batch)
{
    snprintf(
        about, SMP__CHOICE_ABOUT,
        "attention, %s, %lld x %lld/%lld heads of %lld, %lld%s%lld, steps %lld %lld %lld, %.9g",
        smp_precision_name(cuda->precision), (long long)batch, (long long)at->heads,
        (long long)at->kv_heads, (long long)at->width, (long long)at->queries,
        at->causal ? " causal " : " x ", (long long)at->keys, (long long)at->stride[SMP__Q],
        (long long)at->stride[SMP__K], (long long)at->stride[SMP__V], (double)at->scale);
}

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MADE = 96, MAX_OPS = 16, MAX_CONFIGS = 8 };
/* Tensors that a call binds; what stays inside of the kernel is numbered from INNER. */
enum { UID_Q = 1, UID_K, UID_V, UID_OUT, UID_LSE, UID_SCALE, UID_HIDDEN, INNER };
enum { N_BOUND = INNER - UID_Q };

typedef cudnnBackendDescriptor_t descriptor;

/* A graph being put together. After the first failure nothing more happens. */
typedef struct builder {
    cudnnHandle_t handle;
    descriptor device;    /* what plans are made for, where there is no handle */
    cudnnDataType_t half; /* of q, k, v and the result */
    bool failed;
    int64_t uid;
    int n_made, n_op;
    descriptor made[MAX_MADE], op[MAX_OPS];
} builder;

struct smp__dnn_attention {
    descriptor plan;
    bool causal;
    float scale, hidden;
};

typedef struct shape {
    int64_t dim[4], stride[4];
} shape;

static descriptor make_descriptor(builder *b, cudnnBackendDescriptorType_t type)
{
    descriptor made = NULL;
    if (!b->failed && (b->n_made == MAX_MADE ||
                       smp__dnn.cudnnBackendCreateDescriptor(type, &made) != CUDNN_STATUS_SUCCESS))
        b->failed = true;
    else if (!b->failed)
        b->made[b->n_made++] = made;
    return made;
}

static void set(builder *b, descriptor of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (!b->failed &&
        smp__dnn.cudnnBackendSetAttribute(of, name, type, n, value) != CUDNN_STATUS_SUCCESS)
        b->failed = true;
}

static void set_descriptor(builder *b, descriptor of, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set(b, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(builder *b, descriptor of, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value)
{
    set(b, of, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

/* Says for which device something is made. */
static void aim(builder *b, descriptor of, cudnnBackendAttributeName_t handle,
                cudnnBackendAttributeName_t device)
{
    if (b->handle)
        set(b, of, handle, CUDNN_TYPE_HANDLE, 1, &b->handle);
    else
        set_descriptor(b, of, device, b->device);
}

static void finish(builder *b, descriptor of)
{
    if (!b->failed && smp__dnn.cudnnBackendFinalize(of) != CUDNN_STATUS_SUCCESS)
        b->failed = true;
}

/* cuDNN's description of a device as something that plans can be made for. */
static descriptor described(builder *b, const char *json)
{
    descriptor device = make_descriptor(b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(b, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)strlen(json), json);
    finish(b, device);
    return device;
}

static void add_op(builder *b, descriptor op)
{
    finish(b, op);
    if (b->n_op == MAX_OPS)
        b->failed = true;
    if (!b->failed)
        b->op[b->n_op++] = op;
}

static descriptor tensor(builder *b, cudnnDataType_t type, const shape *s, int64_t uid)
{
    const int64_t alignment = 16;
    const bool inner = uid >= INNER, by_value = uid == UID_SCALE || uid == UID_HIDDEN;
    descriptor t = make_descriptor(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dim);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->stride);
    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(b, t);
    return t;
}

static descriptor inner(builder *b, cudnnDataType_t type, const shape *s)
{
    return tensor(b, type, s, b->uid++);
}

static void multiply(builder *b, descriptor x, descriptor y, descriptor product)
{
    descriptor how = make_descriptor(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(b, how);
    descriptor op = make_descriptor(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, product);
    add_op(b, op);
}

static void reduce(builder *b, cudnnReduceTensorOp_t mode, descriptor x, descriptor y)
{
    descriptor how = make_descriptor(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set_type(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(b, how);
    descriptor op = make_descriptor(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(b, op);
}

/* y = mode(x, z, t); z and t may be NULL. axis: of GEN_INDEX, otherwise -1. */
static void pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                      descriptor x, descriptor z, descriptor t, descriptor y)
{
    descriptor how = make_descriptor(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (axis >= 0)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(b, how);
    descriptor op = make_descriptor(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (z)
        set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, z);
    if (t)
        set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(b, op);
}

static descriptor float_op(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor z,
                           const shape *s)
{
    descriptor y = inner(b, CUDNN_DATA_FLOAT, s);
    pointwise(b, mode, CUDNN_DATA_FLOAT, -1, x, z, NULL, y);
    return y;
}

/* Scores of keys after the query become -infinity. */
static descriptor hide(builder *b, descriptor score, const shape *scores, const shape *scalar)
{
    descriptor row = inner(b, CUDNN_DATA_INT32, scores),
               column = inner(b, CUDNN_DATA_INT32, scores);
    descriptor seen = inner(b, CUDNN_DATA_BOOLEAN, scores), y = inner(b, CUDNN_DATA_FLOAT, scores);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, score, NULL, NULL, row);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, score, NULL, NULL, column);
    pointwise(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
    pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, score,
              tensor(b, CUDNN_DATA_FLOAT, scalar, UID_HIDDEN), seen, y);
    return y;
}

static shape heads_shape(int64_t batch, int64_t heads, int64_t rows, int64_t width, int64_t stride)
{
    return (shape){{batch, heads, rows, width}, {rows * stride, width, stride, 1}};
}

static void build(builder *b, const smp__attention *at, int64_t batch)
{
    const int64_t h = at->heads, tq = at->queries, tk = at->keys;
    const shape scores = {{batch, h, tq, tk}, {h * tq * tk, tq * tk, tk, 1}};
    const shape rows = {{batch, h, tq, 1}, {h * tq, tq, 1, 1}};
    const shape scalar = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    const int64_t w = at->width, kh = at->kv_heads, key = at->stride[SMP__K];
    const shape query = heads_shape(batch, h, tq, w, at->stride[SMP__Q]);
    const shape value = heads_shape(batch, kh, tk, w, at->stride[SMP__V]);
    const shape result = heads_shape(batch, h, tq, w, at->d);
    const shape key_transposed = {{batch, kh, w, tk}, {tk * key, w, 1, key}};
    descriptor q = tensor(b, b->half, &query, UID_Q);
    descriptor k = tensor(b, b->half, &key_transposed, UID_K);
    descriptor v = tensor(b, b->half, &value, UID_V);
    descriptor out = tensor(b, b->half, &result, UID_OUT);
    descriptor lse = tensor(b, CUDNN_DATA_FLOAT, &rows, UID_LSE);
    descriptor scale = tensor(b, CUDNN_DATA_FLOAT, &scalar, UID_SCALE);

    descriptor product = inner(b, CUDNN_DATA_FLOAT, &scores);
    multiply(b, q, k, product);
    descriptor score = float_op(b, CUDNN_POINTWISE_MUL, product, scale, &scores);
    if (at->causal)
        score = hide(b, score, &scores, &scalar);
    descriptor top = inner(b, CUDNN_DATA_FLOAT, &rows), sum = inner(b, CUDNN_DATA_FLOAT, &rows);
    reduce(b, CUDNN_REDUCE_TENSOR_MAX, score, top);
    descriptor less = float_op(b, CUDNN_POINTWISE_SUB, score, top, &scores);
    descriptor power = float_op(b, CUDNN_POINTWISE_EXP, less, NULL, &scores);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, power, sum);
    descriptor log_sum = float_op(b, CUDNN_POINTWISE_LOG, sum, NULL, &rows);
    pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, top, log_sum, NULL, lse);
    descriptor p = inner(b, b->half, &scores);
    pointwise(b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, power, sum, NULL, p);
    multiply(b, p, v, out);
}

/* Does the engine of a configuration say that its results vary? */
static bool varies(builder *b, descriptor config)
{
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    descriptor engine = make_descriptor(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    if (b->failed ||
        smp__dnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                          &engine) != CUDNN_STATUS_SUCCESS ||
        smp__dnn.cudnnBackendGetAttribute(
            engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, note) != CUDNN_STATUS_SUCCESS)
        return true;
    for (int64_t i = 0; i < n; i++)
        if (note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return true;
    return false;
}

/* The plan of a configuration, NULL if it cannot be made or wants more than `workspace` bytes. */
static descriptor plan_of(builder *b, descriptor config, int64_t workspace)
{
    int64_t bytes = INT64_MAX, n = 0;
    descriptor plan = make_descriptor(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    aim(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    set_descriptor(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (b->failed)
        return NULL;
    if (smp__dnn.cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS ||
        smp__dnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &n,
                                          &bytes) != CUDNN_STATUS_SUCCESS ||
        bytes > workspace)
        return NULL;
    b->n_made--; /* the last one made is the caller's */
    return plan;
}

/* The first plan, in the order of cuDNN's heuristics, that does what we need. */
static descriptor find_plan(builder *b, int64_t workspace)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor config[MAX_CONFIGS],
        graph = make_descriptor(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    int64_t n = 0;
    if (b->handle)
        set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_op, b->op);
    finish(b, graph);
    descriptor heuristics = make_descriptor(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!b->handle)
        set_descriptor(b, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, b->device);
    finish(b, heuristics);
    for (int i = 0; i < MAX_CONFIGS; i++)
        config[i] = make_descriptor(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->failed || smp__dnn.cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS,
                                                       &n, config) != CUDNN_STATUS_SUCCESS)
        return NULL;
    for (int64_t i = 0; i < n && i < MAX_CONFIGS; i++) {
        descriptor plan = varies(b, config[i]) ? NULL : plan_of(b, config[i], workspace);
        if (plan)
            return plan;
    }
    return NULL;
}

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    if (!smp__dnn.cudnnGetVersion || smp__dnn.cudnnGetVersion() < SMP__DNN_OLDEST ||
        (!cuda->dnn && !cuda->dnn_device))
        return NULL;
    builder b = {.handle = cuda->dnn,
                 .uid = INNER,
                 .half =
                     cuda->precision == SMP_PRECISION_FP16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16};
    smp__dnn_attention *made = malloc(sizeof *made);
    if (!b.handle)
        b.device = described(&b, cuda->dnn_device);
    build(&b, at, batch);
    descriptor plan = made ? find_plan(&b, cuda->workspace_bytes) : NULL;
    while (b.n_made > 0)
        smp__dnn.cudnnBackendDestroyDescriptor(b.made[--b.n_made]);
    if (!plan) {
        free(made);
        return NULL;
    }
    *made = (smp__dnn_attention){plan, at->causal, at->scale, -INFINITY};
    return made;
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    if (!plan)
        return;
    smp__dnn.cudnnBackendDestroyDescriptor(plan->plan);
    free(plan);
}

static cudnnStatus_t execute(const smp__dnn_attention *plan, const smp_cuda *cuda, descriptor bound,
                             void **address)
{
    static const int64_t uid[N_BOUND] = {UID_Q,   UID_K,     UID_V,     UID_OUT,
                                         UID_LSE, UID_SCALE, UID_HIDDEN};
    const int64_t n = plan->causal ? N_BOUND : N_BOUND - 1; /* UID_HIDDEN is the last */
    cudnnStatus_t status = smp__dnn.cudnnBackendSetAttribute(
        bound, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendSetAttribute(bound, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                   CUDNN_TYPE_VOID_PTR, n, address);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendSetAttribute(bound, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                   CUDNN_TYPE_VOID_PTR, 1, &cuda->workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendFinalize(bound);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendExecute(cuda->dnn, plan->plan, bound);
    return status;
}

smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    void *address[N_BOUND] = {
        (void *)data->q, (void *)data->k,      (void *)data->v,      data->out,
        data->lse,       (void *)&plan->scale, (void *)&plan->hidden};
    descriptor bound;
    SMP_TRY(smp__dnn_check(
        smp__dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &bound),
        "cudnnBackendCreateDescriptor"));
    cudnnStatus_t status = execute(plan, cuda, bound, address);
    smp__dnn.cudnnBackendDestroyDescriptor(bound);
    return smp__dnn_check(status, "attention by cuDNN");
}

#elif !defined(SMP_EMULATED) /* the emulator has one of its own */

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    (void)cuda;
    (void)at;
    (void)batch;
    return NULL;
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    (void)plan;
}

smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    (void)plan;
    (void)cuda;
    (void)data;
    return smp_fail(SMP_ERR_FAILED, "this library was built without cuDNN");
}

#endif
