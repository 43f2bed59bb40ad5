/* A table of what was found before; see the header. */
#include "schedule/memory/memo.h"

#include <stdlib.h>

#include "graph/base/clock.h"
#include "graph/base/text.h"

void smp_memo_add(smp_memo_key *key, const int64_t *list, int64_t n)
{
    for (int k = 0; k < 2; k++)
        key->hash[k] = smp_hash(key->hash[k] + (uint64_t)k + 1, list, (size_t)n * sizeof *list);
    smp_work_count(SMP_WORK_OP, (double)n);
}

/* The slot of a key, or the free one for it. */
static smp_memo_item *slot_of(const smp_memo *memo, smp_memo_key key)
{
    size_t at = key.hash[0] & (memo->capacity - 1);
    while (memo->item[at].used &&
           (memo->item[at].key.hash[0] != key.hash[0] || memo->item[at].key.hash[1] != key.hash[1]))
        at = (at + 1) & (memo->capacity - 1);
    return &memo->item[at];
}

bool smp_memo_find(const smp_memo *memo, smp_memo_key key, int64_t value[2])
{
    const smp_memo_item *item = memo->capacity > 0 ? slot_of(memo, key) : NULL;
    if (!item || !item->used)
        return false;
    value[0] = item->value[0];
    value[1] = item->value[1];
    return true;
}

/* Keeps the table at most half full. */
static smp_status grow(smp_memo *memo)
{
    if (2 * (memo->n + 1) <= memo->capacity)
        return SMP_OK;
    smp_memo larger = {.capacity = memo->capacity > 0 ? 2 * memo->capacity : 256, .n = memo->n};
    larger.item = calloc(larger.capacity, sizeof *larger.item);
    if (!larger.item)
        return smp_fail_memory(larger.capacity * sizeof *larger.item);
    for (size_t i = 0; i < memo->capacity; i++)
        if (memo->item[i].used)
            *slot_of(&larger, memo->item[i].key) = memo->item[i];
    free(memo->item);
    *memo = larger;
    return SMP_OK;
}

smp_status smp_memo_keep(smp_memo *memo, smp_memo_key key, const int64_t value[2])
{
    SMP_TRY(grow(memo));
    *slot_of(memo, key) = (smp_memo_item){.used = true, .key = key, .value = {value[0], value[1]}};
    memo->n++;
    return SMP_OK;
}

void smp_memo_free(smp_memo *memo)
{
    free(memo->item);
    *memo = (smp_memo){0};
}
