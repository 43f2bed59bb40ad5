/* As many streams as a job may have wait at the same time, as those of messages do for other ranks,
 * and are released the last first: none may be held up by another that still waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "exec/cuda/cuda_event.h"
#include "exec/cuda/cuda_queues.h"

enum { PATIENCE_S = 10 };

cudaError_t spin_then_mark(cudaStream_t stream, const volatile int *flag, volatile int *mark);

static cudaStream_t stream[SMP__MOST_CUDA_QUEUES];
static volatile int *flag, *mark; /* [SMP__MOST_CUDA_QUEUES] of pinned memory */

static void ok(cudaError_t code)
{
    if (code != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(code));
}

/* One stream computes, with the least priority; the others are urgent. */
static void open_streams(int n)
{
    int least, greatest;
    void *memory;
    ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    ok(cudaStreamCreateWithPriority(&stream[0], cudaStreamNonBlocking, least));
    for (int i = 1; i < n; i++)
        if (smp__make_urgent_stream(&stream[i]) != SMP_OK)
            fail_msg("%s", smp_last_error());
    ok(cudaHostAlloc(&memory, 2 * SMP__MOST_CUDA_QUEUES * sizeof(int), cudaHostAllocMapped));
    flag = memory;
    mark = flag + SMP__MOST_CUDA_QUEUES;
    for (int i = 0; i < SMP__MOST_CUDA_QUEUES; i++)
        flag[i] = mark[i] = 0;
}

static void close_streams(int n)
{
    for (int i = 0; i < n; i++) {
        ok(cudaStreamSynchronize(stream[i]));
        ok(cudaStreamDestroy(stream[i]));
    }
    ok(cudaFreeHost((void *)flag));
}

/* Does a stream that was released get done while others wait? */
static bool ends(int i)
{
    const time_t end = time(NULL) + PATIENCE_S;
    while (mark[i] == 0 && time(NULL) <= end) {
        const cudaError_t code = cudaStreamQuery(stream[i]);
        if (code != cudaErrorNotReady)
            ok(code);
    }
    return mark[i] != 0;
}

static void test_cuda_queues_released_backwards(void **state)
{
    (void)state;
    const int n = smp__cuda_queues();
    int held = -1, early = -1;
    open_streams(n);
    for (int i = 0; i < n; i++)
        ok(spin_then_mark(stream[i], &flag[i], &mark[i]));
    for (int i = n - 1; i >= 0 && held < 0; i--) {
        if (mark[i] != 0)
            early = i;
        flag[i] = 1;
        if (!ends(i))
            held = i;
    }
    for (int i = 0; i < n; i++) /* also after a failure: nothing spins for ever */
        flag[i] = 1;
    close_streams(n);
    if (held >= 0)
        fail_msg("%d streams: number %d is held up by one that waits", n, held);
    if (early >= 0)
        fail_msg("%d streams: number %d did not wait", n, early);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuda_queues_released_backwards)};
    int devices = 0;
    smp__ask_for_cuda_queues();
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
