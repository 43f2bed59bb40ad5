/* Numbers that were found before, by a 128-bit hash of what they follow from. */
#ifndef SMP_SCHEDULE_MEMORY_MEMO_H
#define SMP_SCHEDULE_MEMORY_MEMO_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

typedef struct smp_memo_key {
    uint64_t hash[2];
} smp_memo_key;

typedef struct smp_memo_item {
    bool used;
    smp_memo_key key;
    int64_t value[2];
} smp_memo_item;

/* Hash table, open addressing; capacity is a power of two. {0} is empty. */
typedef struct smp_memo {
    smp_memo_item *item; /* owned */
    size_t n, capacity;
} smp_memo;

/* {0} to begin with, then list by list, which count as work, or data without padding. O(n). */
void smp_memo_add(smp_memo_key *key, const int64_t *list, int64_t n);
void smp_memo_add_data(smp_memo_key *key, const void *data, size_t bytes);

/* false: not known, value is as it was. Expected O(1). */
bool smp_memo_find(const smp_memo *memo, smp_memo_key key, int64_t value[2]);
/* Of a key that is not known. */
smp_status smp_memo_keep(smp_memo *memo, smp_memo_key key, const int64_t value[2]);
void smp_memo_free(smp_memo *memo);

#endif
