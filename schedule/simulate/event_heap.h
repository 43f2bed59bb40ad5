/* A binary heap of entities by time, with change and removal: the event queue of the simulator. */
#ifndef SMP_SCHEDULE_SIMULATE_EVENT_HEAP_H
#define SMP_SCHEDULE_SIMULATE_EVENT_HEAP_H

#include "graph/base/arena.h"

/* Ties go to the lower entity. */
typedef struct smp__event_heap {
    int *entity;  /* [n] heap order */
    int *place;   /* [capacity] index in entity, or -1 */
    double *time; /* [capacity] by entity */
    int n;
} smp__event_heap;

/* Entities 0 .. capacity-1, none in the heap. */
smp_status smp__event_heap_init(smp__event_heap *heap, smp_arena *arena, int capacity);

/* Puts an entity in, or moves it. O(log n), as are the next two. */
void smp__event_heap_set(smp__event_heap *heap, int entity, double time);
void smp__event_heap_remove(smp__event_heap *heap, int entity); /* fine if it is not in */
/* Takes the earliest out; the heap must not be empty. */
int smp__event_heap_pop(smp__event_heap *heap);

#endif
