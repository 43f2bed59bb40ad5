/* A binary heap of items 0..capacity-1 by key, each once, with change and removal. The event queue
 * of the simulator, the ready list of topological orders. */
#ifndef SMP_GRAPH_BASE_HEAP_H
#define SMP_GRAPH_BASE_HEAP_H

#include "graph/base/arena.h"

/* The least key comes first; of equal keys that of the lower item. */
typedef struct smp_heap {
    int32_t *item;  /* [n] heap order */
    int32_t *place; /* [capacity] index in item, or -1 */
    double *key;    /* [capacity] by item */
    int32_t n;
} smp_heap;

/* None is in the heap. */
smp_status smp_heap_init(smp_heap *heap, smp_arena *arena, int capacity);

/* Puts an item in, or moves it. O(log n), as are the next two. */
void smp_heap_set(smp_heap *heap, int item, double key);
void smp_heap_remove(smp_heap *heap, int item); /* fine if it is not in */
/* Takes the first out; the heap must not be empty. */
int smp_heap_pop(smp_heap *heap);

#endif
