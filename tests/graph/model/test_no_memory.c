/* Every allocation of reading a model fails once: SMP_ERR_NO_MEMORY, nothing crashes, nothing
 * leaks, the output stays untouched. The C library's allocator is replaced by a counting one,
 * libyaml's calls included; under AddressSanitizer, which replaces it itself, the test is
 * skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "tests/graph/model/model_text.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

#define EXPORTED __attribute__((visibility("default")))

/* The C library's own allocator, under the names that remain when the public ones are replaced. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void __libc_free(void *block);

static bool counting;
static long allocations; /* while counting */
static long failing;     /* the allocation that fails, from 1; 0: none */
static long live;        /* blocks made while counting and not freed */

static bool refuse(void)
{
    return counting && ++allocations == failing;
}

EXPORTED void *malloc(size_t bytes)
{
    void *block = refuse() ? NULL : __libc_malloc(bytes);
    live += counting && block;
    return block;
}

EXPORTED void *calloc(size_t count, size_t bytes)
{
    void *block = refuse() ? NULL : __libc_calloc(count, bytes);
    live += counting && block;
    return block;
}

EXPORTED void *realloc(void *old, size_t bytes)
{
    void *block = refuse() ? NULL : __libc_realloc(old, bytes);
    live += counting && block && !old;
    return block;
}

EXPORTED void free(void *block)
{
    live -= counting && block;
    __libc_free(block);
}

/* Reads the model with allocation `n` failing; returns its status. */
static smp_status read_failing(const char *text, long n, smp_graph **graph)
{
    allocations = live = 0;
    failing = n;
    counting = true;
    smp_status status = smp_graph_parse("m.yaml", text, strlen(text), graph);
    if (status == SMP_OK)
        smp_graph_destroy(*graph);
    counting = false;
    return status;
}

static void fail_each(const char *text)
{
    smp_graph *graph = NULL;
    assert_int_equal(read_failing(text, 0, &graph), SMP_OK);
    assert_int_equal(live, 0);
    long total = allocations;
    assert_true(total > 20);
    for (long n = 1; n <= total; n++) {
        graph = NULL;
        smp_status status = read_failing(text, n, &graph);
        if (status != SMP_ERR_NO_MEMORY)
            fail_msg("allocation %ld of %ld: %s", n, total, smp_status_name(status));
        assert_null(graph);
        assert_non_null(strstr(smp_last_error(), "memory"));
        if (live != 0)
            fail_msg("allocation %ld of %ld: %ld blocks leaked", n, total, live);
    }
}

static void test_no_memory_while_reading(void **state)
{
    (void)state;
    fail_each(gpt_text);
}

/* Enough of everything to make every table grow. */
static void test_no_memory_while_growing(void **state)
{
    smp_text text = {0};
    (void)state;
    smp_text_append(&text, "smp: 1\nlet: {");
    for (int i = 0; i < 40; i++)
        smp_text_append(&text, "v%d: %d, ", i, i);
    smp_text_append(&text, "}\ninputs: {x0: {dtype: float32, shape: [4]}}\nops:\n"
                           "  - {repeat: 300, as: i, ops: [{op: linear, name: 'l{i}', in: 'x{i}',"
                           " out: 'x{i+1}', features: 4, group: 'g{i}',"
                           " tie: {weight: l0.weight}}]}\n"
                           "  - {op: opaque, name: o, out: o, in: [x0");
    for (int i = 1; i < 100; i++)
        smp_text_append(&text, ", &a%d x%d", i, i);
    smp_text_append(&text, "], cost: {forward_us: 1}}\n");
    fail_each(text.data);
    smp_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_while_reading),
        cmocka_unit_test(test_no_memory_while_growing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("no_memory: the allocator cannot be replaced here");
    return 77;
}

#endif
