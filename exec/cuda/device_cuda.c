/* An NVIDIA GPU as a device: the arena is one piece of its memory, everything else is enqueued on
 * one stream, of the lowest priority that there is: what the transport's streams do goes first.
 * What is copied to host memory and back has a stream for each way, so that copies go on beside
 * kernels and beside each other; events order them with the compute stream, no wait of the host's.
 *
 * Stamps are events. Their times are counted from a reference event whose time the host knows
 * because it waited for it; the two clocks drift apart (assumed: up to 50 us a second) and an
 * event's distance has 24 bits, so the reference is taken anew when the device is found idle a
 * second later. A stamp keeps the reference that it was recorded after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/cuda_event.h"
#include "exec/cuda/cuda_kernels.h"
#include "exec/cuda/cuda_queues.h"
#include "exec/device/device.h"
#include "exec/optimizer/cuda_optimizer.h"
#include "graph/base/built.h"
#include "graph/base/clock.h"
#include "graph/base/text.h"
#include "graph/cuda/cuda.h"
#include "graph/cuda/cuda_blas.h"
#include "graph/cuda/cuda_dnn.h"

#define WORKSPACE_BYTES ((int64_t)32 << 20)
#define WORKSPACE_BYTES_90 ((int64_t)64 << 20) /* what cuBLASLt's best kernels of Hopper ask for */

enum { MIN_CAPABILITY = 80, FP8_CAPABILITY = 89, REFERENCES = 16, WAYS = 2 };

static const double REFERENCE_S = 1.0;

typedef struct cuda_stamp {
    cudaEvent_t event;
    int64_t reference; /* number of the last reference before it; -1: never recorded */
} cuda_stamp;

typedef struct host_copy {
    cuda_stamp begin, end;
} host_copy;

typedef struct cuda_context {
    smp_cuda cuda; /* first: what kernels get */
    smp__choices choices;
    smp_gemms products;
    char text[320];
    char id[64];
    cudaEvent_t reference[REFERENCES];
    double reference_s[REFERENCES];
    int64_t n_reference;
    bool stamped;           /* since the last reference */
    cudaStream_t way[WAYS]; /* out, back; NULL: nothing is copied */
    cudaEvent_t here;       /* where the compute stream is */
    int host_copies;
    host_copy *host_copy; /* [host_copies] */
    int stamps;
    cuda_stamp stamp[];
} cuda_context;

/* The first driver of each version of CUDA, in the numbers that nvidia-smi shows. */
static int first_driver(int major)
{
    return major == 12 ? 525 : major == 13 ? 580 : 0;
}

/* Any driver of the runtime's major version will do. */
static smp_status fail_driver(void)
{
    char number[48] = "";
    int driver = 0, runtime = 0;
    SMP_TRY(SMP_CUDA(cudaDriverGetVersion, &driver));
    SMP_TRY(SMP_CUDA(cudaRuntimeGetVersion, &runtime));
    if (driver == 0)
        return smp_fail(SMP_ERR_FAILED, "no GPU: there is no driver of NVIDIA");
    if (first_driver(runtime / 1000) > 0)
        snprintf(number, sizeof number, ", which is driver %d", first_driver(runtime / 1000));
    return smp_fail(SMP_ERR_FAILED,
                    "no GPU: the driver is of CUDA %d.%d, expected %d.0%s, or later", driver / 1000,
                    driver % 1000 / 10, runtime / 1000, number);
}

static smp_status count_devices(int *count)
{
    *count = 0;
    cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaErrorInsufficientDriver)
        return fail_driver();
    if (code != cudaSuccess)
        return smp_fail(SMP_ERR_FAILED, "no GPU: %s", cudaGetErrorString(code));
    if (*count < 1)
        return smp_fail(SMP_ERR_FAILED, "no GPU: CUDA finds none");
    return SMP_OK;
}

static smp_status cuda_present(void)
{
    int count;
    const bool asked = smp__ask_for_cuda_queues();
    smp_status status = count_devices(&count);
    if (asked)
        unsetenv(SMP__CUDA_QUEUES);
    SMP_TRY(status);
    return smp__blas_open();
}

static smp_status describe(cuda_context *c, int device)
{
    struct cudaDeviceProp properties;
    char memory[32];
    int driver = 0;
    SMP_TRY(SMP_CUDA(cudaGetDeviceProperties, &properties, device));
    SMP_TRY(SMP_CUDA(cudaDriverGetVersion, &driver));
    c->cuda.capability = 10 * properties.major + properties.minor;
    c->cuda.multiprocessors = properties.multiProcessorCount;
    c->cuda.shared_bytes = (int)properties.sharedMemPerBlockOptin;
    smp_format_bytes(memory, sizeof(memory), (int64_t)properties.totalGlobalMem);
    snprintf(c->text, sizeof(c->text), "%.200s, GPU %d, %s, CUDA %d.%d", properties.name, device,
             memory, driver / 1000, driver % 1000 / 10);
    for (int i = 0; i < 16; i++)
        snprintf(c->id + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
    if (c->cuda.capability < MIN_CAPABILITY)
        return smp_fail(SMP_ERR_FAILED, "%s: compute capability %d.%d, the kernels need %d.%d",
                        c->text, properties.major, properties.minor, MIN_CAPABILITY / 10,
                        MIN_CAPABILITY % 10);
    if (c->cuda.precision == SMP_PRECISION_FP8 && c->cuda.capability < FP8_CAPABILITY)
        return smp_fail(SMP_ERR_INPUT,
                        "fp8 on %s: compute capability %d.%d, products in fp8 need %d.%d (Ada, "
                        "Hopper and later): give --precision bf16",
                        c->text, properties.major, properties.minor, FP8_CAPABILITY / 10,
                        FP8_CAPABILITY % 10);
    if (c->cuda.shared_bytes < SMP_CUDA_SHARED_LEAST)
        return smp_fail(SMP_ERR_FAILED,
                        "%s: a block has %d KiB of shared memory, the kernels need %d", c->text,
                        c->cuda.shared_bytes >> 10, SMP_CUDA_SHARED_LEAST >> 10);
    return SMP_OK;
}

static smp_status reserve_workspace(cuda_context *c)
{
    smp_cuda *cuda = &c->cuda;
    size_t available = 0, total = 0;
    char needed[32], room[32];
    cuda->workspace_bytes = cuda->capability >= 90 ? WORKSPACE_BYTES_90 : WORKSPACE_BYTES;
    if (cudaMalloc(&cuda->workspace, (size_t)cuda->workspace_bytes) == cudaSuccess)
        return SMP_OK;
    cudaGetLastError(); /* not one of a kernel */
    cuda->workspace = NULL;
    SMP_TRY(SMP_CUDA(cudaMemGetInfo, &available, &total));
    return smp_fail(SMP_ERR_NO_FIT, "%s: matrix products need %s of workspace, %s are free",
                    c->text, smp_format_bytes(needed, sizeof(needed), cuda->workspace_bytes),
                    smp_format_bytes(room, sizeof(room), (int64_t)available));
}

/* The stream and what works on it. Its priority is the least: of a message and a kernel that are
 * both ready the message goes first, or a neighbour waits for a whole matrix product. */
static smp_status open_libraries(cuda_context *c)
{
    smp_cuda *cuda = &c->cuda;
    int least = 0, greatest = 0;
    SMP_TRY(SMP_CUDA(cudaDeviceGetStreamPriorityRange, &least, &greatest));
    SMP_TRY(SMP_CUDA(cudaStreamCreateWithPriority, &cuda->stream, cudaStreamNonBlocking, least));
    SMP_TRY(smp__blas_open());
    SMP_TRY(smp__blas_check(smp__blas.cublasLtCreate((cublasLtHandle_t *)&cuda->blas),
                            "cublasLtCreate"));
    smp__blas_name(c->products.library, sizeof(c->products.library));
    SMP_TRY(smp__dnn_open(&cuda->dnn, cuda->stream));
    return reserve_workspace(c);
}

/* Unwatched: the stream is idle, so this waits for no work. */
static smp_status take_reference(cuda_context *c)
{
    int slot = (int)(c->n_reference % REFERENCES);
    SMP_TRY(SMP_CUDA(cudaEventRecord, c->reference[slot], c->cuda.stream));
    SMP_TRY(SMP_CUDA(cudaEventSynchronize, c->reference[slot]));
    c->reference_s[slot] = smp_clock_s();
    c->n_reference++;
    c->stamped = false;
    return SMP_OK;
}

static smp_status open_events(cuda_context *c)
{
    for (int i = 0; i < REFERENCES; i++)
        SMP_TRY(SMP_CUDA(cudaEventCreate, &c->reference[i]));
    for (int i = 0; i < c->stamps; i++) {
        c->stamp[i].reference = -1;
        SMP_TRY(SMP_CUDA(cudaEventCreate, &c->stamp[i].event));
    }
    return take_reference(c);
}

static smp_status open_host_copies(cuda_context *c, int host_copies)
{
    if (host_copies == 0)
        return SMP_OK;
    c->host_copy = calloc((size_t)host_copies, sizeof *c->host_copy);
    if (!c->host_copy)
        return smp_fail_memory((size_t)host_copies * sizeof *c->host_copy);
    c->host_copies = host_copies;
    SMP_TRY(smp__make_event(&c->here));
    for (int i = 0; i < WAYS; i++)
        SMP_TRY(smp__make_urgent_stream(&c->way[i]));
    for (int i = 0; i < host_copies; i++) {
        c->host_copy[i].begin.reference = c->host_copy[i].end.reference = -1;
        SMP_TRY(SMP_CUDA(cudaEventCreate, &c->host_copy[i].begin.event));
        SMP_TRY(SMP_CUDA(cudaEventCreate, &c->host_copy[i].end.event));
    }
    return SMP_OK;
}

static void close_host_copies(cuda_context *c)
{
    for (int i = 0; i < c->host_copies; i++) {
        if (c->host_copy[i].begin.event)
            cudaEventDestroy(c->host_copy[i].begin.event);
        if (c->host_copy[i].end.event)
            cudaEventDestroy(c->host_copy[i].end.event);
    }
    free(c->host_copy);
    for (int i = 0; i < WAYS; i++)
        if (c->way[i])
            cudaStreamDestroy(c->way[i]);
    if (c->here)
        cudaEventDestroy(c->here);
}

static void cuda_close(void *context)
{
    cuda_context *c = context;
    if (!c)
        return;
    close_host_copies(c);
    for (int i = 0; i < REFERENCES; i++)
        if (c->reference[i])
            cudaEventDestroy(c->reference[i]);
    for (int i = 0; i < c->stamps; i++)
        if (c->stamp[i].event)
            cudaEventDestroy(c->stamp[i].event);
    if (c->cuda.workspace)
        cudaFree(c->cuda.workspace);
    smp__choices_free(&c->choices); /* of the libraries below */
    smp__dnn_close(c->cuda.dnn);
    if (c->cuda.blas)
        smp__blas.cublasLtDestroy(c->cuda.blas);
    if (c->cuda.stream)
        cudaStreamDestroy(c->cuda.stream);
    smp_gemms_free(&c->products);
    free(c);
}

static smp_status open_device(const smp_device_options *options, void **context)
{
    int count = 0;
    SMP_TRY(count_devices(&count));
    int device = options->node_rank % count;
    SMP_TRY(SMP_CUDA(cudaSetDevice, device));
    size_t bytes = sizeof(cuda_context) + (size_t)options->stamps * sizeof(cuda_stamp);
    cuda_context *c = calloc(1, bytes);
    if (!c)
        return smp_fail_memory(bytes);
    c->cuda.precision = options->precision;
    c->cuda.choices = &c->choices;
    c->cuda.products = &c->products;
    c->stamps = options->stamps;
    smp_status status = describe(c, device);
    if (status == SMP_OK)
        status = open_libraries(c);
    if (status == SMP_OK)
        status = open_events(c);
    if (status == SMP_OK)
        status = open_host_copies(c, options->host_copies);
    if (status != SMP_OK) {
        cuda_close(c);
        return status;
    }
    *context = c;
    return SMP_OK;
}

static smp_status cuda_open(const smp_device_options *options, void **context)
{
    const bool asked = smp__ask_for_cuda_queues();
    smp_status status = open_device(options, context);
    if (asked)
        unsetenv(SMP__CUDA_QUEUES);
    return status;
}

static const char *cuda_describe(void *context)
{
    return ((const cuda_context *)context)->text;
}

static void cuda_identity(void *context, char id[64])
{
    memcpy(id, ((const cuda_context *)context)->id, 64);
}

static smp_status cuda_available(void *context, int64_t *bytes)
{
    (void)context;
    size_t available = 0, total = 0;
    SMP_TRY(SMP_CUDA(cudaMemGetInfo, &available, &total));
    *bytes = (int64_t)available;
    return SMP_OK;
}

static cudaStream_t stream_of(void *context)
{
    return ((const cuda_context *)context)->cuda.stream;
}

static smp_status cuda_reserve(void *context, int64_t bytes, char **arena)
{
    size_t size = bytes > 0 ? (size_t)bytes : 256;
    void *memory = NULL;
    char text[32];
    if (cudaMalloc(&memory, size) != cudaSuccess) {
        cudaGetLastError(); /* not one of a kernel */
        return smp_fail(SMP_ERR_NO_MEMORY, "%s: has no %s in one piece", cuda_describe(context),
                        smp_format_bytes(text, sizeof(text), (int64_t)size));
    }
    smp_status status = SMP_CUDA(cudaMemsetAsync, memory, 0, size, stream_of(context));
    if (status != SMP_OK) {
        cudaFree(memory);
        return status;
    }
    *arena = memory;
    return SMP_OK;
}

static void cuda_release(void *context, char *arena, int64_t bytes)
{
    (void)context;
    (void)bytes;
    cudaFree(arena);
}

static smp_status cuda_reserve_host(void *context, int64_t bytes, char **memory)
{
    char text[32];
    size_t size = bytes > 0 ? (size_t)bytes : 64;
    void *host = NULL;
    if (cudaHostAlloc(&host, size, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError(); /* not one of a kernel */
        return smp_fail(SMP_ERR_NO_MEMORY, "%s: no %s of pinned host memory",
                        cuda_describe(context), smp_format_bytes(text, sizeof text, (int64_t)size));
    }
    memset(host, 0, size);
    *memory = host;
    return SMP_OK;
}

static void cuda_release_host(void *context, char *memory)
{
    (void)context;
    cudaFreeHost(memory);
}

static void *cuda_kernel_context(void *context)
{
    return &((cuda_context *)context)->cuda;
}

static smp__choices *cuda_choices(void *context)
{
    return &((cuda_context *)context)->choices;
}

static smp_gemms *cuda_products(void *context)
{
    return &((cuda_context *)context)->products;
}

static smp_status copy_async(void *context, void *target, const void *source, int64_t bytes,
                             enum cudaMemcpyKind kind)
{
    if (bytes <= 0)
        return SMP_OK;
    return SMP_CUDA(cudaMemcpyAsync, target, source, (size_t)bytes, kind, stream_of(context));
}

static smp_status cuda_copy(void *context, void *target, const void *source, int64_t bytes)
{
    return copy_async(context, target, source, bytes, cudaMemcpyDeviceToDevice);
}

static smp_status cuda_zero(void *context, void *target, int64_t bytes)
{
    if (bytes <= 0)
        return SMP_OK;
    return SMP_CUDA(cudaMemsetAsync, target, 0, (size_t)bytes, stream_of(context));
}

static smp_status cuda_upload(void *context, void *target, const void *host, int64_t bytes)
{
    return copy_async(context, target, host, bytes, cudaMemcpyHostToDevice);
}

static smp_status cuda_download(void *context, void *host, const void *source, int64_t bytes)
{
    return copy_async(context, host, source, bytes, cudaMemcpyDeviceToHost);
}

static smp_status cuda_add(void *context, smp_dtype dtype, void *target, const void *source,
                           int64_t elements)
{
    return smp__cuda_accumulate(stream_of(context), dtype, target, source, elements);
}

static smp_status cuda_square_sums(void *context, smp_dtype dtype, const smp_squares *of, int n)
{
    return smp__cuda_square_sums(stream_of(context), dtype, of, n);
}

static const smp_op_kernels *cuda_kernels(const smp_op_kind *kind, smp_precision precision)
{
    (void)precision; /* they ask the tensors */
    return smp_op_cuda_kernels(kind);
}

static smp_status cuda_round16(void *context, smp_dtype half, void *target16, const float *source,
                               int64_t elements)
{
    return smp__cuda_round16(stream_of(context), half,
                             &(smp__conversion){target16, source, elements}, 1);
}

static bool cuda_updates(const smp_optimizer *optimizer)
{
    return smp__cuda_optimizer_of(optimizer) != NULL;
}

static smp_status cuda_update(void *context, const smp_optimizer *optimizer,
                              const smp_update *update)
{
    const smp__cuda_optimizer *cuda = smp__cuda_optimizer_of(optimizer);
    return (update->direction ? cuda->measure : cuda->update)(update, stream_of(context));
}

/* Other threads may use CUDA meanwhile. */
static smp_status cuda_capture(void *context)
{
    return SMP_CUDA(cudaStreamBeginCapture, stream_of(context), cudaStreamCaptureModeThreadLocal);
}

/* What an instance takes of the device is taken now, not by its first launch. */
static smp_status instantiate(cudaStream_t stream, cudaGraph_t graph, void **work, int *launches)
{
    cudaGraphExec_t instance;
    size_t nodes = 0;
    SMP_TRY(SMP_CUDA(cudaGraphGetNodes, graph, NULL, &nodes));
    *launches = (int)nodes;
    if (nodes == 0)
        return SMP_OK;
    SMP_TRY(SMP_CUDA(cudaGraphInstantiate, &instance, graph, 0));
    smp_status status = SMP_CUDA(cudaGraphUpload, instance, stream);
    if (status == SMP_OK)
        *work = instance;
    else
        cudaGraphExecDestroy(instance);
    return status;
}

static smp_status cuda_captured(void *context, void **work, int *launches)
{
    cudaGraph_t graph = NULL;
    *work = NULL;
    *launches = 0;
    smp_status status = SMP_CUDA(cudaStreamEndCapture, stream_of(context), &graph);
    if (status == SMP_OK)
        status = instantiate(stream_of(context), graph, work, launches);
    if (graph)
        cudaGraphDestroy(graph);
    if (status != SMP_OK)
        cudaGetLastError(); /* not one of a kernel */
    return status;
}

static smp_status cuda_replay(void *context, void *work)
{
    return SMP_CUDA(cudaGraphLaunch, (cudaGraphExec_t)work, stream_of(context));
}

static void cuda_forget(void *work)
{
    cudaGraphExecDestroy((cudaGraphExec_t)work);
}

/* "Not yet" is no error, but CUDA notes it as the last one. */
static bool is_pending(cudaError_t code)
{
    if (code == cudaErrorNotReady)
        cudaGetLastError();
    return code == cudaErrorNotReady;
}

static smp_status cuda_idle(void *context, bool *done)
{
    cuda_context *c = context;
    cudaError_t code = cudaStreamQuery(c->cuda.stream);
    *done = code == cudaSuccess;
    if (is_pending(code))
        return SMP_OK;
    SMP_TRY(smp__cuda_check(code, "the GPU"));
    double last_s = c->reference_s[(c->n_reference - 1) % REFERENCES];
    return c->stamped && smp_clock_s() - last_s > REFERENCE_S ? take_reference(c) : SMP_OK;
}

static smp_status record(cuda_context *c, cuda_stamp *stamp, cudaStream_t stream)
{
    stamp->reference = c->n_reference - 1;
    c->stamped = true;
    return SMP_CUDA(cudaEventRecord, stamp->event, stream);
}

static bool has_passed(const cuda_context *c, const cuda_stamp *stamp, double *time_s)
{
    if (stamp->reference < 0)
        return false;
    cudaError_t code = cudaEventQuery(stamp->event);
    if (is_pending(code) || code != cudaSuccess)
        return false; /* `idle` tells of errors */
    if (!time_s)
        return true;
    int64_t oldest = c->n_reference > REFERENCES ? c->n_reference - REFERENCES : 0;
    int64_t reference = stamp->reference > oldest ? stamp->reference : oldest;
    float after_ms = 0.0f;
    cudaEventElapsedTime(&after_ms, c->reference[reference % REFERENCES], stamp->event);
    *time_s = c->reference_s[reference % REFERENCES] + 1e-3 * (double)after_ms;
    return true;
}

static smp_status cuda_stamp_now(void *context, int index)
{
    cuda_context *c = context;
    return record(c, &c->stamp[index], c->cuda.stream);
}

static bool cuda_passed(void *context, int index, double *time_s)
{
    const cuda_context *c = context;
    return has_passed(c, &c->stamp[index], time_s);
}

static smp_status begin_host_copy(cuda_context *c, int slot, cudaStream_t way, void *target,
                                  const void *source, int64_t bytes, enum cudaMemcpyKind kind)
{
    SMP_TRY(record(c, &c->host_copy[slot].begin, way));
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, target, source, (size_t)bytes, kind, way));
    return record(c, &c->host_copy[slot].end, way);
}

static smp_status cuda_copy_to_host(void *context, int slot, void *host, const void *source,
                                    int64_t bytes)
{
    cuda_context *c = context;
    return begin_host_copy(c, slot, c->way[0], host, source, bytes, cudaMemcpyDeviceToHost);
}

static smp_status cuda_copy_to_device(void *context, int slot, void *target, const void *host,
                                      int64_t bytes)
{
    cuda_context *c = context;
    return begin_host_copy(c, slot, c->way[1], target, host, bytes, cudaMemcpyHostToDevice);
}

static smp_status cuda_copy_from_here(void *context, bool back)
{
    const cuda_context *c = context;
    SMP_TRY(SMP_CUDA(cudaEventRecord, c->here, c->cuda.stream));
    return SMP_CUDA(cudaStreamWaitEvent, c->way[back], c->here, 0);
}

static smp_status cuda_copy_join(void *context, int slot)
{
    cuda_context *c = context;
    return SMP_CUDA(cudaStreamWaitEvent, c->cuda.stream, c->host_copy[slot].end.event, 0);
}

static bool cuda_copy_times(void *context, int slot, double *begin_s, double *end_s)
{
    const cuda_context *c = context;
    return has_passed(c, &c->host_copy[slot].begin, begin_s) &&
           has_passed(c, &c->host_copy[slot].end, end_s);
}

static void cuda_before_mpi(void)
{
    smp__ask_for_cuda_queues();
}

SMP__IF_NCCL(extern const struct smp_transport smp__transport_nccl;)
extern const struct smp_transport smp__transport_staged;
static const struct smp_transport *const transports[] = {
    SMP__IF_NCCL(&smp__transport_nccl, ) & smp__transport_staged, NULL};

const smp_device smp__device_cuda = {
    .name = "cuda",
    .summary = "one NVIDIA GPU per rank, or a share of one",
    .backend = SMP_BACKEND_CUDA,
    .host_memory = false,
    .transports = transports,
    .before_mpi = cuda_before_mpi,
    .present = cuda_present,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .identity = cuda_identity,
    .available = cuda_available,
    .reserve = cuda_reserve,
    .release = cuda_release,
    .reserve_host = cuda_reserve_host,
    .release_host = cuda_release_host,
    .kernel_context = cuda_kernel_context,
    .choices = cuda_choices,
    .products = cuda_products,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .upload = cuda_upload,
    .download = cuda_download,
    .add = cuda_add,
    .square_sums = cuda_square_sums,
    .round16 = cuda_round16,
    .updates = cuda_updates,
    .update = cuda_update,
    .capture = cuda_capture,
    .captured = cuda_captured,
    .replay = cuda_replay,
    .forget = cuda_forget,
    .kernels = cuda_kernels,
    .idle = cuda_idle,
    .stamp = cuda_stamp_now,
    .passed = cuda_passed,
    .copy_to_host = cuda_copy_to_host,
    .copy_to_device = cuda_copy_to_device,
    .copy_from_here = cuda_copy_from_here,
    .copy_join = cuda_copy_join,
    .copy_times = cuda_copy_times,
};
