/* Memory that runs out, in tests linked with --wrap (tests/CMakeLists.txt): every allocation that
 * the project's code and libyaml make is counted, one of them fails, and what is not freed is
 * found. What an arena is asked for counts, and files and folders that are opened do. */
#ifndef SMP_TESTS_TOOLS_FAIL_ALLOCATION_H
#define SMP_TESTS_TOOLS_FAIL_ALLOCATION_H

#include <stddef.h>

/* Counts from here; allocation `number`, from 1, will fail, once. -1: none will. 0: none will, and
 * the ways through the code are noted for fail_allocation_next. */
void fail_allocation(long number);
long fail_allocation_so_far(void);
/* Stops counting; how many there were. */
long fail_allocation_count(void);
/* How many of them are not freed: said on standard error with their callers. Forgets them. */
size_t fail_allocation_leaks(void);
/* Who asked for the one that failed, on standard error. */
void fail_allocation_print(void);

/* Which allocations to let fail, after a run in which none did: the first of every way through the
 * code that asked for memory in it; of these the first and about `most` others, drawn by a seed.
 * With SMP_STARVE=paths in the environment all of them, with SMP_STARVE=all every allocation.
 * Returns the one after `last`; 0: none is left. */
long fail_allocation_next(long last, long most, unsigned seed);

#endif
