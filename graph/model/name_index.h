/* Finds the items of an array by their names: a hash table of item numbers beside the array, so
 * that ten million names cost 8 to 16 bytes each. Items are structs with a `const char *`
 * member. */
#ifndef SMP_GRAPH_MODEL_NAME_INDEX_H
#define SMP_GRAPH_MODEL_NAME_INDEX_H

#include "graph/base/status.h"

typedef struct smp__name_slot {
    int32_t item; /* + 1; 0: free */
    uint32_t hash;
} smp__name_slot;

typedef struct smp__name_index {
    smp__name_slot *slot;
    size_t mask; /* slots - 1 */
    size_t count;
    size_t stride; /* of the array */
    size_t offset; /* of the name in an item */
} smp__name_index;

/* An array of `type`, indexed by its member `member`. */
#define SMP__NAME_INDEX(type, member)                                                              \
    ((smp__name_index){.stride = sizeof(type), .offset = offsetof(type, member)})

void smp__name_index_free(smp__name_index *index);
/* -1: none. `items` is the array, which may have moved since the last call. */
int32_t smp__name_index_find(const smp__name_index *index, const void *items, const char *name);
/* Enters item `item`; an item of the same name is replaced. */
smp_status smp__name_index_put(smp__name_index *index, const void *items, int32_t item);

#endif
