/* How much of a test runs: all of it, or less under sanitizers, where it takes several times as
 * long. They look at what a case does to memory, which most cases show alike; what is chosen in the
 * one case of a hundred that is hard is for the optimised build, which runs the same cases and
 * more. */
#ifndef SMP_TESTS_CASE_COUNT_H
#define SMP_TESTS_CASE_COUNT_H

#include <stdlib.h>

#if defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Of a test of seeded cases, how many: SMP_TEST_CASES where that is set, else the usual number or a
 * quarter of it. What a test expects of all its cases together is a share of them. */
static inline int case_count(int usual)
{
    const char *text = getenv("SMP_TEST_CASES");
    int wanted = text ? atoi(text) : 0;
    if (wanted > 0)
        return wanted;
    return SANITIZED ? (usual + 3) / 4 : usual;
}

#endif
