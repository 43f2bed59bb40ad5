/* Open addressing with linear probing, at most 60 % full. Slots keep 32 bits of the hash: growing
 * touches no name, and a probe compares texts only where the hashes agree. */
#include "graph/model/name_index.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "graph/base/text.h"

enum { FIRST_SLOTS = 64, HUGE_PAGE = 2 << 20 };

void smp__name_index_free(smp__name_index *index)
{
    free(index->slot);
    index->slot = NULL;
    index->mask = index->count = 0;
}

static const char *name_of(const smp__name_index *index, const void *items, int32_t item)
{
    const char *name;
    memcpy(&name, (const char *)items + (size_t)item * index->stride + index->offset, sizeof name);
    return name;
}

static uint32_t hash_of(const char *name)
{
    return (uint32_t)smp_hash(0, name, strlen(name));
}

/* The slot of `name`, or the free one where it belongs. */
static smp__name_slot *probe(const smp__name_index *index, const void *items, const char *name,
                             uint32_t hash)
{
    size_t i = hash & index->mask;
    for (; index->slot[i].item != 0; i = (i + 1) & index->mask) {
        if (index->slot[i].hash == hash &&
            strcmp(name_of(index, items, index->slot[i].item - 1), name) == 0)
            break;
    }
    return &index->slot[i];
}

int32_t smp__name_index_find(const smp__name_index *index, const void *items, const char *name)
{
    return index->slot ? probe(index, items, name, hash_of(name))->item - 1 : -1;
}

/* A table of millions is read all over: with pages of 2 MiB, where the system gives them on
 * request, a look-up misses one cache line instead of that and several levels of page tables. */
static void prefer_huge_pages(void *table, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = HUGE_PAGE, begin = ((uintptr_t)table + page - 1) & ~(page - 1),
                    end = ((uintptr_t)table + bytes) & ~(page - 1);
    if (bytes >= 2 * HUGE_PAGE && end > begin)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* may be declined */
#else
    (void)table;
    (void)bytes;
#endif
}

static smp_status grow(smp__name_index *index)
{
    size_t slots = index->slot ? (index->mask + 1) * 2 : FIRST_SLOTS;
    smp__name_slot *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return smp_fail_memory(slots * sizeof *slot);
    prefer_huge_pages(slot, slots * sizeof *slot);
    for (size_t i = 0; index->slot && i <= index->mask; i++) {
        if (index->slot[i].item == 0)
            continue;
        size_t j = index->slot[i].hash & (slots - 1);
        while (slot[j].item != 0)
            j = (j + 1) & (slots - 1);
        slot[j] = index->slot[i];
    }
    free(index->slot);
    index->slot = slot;
    index->mask = slots - 1;
    return SMP_OK;
}

smp_status smp__name_index_put(smp__name_index *index, const void *items, int32_t item)
{
    if (!index->slot || (index->count + 1) * 5 > (index->mask + 1) * 3)
        SMP_TRY(grow(index));
    const char *name = name_of(index, items, item);
    uint32_t hash = hash_of(name);
    smp__name_slot *slot = probe(index, items, name, hash);
    index->count += slot->item == 0;
    *slot = (smp__name_slot){item + 1, hash};
    return SMP_OK;
}
