/* A table of what was found before; see the header. */
#include "schedule/memory/memo.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/text.h"

/* Two independent products for eight bytes: a byte at a time, as smp_hash does it, long lists took
 * as long as what they stand for. */
void smp_memo_add_data(smp_memo_key *key, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t a = key->hash[0] + 1, b = key->hash[1] + 2;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t item = 0;
        if (bytes - at >= sizeof item)
            memcpy(&item, from + at, sizeof item);
        else
            memcpy(&item, from + at, bytes - at);
        a = (a ^ item) * 0x9e3779b97f4a7c15u;
        a ^= a >> 32;
        b = ((b << 29 | b >> 35) + item) * 0xc2b2ae3d27d4eb4fu;
        b ^= b >> 31;
    }
    const uint64_t mixed[2] = {a, b};
    for (uint64_t k = 0; k < 2; k++)
        key->hash[k] = smp_hash(k + bytes, mixed, sizeof mixed);
}

void smp_memo_add(smp_memo_key *key, const int64_t *list, int64_t n)
{
    smp_memo_add_data(key, list, (size_t)n * sizeof *list);
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
