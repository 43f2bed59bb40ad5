/* Bump allocator: a list of zeroed chunks that grow geometrically, so that n small allocations cost
 * O(log n) calls of the system's allocator; a large request gets a chunk of its own. Chunks come
 * from calloc: the untouched end of a large one costs no memory.
 *
 * Under AddressSanitizer a poisoned gap follows each block and what is not handed out is poisoned:
 * to read or write past the end of a block is found as it is in blocks of malloc. */
#include "graph/base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 16 };
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)0)
enum { GAP = 0 };
#endif

enum { ALIGNMENT = 16, FIRST_CHUNK = 4096, MAX_CHUNK = 4 << 20 };

typedef struct chunk {
    struct chunk *next;
    size_t size; /* of data */
    size_t used;
    alignas(ALIGNMENT) unsigned char data[];
} chunk;

struct smp_arena {
    chunk *head; /* the one that is being filled */
    size_t next_size;
};

smp_arena *smp_arena_create(void)
{
    smp_arena *arena = calloc(1, sizeof *arena);
    if (!arena) {
        smp_fail_memory(sizeof *arena);
        return NULL;
    }
    arena->next_size = FIRST_CHUNK;
    return arena;
}

void smp_arena_destroy(smp_arena *arena)
{
    if (!arena)
        return;
    for (chunk *c = arena->head; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(arena);
}

static chunk *new_chunk(size_t size)
{
    chunk *c = size > SIZE_MAX / 2 ? NULL : calloc(1, sizeof *c + size);
    if (!c) {
        smp_fail_memory(size);
        return NULL;
    }
    c->size = size;
    ASAN_POISON_MEMORY_REGION(c->data, size);
    return c;
}

static void *take_from_chunk(chunk *c, size_t start, size_t bytes)
{
    c->used = start + bytes + GAP;
    ASAN_UNPOISON_MEMORY_REGION(c->data + start, bytes);
    return c->data + start;
}

static void *allocate(smp_arena *arena, size_t bytes, size_t align)
{
    chunk *head = arena->head;
    if (head) {
        size_t start = (head->used + align - 1) & ~(align - 1);
        if (start <= head->size && bytes <= head->size - start)
            return take_from_chunk(head, start, bytes);
    }
    if (bytes > arena->next_size / 4) {
        /* Its own chunk, after the head, whose free end stays in use. */
        chunk *own = new_chunk(bytes);
        if (!own)
            return NULL;
        own->next = head ? head->next : NULL;
        if (head)
            head->next = own;
        else
            arena->head = own;
        return take_from_chunk(own, 0, bytes);
    }
    chunk *fresh = new_chunk(arena->next_size);
    if (!fresh)
        return NULL;
    fresh->next = head;
    arena->head = fresh;
    if (arena->next_size < MAX_CHUNK)
        arena->next_size *= 2;
    return take_from_chunk(fresh, 0, bytes);
}

void *smp_arena_alloc_aligned(smp_arena *arena, size_t count, size_t size, size_t align)
{
    if (size > 0 && count > SIZE_MAX / 2 / size) {
        smp_fail_memory(SIZE_MAX);
        return NULL;
    }
    return allocate(arena, count * size, align);
}

void *smp_arena_alloc(smp_arena *arena, size_t count, size_t size)
{
    return smp_arena_alloc_aligned(arena, count, size, ALIGNMENT);
}

char *smp_arena_strdup(smp_arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = allocate(arena, bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

char *smp_arena_printf(smp_arena *arena, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_list again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    if (length >= 0)
        text = allocate(arena, (size_t)length + 1, 1);
    else
        smp_fail(SMP_ERR_FAILED, "cannot format text");
    if (text)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

smp_status smp_array_reserve(void *data, size_t *capacity, size_t size, size_t need)
{
    if (need <= *capacity)
        return SMP_OK;
    size_t wanted = *capacity + *capacity / 2;
    if (wanted < need)
        wanted = need;
    if (wanted < 16)
        wanted = 16;
    if (size > 0 && wanted > SIZE_MAX / 2 / size)
        return smp_fail_memory(SIZE_MAX);
    /* `data` is a pointer to some pointer type: read and write it by value, not through an
     * alias. */
    void *old;
    memcpy(&old, data, sizeof old);
    void *grown = realloc(old, wanted * size);
    if (!grown)
        return smp_fail_memory(wanted * size);
    memcpy(data, &grown, sizeof grown);
    *capacity = wanted;
    return SMP_OK;
}
