/* See heap.h. */
#include "graph/base/heap.h"

#include <stdbool.h>

smp_status smp_heap_init(smp_heap *heap, smp_arena *arena, int capacity)
{
    *heap = (smp_heap){.item = SMP_ARENA_NEW(arena, int, (size_t)capacity),
                       .place = SMP_ARENA_NEW(arena, int, (size_t)capacity),
                       .key = SMP_ARENA_NEW(arena, double, (size_t)capacity)};
    if (!heap->item || !heap->place || !heap->key)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < capacity; i++)
        heap->place[i] = -1;
    return SMP_OK;
}

static bool earlier(const smp_heap *heap, int a, int b)
{
    if (heap->key[a] != heap->key[b])
        return heap->key[a] < heap->key[b];
    return a < b;
}

static void put_item(smp_heap *heap, int place, int item)
{
    heap->item[place] = item;
    heap->place[item] = place;
}

/* Finds the place of an item that belongs at `place` or above. */
static void rise(smp_heap *heap, int place, int item)
{
    while (place > 0 && earlier(heap, item, heap->item[(place - 1) / 2])) {
        put_item(heap, place, heap->item[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put_item(heap, place, item);
}

/* The same for `place` or below. */
static void sink(smp_heap *heap, int place, int item)
{
    for (;;) {
        int child = 2 * place + 1;
        if (child >= heap->n)
            break;
        if (child + 1 < heap->n && earlier(heap, heap->item[child + 1], heap->item[child]))
            child++;
        if (!earlier(heap, heap->item[child], item))
            break;
        put_item(heap, place, heap->item[child]);
        place = child;
    }
    put_item(heap, place, item);
}

void smp_heap_set(smp_heap *heap, int item, double key)
{
    int place = heap->place[item];
    if (place < 0)
        place = heap->n++;
    heap->key[item] = key;
    heap->item[place] = item;
    if (place > 0 && earlier(heap, item, heap->item[(place - 1) / 2]))
        rise(heap, place, item);
    else
        sink(heap, place, item);
}

void smp_heap_remove(smp_heap *heap, int item)
{
    int place = heap->place[item];
    if (place < 0)
        return;
    heap->place[item] = -1;
    int last = heap->item[--heap->n];
    if (last == item)
        return;
    if (place > 0 && earlier(heap, last, heap->item[(place - 1) / 2]))
        rise(heap, place, last);
    else
        sink(heap, place, last);
}

int smp_heap_pop(smp_heap *heap)
{
    int item = heap->item[0];
    smp_heap_remove(heap, item);
    return item;
}
