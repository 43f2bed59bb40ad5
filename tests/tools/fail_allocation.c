/* See fail_allocation.h. The linker sends the calls of malloc and its like here (--wrap), and the
 * calls of __real_malloc to where they were meant for. */
#include "tests/tools/fail_allocation.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graph/base/arena.h"
#include "graph/base/random.h"

enum { SLOTS = 1 << 18, MAX_PATHS = 1 << 16, FRAMES = 24, SHOWN = 8 };

static struct {
    int counting;
    long count, fails;
    void *trace[FRAMES]; /* of the one that failed */
    int n_trace;
    size_t n_live;
} now;

/* What is allocated: open addressing, linear probing. */
static struct slot {
    void *block, *caller;
} live[SLOTS];

/* Of the last run in which none failed: how many, and the first of every path. */
static uint64_t seen[SLOTS];
static long recorded, path[MAX_PATHS], n_path;

void fail_allocation(long number)
{
    memset(&now, 0, sizeof now);
    if (number == 0) {
        memset(seen, 0, sizeof seen);
        recorded = n_path = 0;
    }
    now.fails = number;
    now.counting = 1;
}

long fail_allocation_so_far(void)
{
    return now.count;
}

long fail_allocation_count(void)
{
    now.counting = 0;
    return now.count;
}

void fail_allocation_print(void)
{
    backtrace_symbols_fd(now.trace, now.n_trace, STDERR_FILENO);
}

size_t fail_allocation_leaks(void)
{
    const size_t n = now.n_live;
    void *shown[SHOWN];
    int k = 0;
    for (size_t i = 0; n > 0 && i < SLOTS && k < SHOWN; i++)
        if (live[i].block)
            shown[k++] = live[i].caller;
    if (n == 0)
        return 0;
    fprintf(stderr, "%zu allocations are not freed, asked for by\n", n);
    backtrace_symbols_fd(shown, k, STDERR_FILENO);
    memset(live, 0, sizeof live);
    now.n_live = 0;
    return n;
}

/* A way through the code: the callers of an allocation. Seen before? */
static int is_new_path(void)
{
    void *frame[FRAMES];
    uint64_t hash = 1;
    now.counting = 0; /* backtrace may allocate when it is first called */
    const int n = backtrace(frame, FRAMES);
    now.counting = 1;
    for (int i = 0; i < n; i++)
        hash = smp_random_mix(hash ^ (uint64_t)(uintptr_t)frame[i]);
    hash += hash == 0;
    size_t i = hash % SLOTS;
    while (seen[i] != 0 && seen[i] != hash)
        i = (i + 1) % SLOTS;
    const int is_new = seen[i] == 0;
    seen[i] = hash;
    return is_new;
}

long fail_allocation_next(long last, long most, unsigned seed)
{
    const char *which = getenv("SMP_STARVE");
    if (which && strcmp(which, "all") == 0)
        return last < recorded ? last + 1 : 0;
    const int all = which && strcmp(which, "paths") == 0;
    for (long i = 0; i < n_path; i++)
        if (path[i] > last &&
            (all || i == 0 ||
             smp_random_mix(((uint64_t)seed << 32) + (uint64_t)i) % (uint64_t)n_path <
                 (uint64_t)most))
            return path[i];
    return 0;
}

static size_t home(const void *block)
{
    return (size_t)smp_random_mix((uint64_t)(uintptr_t)block) % SLOTS;
}

static void add(void *block, void *caller)
{
    if (!now.counting || !block)
        return;
    if (++now.n_live > SLOTS / 2)
        abort();
    size_t i = home(block);
    while (live[i].block)
        i = (i + 1) % SLOTS;
    live[i] = (struct slot){block, caller};
}

/* Blocks from before are unknown. */
static void drop(const void *block)
{
    size_t i = home(block);
    while (live[i].block && live[i].block != block)
        i = (i + 1) % SLOTS;
    if (!block || !live[i].block)
        return;
    now.n_live--;
    live[i].block = NULL;
    for (size_t k = (i + 1) % SLOTS; live[k].block; k = (k + 1) % SLOTS) {
        const size_t wanted = home(live[k].block);
        if ((k - wanted) % SLOTS < (k - i) % SLOTS)
            continue; /* its place is behind the gap */
        live[i] = live[k];
        live[k].block = NULL;
        i = k;
    }
}

static int fails(void)
{
    if (!now.counting)
        return 0;
    now.count++;
    if (now.fails == 0) {
        recorded = now.count;
        if (n_path < MAX_PATHS && is_new_path())
            path[n_path++] = now.count;
    }
    if (now.count != now.fails)
        return 0;
    now.counting = 0; /* backtrace may allocate when it is first called */
    now.n_trace = backtrace(now.trace, FRAMES);
    now.counting = 1;
    errno = ENOMEM;
    return 1;
}

#define CALLER __builtin_return_address(0)

/* A call that allocates: its type, name, parameters and arguments. */
#define ALLOCATES(type, name, parameters, arguments)                                               \
    type *__real_##name parameters;                                                                \
    type *__wrap_##name parameters;                                                                \
    type *__wrap_##name parameters                                                                 \
    {                                                                                              \
        type *block = fails() ? NULL : __real_##name arguments;                                    \
        add(block, CALLER);                                                                        \
        return block;                                                                              \
    }

ALLOCATES(void, malloc, (size_t bytes), (bytes))
ALLOCATES(void, calloc, (size_t n, size_t bytes), (n, bytes))
ALLOCATES(void, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
ALLOCATES(char, strdup, (const char *text), (text))
ALLOCATES(char, strndup, (const char *text, size_t n), (text, n))
ALLOCATES(char, realpath, (const char *path, char *out), (path, out))
ALLOCATES(FILE, fopen, (const char *path, const char *mode), (path, mode))
ALLOCATES(DIR, opendir, (const char *path), (path))

/* A request of an arena, which seldom asks the system: it fails as if it had to. What it gives is
 * freed with the arena. */
#define ARENA_GIVES(type, name, parameters, arguments, bytes)                                      \
    type *__real_##name parameters;                                                                \
    type *__wrap_##name parameters;                                                                \
    type *__wrap_##name parameters                                                                 \
    {                                                                                              \
        if (!fails())                                                                              \
            return __real_##name arguments;                                                        \
        smp_fail_memory(bytes);                                                                    \
        return NULL;                                                                               \
    }

ARENA_GIVES(void, smp_arena_alloc, (smp_arena * arena, size_t count, size_t size),
            (arena, count, size), count *size)
ARENA_GIVES(void, smp_arena_alloc_aligned,
            (smp_arena * arena, size_t count, size_t size, size_t align),
            (arena, count, size, align), count *size)
ARENA_GIVES(char, smp_arena_strdup, (smp_arena * arena, const char *text), (arena, text),
            strlen(text))

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    if (fails())
        return NULL;
    drop(old);
    void *block = __real_realloc(old, bytes);
    add(block, CALLER);
    return block;
}

void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block)
{
    drop(block);
    __real_free(block);
}

int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file);
int __wrap_fclose(FILE *file)
{
    drop(file);
    return __real_fclose(file);
}

int __real_closedir(DIR *folder);
int __wrap_closedir(DIR *folder);
int __wrap_closedir(DIR *folder)
{
    drop(folder);
    return __real_closedir(folder);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (fails())
        return MAP_FAILED;
    void *block = __real_mmap(at, bytes, protection, flags, file, offset);
    add(block == MAP_FAILED ? NULL : block, CALLER);
    return block;
}

int __real_munmap(void *block, size_t bytes);
int __wrap_munmap(void *block, size_t bytes);
int __wrap_munmap(void *block, size_t bytes)
{
    drop(block);
    return __real_munmap(block, bytes);
}
