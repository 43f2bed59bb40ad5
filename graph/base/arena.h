/* Bump allocator for objects that are freed together, and the growable arrays used to build them.
 * Allocation failure is reported by NULL / SMP_ERR_NO_MEMORY, never by abort. */
#ifndef SMP_GRAPH_BASE_ARENA_H
#define SMP_GRAPH_BASE_ARENA_H

#include "graph/base/status.h"

typedef struct smp_arena smp_arena;

smp_arena *smp_arena_create(void);        /* NULL: out of memory */
void smp_arena_destroy(smp_arena *arena); /* accepts NULL */

/* Zeroed, 16-byte aligned; NULL (and the failure recorded) if out of memory or count * size
 * overflows. count 0 gives a valid pointer. */
void *smp_arena_alloc(smp_arena *arena, size_t count, size_t size);
/* The same with a smaller (or larger, up to 16) power of two as alignment: packs small arrays. */
void *smp_arena_alloc_aligned(smp_arena *arena, size_t count, size_t size, size_t align);
char *smp_arena_strdup(smp_arena *arena, const char *text);
char *smp_arena_printf(smp_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define SMP_ARENA_NEW(arena, type, count) ((type *)smp_arena_alloc((arena), (count), sizeof(type)))

/* Grows *data (malloc'ed, may be NULL) so that `need` elements of `size` bytes fit; amortised. */
smp_status smp_array_reserve(void *data, size_t *capacity, size_t size, size_t need);

#endif
