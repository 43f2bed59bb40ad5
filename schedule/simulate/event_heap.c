/* See event_heap.h. */
#include "schedule/simulate/event_heap.h"

#include <stdbool.h>

smp_status smp__event_heap_init(smp__event_heap *heap, smp_arena *arena, int capacity)
{
    *heap = (smp__event_heap){.entity = SMP_ARENA_NEW(arena, int, (size_t)capacity),
                              .place = SMP_ARENA_NEW(arena, int, (size_t)capacity),
                              .time = SMP_ARENA_NEW(arena, double, (size_t)capacity)};
    if (!heap->entity || !heap->place || !heap->time)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < capacity; i++)
        heap->place[i] = -1;
    return SMP_OK;
}

static bool earlier(const smp__event_heap *heap, int a, int b)
{
    if (heap->time[a] != heap->time[b])
        return heap->time[a] < heap->time[b];
    return a < b;
}

static void put(smp__event_heap *heap, int place, int entity)
{
    heap->entity[place] = entity;
    heap->place[entity] = place;
}

/* Finds the place of an entity that belongs at `place` or above. */
static void rise(smp__event_heap *heap, int place, int entity)
{
    while (place > 0 && earlier(heap, entity, heap->entity[(place - 1) / 2])) {
        put(heap, place, heap->entity[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(heap, place, entity);
}

/* The same for `place` or below. */
static void sink(smp__event_heap *heap, int place, int entity)
{
    for (;;) {
        int child = 2 * place + 1;
        if (child >= heap->n)
            break;
        if (child + 1 < heap->n && earlier(heap, heap->entity[child + 1], heap->entity[child]))
            child++;
        if (!earlier(heap, heap->entity[child], entity))
            break;
        put(heap, place, heap->entity[child]);
        place = child;
    }
    put(heap, place, entity);
}

void smp__event_heap_set(smp__event_heap *heap, int entity, double time)
{
    int place = heap->place[entity];
    if (place < 0)
        place = heap->n++;
    heap->time[entity] = time;
    heap->entity[place] = entity;
    if (place > 0 && earlier(heap, entity, heap->entity[(place - 1) / 2]))
        rise(heap, place, entity);
    else
        sink(heap, place, entity);
}

void smp__event_heap_remove(smp__event_heap *heap, int entity)
{
    int place = heap->place[entity];
    if (place < 0)
        return;
    heap->place[entity] = -1;
    int last = heap->entity[--heap->n];
    if (last == entity)
        return;
    if (place > 0 && earlier(heap, last, heap->entity[(place - 1) / 2]))
        rise(heap, place, last);
    else
        sink(heap, place, last);
}

int smp__event_heap_pop(smp__event_heap *heap)
{
    int entity = heap->entity[0];
    smp__event_heap_remove(heap, entity);
    return entity;
}
