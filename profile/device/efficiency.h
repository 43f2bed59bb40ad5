/* How far the operators of a device stay below its peaks: what a description of it says beside them
 * (profile/FORMAT.md). */
#ifndef SMP_PROFILE_DEVICE_EFFICIENCY_H
#define SMP_PROFILE_DEVICE_EFFICIENCY_H

#include <stddef.h>

#include "graph/base/arena.h"
#include "graph/model/op.h"

struct smp_yaml_node;

/* A block of a product's result that one processor computes at once. */
typedef struct smp_tile {
    int rows, columns;
    double share; /* of what the device reaches with its best tile */
} smp_tile;

enum { SMP_MAX_TILES = 8 };

typedef struct smp_efficiency {
    double products;   /* share of the peak of large products, at the clocks of a long run */
    double lost_k;     /* a sum over k takes as long as one over so much more would: the way in and
                        out of a tile */
    double processors; /* that tiles are dealt out to; 0: the result's shape counts for nothing */
    double attention_forward, attention_backward;     /* share of the peak, for long rows */
    double attention_keys;                            /* rows of so many keys reach half of that */
    double score_bytes_forward, score_bytes_backward; /* moved for each score, where attention
                        writes all of them, masked ones too, between products; 0: it does not */
    double memory;                                    /* share of the bandwidth */
    double call_us;                                   /* from one call to the next */
    /* A host launches calls ahead, one in so long: it counts where all calls of a pass together
     * take the device less. */
    double host_us;
    double overlap_loss; /* share of the time that exchanges and compute run side by side, by which
                            both become longer */
    int n_tile;
    smp_tile tile[SMP_MAX_TILES];
    const char *from; /* what the figures are taken from, for people */
    double error;     /* band of a step that they predict: 0.1 is 10 % either way; 0: not known */
} smp_efficiency;

/* Of a device that is not described: nothing stays below its peak, a call takes 1 us. */
extern const smp_efficiency smp_efficiency_ideal;

/* A figure by its key in files: descriptions, and plans that were made with one. */
typedef struct smp_efficiency_field {
    const char *key;
    size_t offset; /* of a double */
    double least, most;
} smp_efficiency_field;

extern const smp_efficiency_field smp_efficiency_fields[];
extern const int smp_efficiency_n_field;

/* Keys that are left out are those of *out, or of smp_efficiency_ideal where that is NULL. The new
 * *out lives in the arena. Errors: SMP_ERR_INPUT with file:line:column. */
smp_status smp_efficiency_read(const struct smp_yaml_node *map, smp_arena *arena,
                               const smp_efficiency **out);
smp_status smp_efficiency_copy(const smp_efficiency *from, smp_arena *arena,
                               const smp_efficiency **out);

/* Arithmetic and traffic of a part of an op. */
typedef struct smp_part_amount {
    double flops, bytes, moved;
} smp_part_amount;
smp_part_amount smp_part_amount_of(const smp_op_work *work, smp_op_part part);
/* What cores take besides, which go through attention block by block; no figure of a device. */
double smp_blocks_us(const smp_op_work *work, smp_op_part part);
/* The product that a part is, of that of forward: C (m, n), sums over k. */
smp_op_product smp_part_product(const smp_op_product *forward, smp_op_part part);

/* Do both predict the same times? */
bool smp_efficiency_alike(const smp_efficiency *a, const smp_efficiency *b);

/* Time of a part of an op with this work on a device of these peaks, in microseconds: arithmetic or
 * memory traffic, whichever takes longer, then what is moved besides; 0 for a part without work.
 * Tiles of a product are dealt out in waves, the last of which may leave processors idle; a product
 * of few tiles is also cut along its sum. */
double smp_efficiency_us(const smp_efficiency *efficiency, const smp_op_work *work,
                         smp_op_part part, double flops_per_s, double bytes_per_s);

#endif
