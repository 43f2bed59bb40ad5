/* Opens cuDNN, and puts graphs of its operations together, out of which its runtime-compiled
 * engines make plans. A machine without it is no error, nor is a graph without a plan: every
 * operator has a kernel of ours. */
#include "graph/cuda/cuda_dnn.h"

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include "graph/base/library.h"

#include <stdio.h>
#include <string.h>

typedef smp__dnn_descriptor descriptor;

enum { MAX_CONFIGS = 8, MAX_BOUND = 16, FIRST_BOUND = 1, FIRST_INNER = 1000 };

smp__dnn_calls smp__dnn;

smp_status smp__dnn_check(cudnnStatus_t code, const char *call)
{
    if (code == CUDNN_STATUS_SUCCESS)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s: %s", call, smp__dnn.cudnnGetErrorString(code));
}

smp_status smp__dnn_open(void **handle, cudaStream_t stream)
{
    static const char *const symbol[] = {
#define NAME(name) #name,
        SMP__DNN_CALLS(NAME)
#undef NAME
    };
    *handle = NULL;
    if (smp_library_open("libcudnn.so.9", SMP_CUDA_LIBRARY_DIR,
                         (int)(sizeof symbol / sizeof symbol[0]), symbol,
                         (void **)&smp__dnn) != SMP_OK)
        return SMP_OK;
    cudnnHandle_t made;
    cudnnStatus_t code = smp__dnn.cudnnCreate(&made);
    if (code != CUDNN_STATUS_SUCCESS && code != CUDNN_STATUS_ALLOC_FAILED)
        return SMP_OK; /* parts of it are missing, or it does not know the GPU */
    SMP_TRY(smp__dnn_check(code, "cudnnCreate"));
    smp_status status = smp__dnn_check(smp__dnn.cudnnSetStream(made, stream), "cudnnSetStream");
    if (status != SMP_OK) {
        smp__dnn.cudnnDestroy(made);
        return status;
    }
    *handle = made;
    return SMP_OK;
}

void smp__dnn_close(void *handle)
{
    if (handle)
        smp__dnn.cudnnDestroy(handle);
}

void smp__dnn_name(char name[SMP__DNN_NAME_BYTES])
{
    const size_t v = smp__dnn.cudnnGetVersion ? smp__dnn.cudnnGetVersion() : 0;
    name[0] = '\0';
    if (v > 0)
        snprintf(name, SMP__DNN_NAME_BYTES, "cuDNN %zu.%zu.%zu", v / 10000, v % 10000 / 100,
                 v % 100);
}

static descriptor make_descriptor(smp__dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor made = NULL;
    if (!g->failed && (g->n_made == SMP__DNN_MADE ||
                       smp__dnn.cudnnBackendCreateDescriptor(type, &made) != CUDNN_STATUS_SUCCESS))
        g->failed = true;
    else if (!g->failed)
        g->made[g->n_made++] = made;
    return made;
}

static void set(smp__dnn_graph *g, descriptor of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (!g->failed &&
        smp__dnn.cudnnBackendSetAttribute(of, name, type, n, value) != CUDNN_STATUS_SUCCESS)
        g->failed = true;
}

static void set_descriptor(smp__dnn_graph *g, descriptor of, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set(g, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(smp__dnn_graph *g, descriptor of, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value)
{
    set(g, of, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

/* Says for which device something is made. */
static void aim(smp__dnn_graph *g, descriptor of, cudnnBackendAttributeName_t handle,
                cudnnBackendAttributeName_t device)
{
    if (g->handle)
        set(g, of, handle, CUDNN_TYPE_HANDLE, 1, &g->handle);
    else
        set_descriptor(g, of, device, g->device);
}

static void finish(smp__dnn_graph *g, descriptor of)
{
    if (!g->failed && smp__dnn.cudnnBackendFinalize(of) != CUDNN_STATUS_SUCCESS)
        g->failed = true;
}

static void add_op(smp__dnn_graph *g, descriptor op)
{
    finish(g, op);
    if (g->n_op == SMP__DNN_OPS)
        g->failed = true;
    if (!g->failed)
        g->op[g->n_op++] = op;
}

void smp__dnn_graph_open(smp__dnn_graph *g, cudnnHandle_t handle, const char *device)
{
    *g = (smp__dnn_graph){.handle = handle};
    g->failed = !smp__dnn.cudnnGetVersion || smp__dnn.cudnnGetVersion() < SMP__DNN_OLDEST ||
                (!handle && !device);
    if (g->failed || handle)
        return;
    g->device = make_descriptor(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(g, g->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)strlen(device), device);
    finish(g, g->device);
}

static descriptor tensor(smp__dnn_graph *g, cudnnDataType_t type, const smp__dnn_shape *s,
                         int64_t uid, bool by_value)
{
    const int64_t alignment = 16;
    const bool inner = uid >= FIRST_INNER;
    descriptor t = make_descriptor(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dim);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->stride);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner);
    set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(g, t);
    return t;
}

descriptor smp__dnn_array(smp__dnn_graph *g, cudnnDataType_t type, const smp__dnn_shape *shape)
{
    return tensor(g, type, shape, FIRST_BOUND + g->bound++, false);
}

descriptor smp__dnn_number(smp__dnn_graph *g)
{
    const smp__dnn_shape scalar = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(g, CUDNN_DATA_FLOAT, &scalar, FIRST_BOUND + g->bound++, true);
}

descriptor smp__dnn_inner(smp__dnn_graph *g, cudnnDataType_t type, const smp__dnn_shape *shape)
{
    return tensor(g, type, shape, FIRST_INNER + g->inner++, false);
}

void smp__dnn_convolve(smp__dnn_graph *g, const smp__dnn_convolution_op *op)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t how, x, filters, y, alpha, beta;
    } parts[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dimensions = 2;
    const float one = 1, zero = 0;
    descriptor how = make_descriptor(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_type(g, how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions);
    set(g, how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, op->stride);
    set(g, how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, op->padding);
    set(g, how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, op->padding);
    set(g, how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, op->dilation);
    finish(g, how);
    descriptor made = make_descriptor(g, parts[op->part].type);
    set_descriptor(g, made, parts[op->part].how, how);
    set_descriptor(g, made, parts[op->part].x, op->x);
    set_descriptor(g, made, parts[op->part].filters, op->filters);
    set_descriptor(g, made, parts[op->part].y, op->y);
    set(g, made, parts[op->part].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set(g, made, parts[op->part].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    add_op(g, made);
}

void smp__dnn_matmul(smp__dnn_graph *g, descriptor x, descriptor y, descriptor product)
{
    descriptor how = make_descriptor(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, product);
    add_op(g, op);
}

void smp__dnn_reduce(smp__dnn_graph *g, cudnnReduceTensorOp_t mode, descriptor x, descriptor y)
{
    descriptor how = make_descriptor(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op);
}

void smp__dnn_reshape(smp__dnn_graph *g, descriptor x, descriptor y)
{
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op);
}

void smp__dnn_pointwise(smp__dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                        int64_t axis, descriptor x, descriptor z, descriptor t, descriptor y)
{
    descriptor how = make_descriptor(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (axis >= 0)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (z)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, z);
    if (t)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op);
}

/* Does the engine of a configuration say that its results vary? */
static bool varies(smp__dnn_graph *g, descriptor config)
{
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    descriptor engine = make_descriptor(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t n = 0;
    if (g->failed ||
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

int64_t smp__dnn_plan_workspace(descriptor plan)
{
    int64_t bytes = INT64_MAX, n = 0;
    if (smp__dnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &n, &bytes) != CUDNN_STATUS_SUCCESS)
        return INT64_MAX;
    return bytes;
}

/* The plan of a configuration, NULL if it cannot be made or wants more than `workspace` bytes. */
static descriptor plan_of(smp__dnn_graph *g, descriptor config, int64_t workspace)
{
    descriptor plan = make_descriptor(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    aim(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->failed || smp__dnn.cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS ||
        smp__dnn_plan_workspace(plan) > workspace)
        return NULL;
    g->n_made--; /* the last one made is the caller's */
    return plan;
}

static descriptor find_plan(smp__dnn_graph *g, int64_t workspace)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor config[MAX_CONFIGS],
        graph = make_descriptor(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    int64_t n = 0;
    if (g->handle)
        set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op, g->op);
    finish(g, graph);
    descriptor heuristics = make_descriptor(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!g->handle)
        set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->device);
    finish(g, heuristics);
    for (int i = 0; i < MAX_CONFIGS; i++)
        config[i] = make_descriptor(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed || smp__dnn.cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS,
                                                       &n, config) != CUDNN_STATUS_SUCCESS)
        return NULL;
    for (int64_t i = 0; i < n && i < MAX_CONFIGS; i++) {
        descriptor plan = varies(g, config[i]) ? NULL : plan_of(g, config[i], workspace);
        if (plan)
            return plan;
    }
    return NULL;
}

descriptor smp__dnn_graph_plan(smp__dnn_graph *g, int64_t workspace_bytes)
{
    descriptor plan = find_plan(g, workspace_bytes);
    while (g->n_made > 0)
        smp__dnn.cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
    return plan;
}

static cudnnStatus_t execute(descriptor plan, cudnnHandle_t handle, descriptor pack, int64_t n,
                             void *const *address, void **workspace)
{
    int64_t uid[MAX_BOUND];
    for (int64_t i = 0; i < n; i++)
        uid[i] = FIRST_BOUND + i;
    cudnnStatus_t status = smp__dnn.cudnnBackendSetAttribute(
        pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                   CUDNN_TYPE_VOID_PTR, n, address);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                   CUDNN_TYPE_VOID_PTR, 1, workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = smp__dnn.cudnnBackendExecute(handle, plan, pack);
    return status;
}

smp_status smp__dnn_plan_run(descriptor plan, cudnnHandle_t handle, int n, void *const *address,
                             void *workspace, const char *what)
{
    descriptor pack;
    SMP_TRY(smp__dnn_check(
        smp__dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
        "cudnnBackendCreateDescriptor"));
    cudnnStatus_t status = execute(plan, handle, pack, n, address, &workspace);
    smp__dnn.cudnnBackendDestroyDescriptor(pack);
    return smp__dnn_check(status, what);
}

#elif !defined(SMP_EMULATED) /* the emulator has one of its own */

smp_status smp__dnn_open(void **handle, cudaStream_t stream)
{
    (void)stream;
    *handle = NULL;
    return SMP_OK;
}

void smp__dnn_close(void *handle)
{
    (void)handle;
}

void smp__dnn_name(char name[SMP__DNN_NAME_BYTES])
{
    name[0] = '\0';
}

#endif
