/* graph/base/arena.h: alignment, zeroes, separation, overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/arena.h"
#include "graph/base/random.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

static void test_arena_blocks_are_zeroed_aligned_and_apart(void **state)
{
    enum { BLOCKS = 400 };
    unsigned char *block[BLOCKS];
    size_t bytes[BLOCKS];
    uint64_t r = 7;
    (void)state;
    smp_arena *arena = smp_arena_create();
    for (int i = 0; i < BLOCKS; i++) {
        r = smp_random_mix(r);
        size_t align = (size_t)1 << (r >> 32) % 5;
        bytes[i] = r % 16 == 0 ? r % 200000 : r % 100;
        block[i] = smp_arena_alloc_aligned(arena, bytes[i], 1, align);
        assert_non_null(block[i]);
        assert_int_equal((uintptr_t)block[i] % align, 0);
        for (size_t k = 0; k < bytes[i]; k++)
            assert_int_equal(block[i][k], 0);
        memset(block[i], i % 255 + 1, bytes[i]);
    }
    for (int i = 0; i < BLOCKS; i++) {
        for (size_t k = 0; k < bytes[i]; k++)
            assert_int_equal(block[i][k], i % 255 + 1);
    }
    assert_int_equal((uintptr_t)SMP_ARENA_NEW(arena, char, 3) % 16, 0);
    smp_arena_destroy(arena);
    smp_arena_destroy(NULL);
}

static void test_arena_refuses_what_cannot_be(void **state)
{
    (void)state;
    smp_arena *arena = smp_arena_create();
    assert_non_null(smp_arena_alloc(arena, 0, 8));
    assert_non_null(smp_arena_alloc(arena, 8, 0));
    assert_null(smp_arena_alloc(arena, SIZE_MAX / 4, 8));
    assert_non_null(strstr(smp_last_error(), "memory"));
    assert_non_null(smp_arena_alloc(arena, 1, 1)); /* still usable */
    smp_arena_destroy(arena);
}

/* AddressSanitizer sees each block as one of its own. */
static void test_arena_blocks_have_ends(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    smp_arena *arena = smp_arena_create();
    for (size_t bytes = 1; bytes < 3000; bytes += 1 + bytes / 2) {
        char *block = smp_arena_alloc(arena, bytes, 1);
        char *text = smp_arena_printf(arena, "%d", (int)bytes);
        assert_false(__asan_region_is_poisoned(block, bytes));
        assert_true(__asan_address_is_poisoned(block + bytes));
        assert_true(__asan_address_is_poisoned(text + strlen(text) + 1));
    }
    smp_arena_destroy(arena);
#else
    skip();
#endif
}

static void test_arena_texts(void **state)
{
    (void)state;
    smp_arena *arena = smp_arena_create();
    char *a = smp_arena_strdup(arena, "one");
    char *b = smp_arena_printf(arena, "%s-%d", a, 22);
    char *empty = smp_arena_strdup(arena, "");
    assert_string_equal(a, "one");
    assert_string_equal(b, "one-22");
    assert_string_equal(empty, "");
    smp_arena_destroy(arena);
}

static void test_array_reserve_grows_and_keeps(void **state)
{
    int *data = NULL;
    size_t capacity = 0;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(smp_array_reserve(&data, &capacity, sizeof *data, (size_t)i + 1), SMP_OK);
        assert_true(capacity > (size_t)i);
        data[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(data[i], i);
    size_t before = capacity;
    assert_int_equal(smp_array_reserve(&data, &capacity, sizeof *data, SIZE_MAX / 4),
                     SMP_ERR_NO_MEMORY);
    assert_int_equal(capacity, before);
    assert_int_equal(data[999], 999);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_blocks_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_arena_refuses_what_cannot_be),
        cmocka_unit_test(test_arena_blocks_have_ends),
        cmocka_unit_test(test_arena_texts),
        cmocka_unit_test(test_array_reserve_grows_and_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
