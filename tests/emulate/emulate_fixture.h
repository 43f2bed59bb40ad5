/* What the tests of the emulator itself share: seeds, checks of calls, and what must abort. */
#ifndef SMP_TESTS_EMULATE_EMULATE_FIXTURE_H
#define SMP_TESTS_EMULATE_EMULATE_FIXTURE_H

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
}
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "emulate.h"

enum { SEEDS = 40 };

inline void assert_cuda(cudaError_t code)
{
    assert_string_equal(cudaGetErrorName(code), "cudaSuccess");
}

inline void assert_error(cudaError_t code, cudaError_t expected)
{
    assert_string_equal(cudaGetErrorName(code), cudaGetErrorName(expected));
}

template <typename T> T *on_device(size_t n)
{
    T *memory = nullptr;
    assert_cuda(cudaMalloc(&memory, n * sizeof(T)));
    return memory;
}

template <typename T> T *pinned(size_t n)
{
    T *memory = nullptr;
    assert_cuda(cudaMallocHost(&memory, n * sizeof(T)));
    return memory;
}

/* Everything before it is done afterwards. */
template <typename T> std::vector<T> from_device(const T *memory, size_t n)
{
    std::vector<T> values(n);
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemcpy(values.data(), memory, n * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking)
{
    cudaStream_t stream;
    assert_cuda(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

/* In how many of SEEDS orders `right` says false. */
inline int wrong_orders(const std::function<bool()> &right)
{
    int wrong = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        emulate_set_order(std::to_string(seed).c_str());
        wrong += !right();
    }
    emulate_set_order("1");
    return wrong;
}

/* `action` in a process of its own: it must end by the signal and say `text` on stderr. */
inline void assert_dies(int signal_number, const char *text, const std::function<void()> &action)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int reset : {SIGABRT, SIGSEGV}) /* the test framework's */
            signal(reset, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        action();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char buffer[256];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        said.append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (said.find(text) == std::string::npos)
        fail_msg("expected \"%s\", got \"%s\"", text, said.c_str());
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), signal_number);
}

/* With these settings of the environment; nothing is left of them afterwards. */
inline void with_environment(const char *name, const char *value, const std::function<void()> &body)
{
    setenv(name, value, 1);
    emulate_restart();
    body();
    unsetenv(name);
    emulate_restart();
}

#endif
