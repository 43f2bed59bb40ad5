/* The emulator's streams, events, memory and devices. */
#include "cuda_runtime.h"

#include "emulate_fixture.h"

#include <cstring>

__global__ void add_one(int *x, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] += 1;
}
__global__ void copy_values(const int *x, int *y, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = x[i];
}
static void set_flag(void *flag)
{
    *static_cast<bool *>(flag) = true;
}

static void test_emulate_streams_are_lazy(void **)
{
    bool ran = false;
    cudaStream_t stream = new_stream(), other = new_stream();
    assert_cuda(cudaLaunchHostFunc(stream, set_flag, &ran));
    assert_false(ran);
    int queries = 0;
    while (cudaStreamQuery(stream) == cudaErrorNotReady)
        assert_true(queries++ < 10);
    assert_true(ran);
    assert_cuda(cudaGetLastError()); /* not ready is no error */
    assert_cuda(cudaStreamQuery(other));

    /* Items of a library that wait for something. */
    int polls = 0;
    emulate_enqueue(stream, [&polls] { return ++polls == 5; });
    ran = false;
    assert_cuda(cudaLaunchHostFunc(stream, set_flag, &ran));
    assert_cuda(cudaStreamSynchronize(other));
    assert_cuda(cudaStreamSynchronize(stream));
    assert_true(ran && polls == 5);
    assert_cuda(cudaStreamDestroy(stream));
    assert_error(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
    assert_cuda(cudaStreamDestroy(other));
    cudaGetLastError();
}

/* What the second stream read of what the first one wrote, with or without a wait between them. */
static bool second_reads_after_first(bool waits)
{
    enum { N = 100 };
    int *x = on_device<int>(N), *y = on_device<int>(N);
    cudaStream_t first = new_stream(), second = new_stream();
    cudaEvent_t event;
    assert_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    assert_cuda(cudaMemsetAsync(x, 0, N * sizeof *x, first));
    for (int i = 0; i < 3; i++)
        SMP_LAUNCH(add_one, 1, 128, 0, first, x, N);
    assert_cuda(cudaEventRecord(event, first));
    if (waits)
        assert_cuda(cudaStreamWaitEvent(second, event, 0));
    SMP_LAUNCH(copy_values, 1, 128, 0, second, x, y, N);
    assert_cuda(cudaStreamSynchronize(second));
    const std::vector<int> got = from_device(y, N);
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaStreamDestroy(first));
    assert_cuda(cudaStreamDestroy(second));
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFree(y));
    return got == std::vector<int>(N, 3);
}

static void test_emulate_shows_missing_wait(void **)
{
    assert_true(wrong_orders([] { return second_reads_after_first(false); }) > SEEDS / 4);
    assert_int_equal(wrong_orders([] { return second_reads_after_first(true); }), 0);
}

static void test_emulate_events(void **)
{
    cudaStream_t first = new_stream(), second = new_stream();
    cudaEvent_t event, later;
    float ms;
    bool ran = false;
    assert_cuda(cudaEventCreate(&event));
    assert_cuda(cudaEventCreate(&later));
    /* Never recorded: done, and nothing to wait for. */
    assert_cuda(cudaEventQuery(event));
    assert_cuda(cudaEventSynchronize(event));
    assert_cuda(cudaStreamWaitEvent(second, event, 0));
    assert_error(cudaEventElapsedTime(&ms, event, later), cudaErrorInvalidResourceHandle);

    /* A wait is for the last record before it, not for one that comes later. */
    bool open = false;
    assert_cuda(cudaEventRecord(event, first));
    assert_cuda(cudaStreamWaitEvent(second, event, 0));
    emulate_enqueue(first, [&open] { return open; });
    assert_cuda(cudaEventRecord(event, first));
    assert_cuda(cudaLaunchHostFunc(second, set_flag, &ran));
    assert_cuda(cudaStreamSynchronize(second));
    assert_true(ran);
    assert_error(cudaEventQuery(event), cudaErrorNotReady);
    assert_cuda(cudaEventRecord(later, second));
    assert_error(cudaEventElapsedTime(&ms, event, later), cudaErrorNotReady);

    /* A wait outlives its event and its stream. */
    cudaStream_t third = new_stream();
    ran = false;
    assert_cuda(cudaStreamWaitEvent(third, event, 0));
    assert_cuda(cudaLaunchHostFunc(third, set_flag, &ran));
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaStreamDestroy(third));
    for (int i = 0; i < 20; i++)
        emulate_progress();
    assert_false(ran);
    open = true;
    assert_cuda(cudaDeviceSynchronize());
    assert_true(ran);

    assert_cuda(cudaEventCreate(&event));
    assert_cuda(cudaEventRecord(event, first));
    assert_cuda(cudaEventSynchronize(event));
    assert_cuda(cudaEventElapsedTime(&ms, later, event));
    assert_true(ms >= 0.0f);
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaEventDestroy(later));
    assert_cuda(cudaStreamDestroy(first));
    assert_cuda(cudaStreamDestroy(second));
    cudaGetLastError();
}

/* Does the NULL stream wait for a stream with these flags, and that for it? */
static bool null_stream_waits(unsigned flags)
{
    int *x = on_device<int>(1), *y = on_device<int>(1);
    cudaStream_t stream = new_stream(flags);
    assert_cuda(cudaMemset(x, 0, sizeof *x));
    SMP_LAUNCH(add_one, 1, 1, 0, stream, x, 1);
    SMP_LAUNCH(add_one, 1, 1, 0, stream, x, 1);
    SMP_LAUNCH(copy_values, 1, 1, 0, nullptr, x, y, 1);
    SMP_LAUNCH(add_one, 1, 1, 0, stream, y, 1);
    const int got = from_device(y, 1)[0];
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFree(y));
    return got == 3;
}

static void test_emulate_null_stream(void **)
{
    assert_int_equal(wrong_orders([] { return null_stream_waits(cudaStreamDefault); }), 0);
    assert_true(wrong_orders([] { return null_stream_waits(cudaStreamNonBlocking); }) > 0);
}

static void test_emulate_copies(void **)
{
    int *x = on_device<int>(4), *host = pinned<int>(4), pageable[4] = {1, 2, 3, 4};
    cudaStream_t stream = new_stream();
    /* From pageable memory: read when enqueued; from pinned memory: when it runs. */
    assert_cuda(cudaMemcpyAsync(x, pageable, sizeof pageable, cudaMemcpyHostToDevice, stream));
    memset(pageable, 0, sizeof pageable);
    assert_int_equal(from_device(x, 4)[2], 3);
    host[2] = 5;
    assert_cuda(cudaMemcpyAsync(x, host, 4 * sizeof *host, cudaMemcpyHostToDevice, stream));
    host[2] = 6;
    assert_int_equal(from_device(x, 4)[2], 6);

    /* Rows: the middle two columns of two rows of four. */
    int wide[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_cuda(cudaMemcpy2DAsync(x, 8, wide + 1, 16, 8, 2, cudaMemcpyHostToDevice, stream));
    assert_true(from_device(x, 4) == (std::vector<int>{1, 2, 5, 6}));

    assert_error(cudaMemcpyAsync(x, host, 17, cudaMemcpyHostToDevice, stream),
                 cudaErrorInvalidValue);
    assert_error(cudaMemcpyAsync(x, host, 4, cudaMemcpyDeviceToDevice, stream),
                 cudaErrorInvalidValue);
    assert_error(cudaMemcpyAsync(pageable, x, 4, cudaMemcpyHostToDevice, stream),
                 cudaErrorInvalidValue);
    assert_error(cudaMemsetAsync(x + 1, 0, 16, stream), cudaErrorInvalidValue);
    assert_error(cudaGetLastError(), cudaErrorInvalidValue);
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFreeHost(host));
}

static void test_emulate_memory(void **)
{
    const size_t alive = emulate_live_allocations();
    unsigned char *x = on_device<unsigned char>(1000);
    assert_int_equal(reinterpret_cast<uintptr_t>(x) % 256, 0);
    for (unsigned char byte : from_device(x, 1000))
        assert_int_equal(byte, 0xff);
    assert_int_equal(emulate_live_allocations(), alive + 1);
    cudaPointerAttributes attributes;
    assert_cuda(cudaPointerGetAttributes(&attributes, x + 999));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_cuda(cudaFree(x));
    assert_error(cudaFree(x), cudaErrorInvalidValue);
    assert_int_equal(emulate_damaged_allocations(), 0);

    assert_dies(SIGABRT, "of 400 bytes was written to behind its end", [] {
        int *values = on_device<int>(100);
        SMP_LAUNCH(add_one, 1, 128, 0, nullptr, values, 101);
        cudaFree(values);
    });
    assert_dies(SIGABRT, "was written to before its start", [] {
        char *values = pinned<char>(100);
        values[-1] = 0;
        cudaFreeHost(values);
    });
    assert_dies(SIGSEGV, "the host touched device memory", [] {
        int *values = on_device<int>(100);
        values[0] = 1;
    });
    assert_dies(SIGABRT, "a copy between ranges that overlap", [] {
        char *values = on_device<char>(100);
        cudaMemcpy(values, values + 10, 50, cudaMemcpyDeviceToDevice);
    });
    cudaGetLastError();
}

static void test_emulate_out_of_memory(void **)
{
    with_environment("SMP_EMULATE_MEMORY", "1048576", [] {
        size_t free_bytes, total;
        void *x = nullptr, *y = &x;
        assert_cuda(cudaMemGetInfo(&free_bytes, &total));
        assert_int_equal(total, 1048576);
        assert_int_equal(free_bytes, 1048576);
        assert_error(cudaMalloc(&y, 1048577), cudaErrorMemoryAllocation);
        assert_null(y);
        assert_cuda(cudaMalloc(&x, 600000));
        assert_error(cudaMalloc(&y, 600000), cudaErrorMemoryAllocation);
        assert_error(cudaGetLastError(), cudaErrorMemoryAllocation);
        assert_cuda(cudaMemGetInfo(&free_bytes, &total));
        assert_true(free_bytes <= 448576);
        assert_cuda(cudaFree(x));
        assert_cuda(cudaMalloc(&x, 1048576));
        assert_cuda(cudaFree(x));
    });
}

static void test_emulate_devices(void **)
{
    int count = -1;
    with_environment("SMP_EMULATE_DEVICES", "0", [&count] {
        void *x;
        assert_error(cudaGetDeviceCount(&count), cudaErrorNoDevice);
        assert_int_equal(count, -1);
        assert_error(cudaMalloc(&x, 10), cudaErrorNoDevice);
    });
    with_environment("SMP_EMULATE_DEVICES", "3", [&count] {
        char a[32], b[32];
        int device;
        assert_cuda(cudaGetDeviceCount(&count));
        assert_int_equal(count, 3);
        assert_cuda(cudaSetDevice(2));
        assert_cuda(cudaGetDevice(&device));
        assert_int_equal(device, 2);
        assert_error(cudaSetDevice(3), cudaErrorInvalidDevice);
        assert_cuda(cudaDeviceGetPCIBusId(a, sizeof a, 0));
        assert_cuda(cudaDeviceGetPCIBusId(b, sizeof b, 1));
        assert_string_not_equal(a, b);
        assert_cuda(cudaDeviceGetByPCIBusId(&device, b));
        assert_int_equal(device, 1);
    });
    cudaDeviceProp properties;
    int capability;
    assert_cuda(cudaGetDeviceProperties(&properties, 0));
    assert_cuda(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0));
    assert_int_equal(capability, properties.major);
}

static void test_emulate_failure_is_for_ever(void **)
{
    with_environment("SMP_EMULATE_FAIL", "2", [] {
        int *x = on_device<int>(1);
        cudaStream_t stream = new_stream();
        SMP_LAUNCH(add_one, 1, 1, 0, stream, x, 1);
        assert_cuda(cudaStreamSynchronize(stream));
        SMP_LAUNCH(add_one, 1, 1, 0, stream, x, 1);
        assert_cuda(cudaGetLastError());
        assert_error(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
        for (int i = 0; i < 2; i++)
            assert_error(cudaGetLastError(), cudaErrorIllegalAddress);
        assert_error(cudaStreamQuery(stream), cudaErrorIllegalAddress);
        assert_error(cudaFree(x), cudaErrorIllegalAddress);
    });
}

/* A graph has what was enqueued, with the arguments of then, and does it at each launch, in its
 * place in the stream. */
static void test_emulate_graphs(void **)
{
    enum { N = 100 };
    int *x = on_device<int>(N), *y = on_device<int>(N), *from = x;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    size_t n, before, after, total;
    assert_cuda(cudaMemGetInfo(&before, &total));
    assert_cuda(cudaMemsetAsync(x, 0, N * sizeof *x, stream));
    assert_cuda(cudaStreamSynchronize(stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    SMP_LAUNCH(add_one, 1, 128, 0, stream, from, N);
    SMP_LAUNCH(copy_values, 1, 128, 0, stream, from, y, N);
    from = nullptr;
    assert_cuda(cudaMemsetAsync(x, 0, sizeof *x, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphGetNodes(graph, nullptr, &n));
    assert_int_equal(n, 3);
    assert_cuda(cudaGraphInstantiate(&instance, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    assert_error(cudaGraphDestroy(graph), cudaErrorInvalidValue);
    assert_cuda(cudaGraphUpload(instance, stream));
    assert_cuda(cudaMemGetInfo(&after, &total));
    assert_true(after < before);
    assert_true(from_device(x, N) == std::vector<int>(N, 0)); /* none of it was done */
    for (int launch = 1; launch <= 3; launch++) {
        assert_cuda(cudaGraphLaunch(instance, stream));
        SMP_LAUNCH(add_one, 1, 1, 0, stream, y, 1);
        std::vector<int> expected(N, launch);
        expected[0] = 2;
        assert_true(from_device(y, N) == expected);
    }
    assert_cuda(cudaGraphExecDestroy(instance));
    assert_error(cudaGraphLaunch(instance, stream), cudaErrorInvalidValue);
    assert_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(after, before);
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFree(y));
    cudaGetLastError();
}

/* What may not be asked for while a stream is captured spoils the capture. */
static void test_emulate_capture_refuses(void **)
{
    static cudaStream_t stream;
    static cudaEvent_t event;
    static int *x, *host;
    static int pageable;
    stream = new_stream();
    x = on_device<int>(1);
    host = pinned<int>(1);
    assert_cuda(cudaEventCreate(&event));
    const std::vector<std::function<cudaError_t()>> refused = {
        [] { return cudaStreamSynchronize(stream); },
        [] { return cudaStreamQuery(stream); },
        [] { return cudaDeviceSynchronize(); },
        [] { return cudaEventQuery(event); },
        [] { return cudaEventSynchronize(event); },
        [] { return cudaEventRecord(event, stream); },
        [] { return cudaStreamWaitEvent(stream, event, 0); },
        [] { return cudaMalloc(&x, 4); },
        [] { return cudaFree(x); },
        [] { return cudaMallocHost(&host, 4); },
        [] { return cudaFreeHost(host); },
        [] { return cudaMemset(x, 0, 4); },
        [] { return cudaMemcpy(host, x, 4, cudaMemcpyDeviceToHost); },
        [] { return cudaMemcpyAsync(x, &pageable, 4, cudaMemcpyHostToDevice, stream); },
        [] { return cudaMemcpyAsync(&pageable, x, 4, cudaMemcpyDeviceToHost, stream); },
    };
    cudaGraph_t graph;
    for (const auto &call : refused) {
        int *const kept[] = {x, host};
        assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        assert_cuda(cudaMemsetAsync(x, 0, 4, stream));
        assert_error(call(), cudaErrorStreamCaptureUnsupported);
        assert_error(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        x = kept[0], host = kept[1];
    }
    assert_error(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    cudaGetLastError();
    assert_cuda(cudaStreamSynchronize(stream)); /* the next calls are as ever */
    assert_cuda(cudaMemcpy(host, x, 4, cudaMemcpyDeviceToHost));
    assert_cuda(cudaEventDestroy(event));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFreeHost(host));
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_emulate_streams_are_lazy),
        cmocka_unit_test(test_emulate_shows_missing_wait),
        cmocka_unit_test(test_emulate_events),
        cmocka_unit_test(test_emulate_null_stream),
        cmocka_unit_test(test_emulate_graphs),
        cmocka_unit_test(test_emulate_capture_refuses),
        cmocka_unit_test(test_emulate_copies),
        cmocka_unit_test(test_emulate_memory),
        cmocka_unit_test(test_emulate_out_of_memory),
        cmocka_unit_test(test_emulate_devices),
        cmocka_unit_test(test_emulate_failure_is_for_ever),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
