/* How much of a test runs. The ordinary run does the least that catches what breaks, the long one
 * (SMP_TEST_LONG=1, tests/run.sh --long) all there is. Under sanitizers, where it takes several
 * times as long, a test looks at what a case does to memory, which most cases show alike. */
#ifndef SMP_TESTS_CASE_COUNT_H
#define SMP_TESTS_CASE_COUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#if defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static inline bool is_long(void)
{
    return getenv("SMP_TEST_LONG") && !SANITIZED;
}

/* Of a test of seeded cases, how many: SMP_TEST_CASES where that is set, else `few`, in the long
 * run `many`, a quarter of `few` under sanitizers. What a test expects of all its cases together is
 * a share of them. */
static inline int few_or_many(int few, int many)
{
    const char *text = getenv("SMP_TEST_CASES");
    int wanted = text ? atoi(text) : 0;
    if (wanted > 0)
        return wanted;
    return is_long() ? many : SANITIZED ? (few + 3) / 4 : few;
}

/* ... of cases that take next to nothing. */
static inline int case_count(int usual)
{
    return few_or_many(usual, usual);
}

/* Of kernels on the emulator, where they take a thousand times as long as on a GPU. */
static inline bool is_brief_emulation(void)
{
#ifdef SMP_EMULATED
    return !is_long();
#else
    return false;
#endif
}

/* Is it way `way`'s turn, of n ways to run case `i`? On the emulator a case is run one way. */
static inline bool is_turn(size_t i, size_t way, size_t n)
{
    return !is_brief_emulation() || i % n == way % n;
}

#endif
