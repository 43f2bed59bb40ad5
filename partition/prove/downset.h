/* A pool of downsets: sets of units that are closed under predecessors, each stored once, with what
 * it encloses and what crosses its border. The downset with one unit more is a step away. */
#ifndef SMP_PARTITION_PROVE_DOWNSET_H
#define SMP_PARTITION_PROVE_DOWNSET_H

#include "partition/prove/window.h"

typedef struct smp__downset {
    uint64_t hash;
    double work_us;
    double forward_us;
    double cross_us[SMP__N_COST]; /* of the nets that cross its border, by link class */
    double cross_bytes;
    double weight_bytes; /* without shared weights */
    double stash_bytes;
    int64_t step_begin; /* of its steps */
    int32_t n_step;
    int32_t size;
    int32_t listed; /* for callers; 0 in a new one */
} smp__downset;

/* A unit whose predecessors all lie in the downset. */
typedef struct smp__step {
    int32_t unit;
    int32_t to; /* the downset with it; -1: not looked up yet */
} smp__step;

typedef struct smp__downsets {
    const smp__window *window;
    const smp__units *units;
    int32_t n;
    int32_t words;    /* of a bitset over units */
    uint64_t *bits;   /* [n * words] */
    smp__downset *at; /* [n] */
    smp__step *step;
    int64_t n_step;
    int32_t *table; /* open addressing; -1: empty */
    size_t capacity, step_capacity, table_size;
    size_t max_bytes;         /* what the pool may take */
    int64_t *successor_begin; /* [units->n + 1]: distinct units that read a unit's nets */
    int32_t *successor;
    int64_t *pred_begin; /* [units->n + 1]: distinct units whose nets it reads */
    int32_t *pred;
    int32_t *ready; /* [units->n] scratch */
    uint64_t *set;  /* [words] scratch */
    uint64_t work;  /* steps listed and looked up */
    bool starved;   /* full because there was no memory, not because of max_bytes */
} smp__downsets;

/* `arena` holds what does not depend on the number of downsets. */
smp_status smp__downsets_init(smp__downsets *pool, const smp__window *window, size_t max_bytes,
                              smp_arena *arena);
void smp__downsets_clear(
    smp__downsets *pool); /* frees the downsets; the pool can be filled again */

/* The index of a downset, stored if it is new; -1 if the pool is full. */
int32_t smp__downsets_add(smp__downsets *pool, const uint64_t *set);
/* The same for the downset after step i of downset d: fills in its `to`. */
int32_t smp__downsets_step(smp__downsets *pool, int32_t d, int64_t i);
/* -1 if it is not stored. */
int32_t smp__downsets_find(const smp__downsets *pool, const uint64_t *set);

static inline bool smp__set_has(const uint64_t *set, int32_t unit)
{
    return set[unit >> 6] >> (unit & 63) & 1;
}

static inline void smp__set_insert(uint64_t *set, int32_t unit)
{
    set[unit >> 6] |= (uint64_t)1 << (unit & 63);
}

static inline const uint64_t *smp__downset_bits(const smp__downsets *pool, int32_t d)
{
    return pool->bits + (size_t)d * (size_t)pool->words;
}

/* Whether a net leads from the set to its outside. */
static inline bool smp__net_crosses(const smp__units *units, const uint64_t *set, int32_t net)
{
    if (!smp__set_has(set, units->net_unit[net]))
        return false;
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        if (!smp__set_has(set, units->net_consumer[c]))
            return true;
    }
    return false;
}

#endif
