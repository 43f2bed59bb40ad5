/* String-to-integer map: open addressing, linear probing, at most 70 % full. O(length) per call. */
#include "graph/base/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const char *key; /* NULL: free */
    uint64_t hash;
    int64_t value;
} entry;

struct smp_map {
    entry *entries;
    size_t mask; /* entries - 1, a power of two less one */
    size_t count;
};

enum { FIRST_ENTRIES = 16 };

smp_map *smp_map_create(void)
{
    smp_map *map = calloc(1, sizeof *map);
    if (map)
        map->entries = calloc(FIRST_ENTRIES, sizeof *map->entries);
    if (!map || !map->entries) {
        smp_fail_memory(FIRST_ENTRIES * sizeof *map->entries);
        free(map);
        return NULL;
    }
    map->mask = FIRST_ENTRIES - 1;
    return map;
}

void smp_map_destroy(smp_map *map)
{
    if (!map)
        return;
    free(map->entries);
    free(map);
}

/* The entry of `key`, or the free one where it belongs. */
static entry *find(entry *entries, size_t mask, const char *key, uint64_t hash)
{
    size_t i = (size_t)hash & mask;
    while (entries[i].key && (entries[i].hash != hash || strcmp(entries[i].key, key) != 0))
        i = (i + 1) & mask;
    return &entries[i];
}

static smp_status grow(smp_map *map)
{
    size_t size = (map->mask + 1) * 2;
    entry *entries = calloc(size, sizeof *entries);
    if (!entries)
        return smp_fail_memory(size * sizeof *entries);
    for (size_t i = 0; i <= map->mask; i++) {
        const entry *old = &map->entries[i];
        if (old->key)
            *find(entries, size - 1, old->key, old->hash) = *old;
    }
    free(map->entries);
    map->entries = entries;
    map->mask = size - 1;
    return SMP_OK;
}

smp_status smp_map_set(smp_map *map, const char *key, int64_t value)
{
    uint64_t hash = smp_hash(0, key, strlen(key));
    entry *e = find(map->entries, map->mask, key, hash);
    if (e->key) {
        e->value = value;
        return SMP_OK;
    }
    if ((map->count + 1) * 10 > (map->mask + 1) * 7) {
        SMP_TRY(grow(map));
        e = find(map->entries, map->mask, key, hash);
    }
    *e = (entry){key, hash, value};
    map->count++;
    return SMP_OK;
}

bool smp_map_get(const smp_map *map, const char *key, int64_t *value)
{
    const entry *e = find(map->entries, map->mask, key, smp_hash(0, key, strlen(key)));
    if (e->key)
        *value = e->value;
    return e->key != NULL;
}
