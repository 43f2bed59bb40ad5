/* What the files behind exec/data/data.h share: a source kind as a table entry, files mapped for
 * reading, token windows, and the shuffled order. Private to exec/data*.c and their test.
 *
 * A kind is one file that defines an smp_source_kind, and one line in exec/data/data.c. */
#ifndef SMP_EXEC_DATA_DATA_SOURCE_H
#define SMP_EXEC_DATA_DATA_SOURCE_H

#include "exec/data/data.h"

/* A regular file mapped read-only. Zeroed: nothing is mapped. */
typedef struct smp_file_map {
    const unsigned char *data;
    int64_t bytes;
} smp_file_map;

/* SMP_ERR_INPUT with the reason: absent, unreadable, not a regular file, empty. */
smp_status smp__file_map_open(const char *path, smp_file_map *map);
void smp__file_map_close(smp_file_map *map);

/* Little-endian loads from any address. */
static inline uint16_t smp__load_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t smp__load_u32(const unsigned char *at)
{
    return (uint32_t)smp__load_u16(at) | (uint32_t)smp__load_u16(at + 2) << 16;
}

static inline uint64_t smp__load_u64(const unsigned char *at)
{
    return (uint64_t)smp__load_u32(at) | (uint64_t)smp__load_u32(at + 4) << 32;
}

bool smp__ends_with(const char *text, const char *suffix);
/* Model input by name, -1 if none. */
int smp__input_find(const smp_graph *graph, const char *name);
/* The names of the model's inputs, "'tokens', 'targets'", cut to the buffer; returns it. */
char *smp__input_list(char *buffer, size_t size, const smp_graph *graph);

/* The values that an int32 input may take: the tightest bounds of the ops that read it. */
typedef struct smp_source_range {
    const char *input;
    int64_t min, max;
    const smp_op *min_op, *max_op; /* what sets the bound; NULL: int32 itself */
} smp_source_range;

/* "input 'tokens' takes 0 to 255 (embedding 'wte')", for a value outside; returns the buffer. */
char *smp__range_format(char *buffer, size_t size, const smp_source_range *range, int64_t value);

typedef struct smp_source_kind smp_source_kind;

enum { SMP_SOURCE_MAX_FEEDS = 4 };

/* An open source. The file is unmapped by exec/data/data.c, also after a failed open. */
typedef struct smp_source {
    const smp_source_kind *kind;
    const char *path;
    smp_file_map file;
    int64_t samples;
    int n_feed;
    int feed[SMP_SOURCE_MAX_FEEDS]; /* model inputs; a place in this list is a slot */
    const void *state;              /* of the kind, in the arena of the data */
} smp_source;

struct smp_source_kind {
    const char *name;
    const char *form; /* as the user writes it */
    /* Is `spec`, an argument of --data, of this kind? Kinds are asked in registry order. */
    bool (*matches)(const smp_graph *graph, const char *spec);
    /* Maps the file, checks it against the inputs it feeds, fills all but `kind`. */
    smp_status (*open)(const smp_graph *graph, const char *spec, smp_arena *arena,
                       smp_source *source);
    /* Copies one sample of one input to `buffer`: [sample shape], int32 or float. */
    void (*read)(const smp_source *source, int slot, int64_t sample, void *buffer);
    /* Fails on the first value of the whole file that an int32 input must not take. */
    smp_status (*check)(const smp_source *source, int slot, const smp_source_range *range);
};

extern const smp_source_kind smp__source_text;
extern const smp_source_kind smp__source_bin;
extern const smp_source_kind smp__source_npy;

/* State of the kinds that hold one stream of tokens. Sample i is tokens [i*length, i*length +
 * length]: the first `length` feed `tokens` (slot 0), the last `length` feed `targets` (slot 1). */
typedef struct smp_token_window {
    int64_t length;             /* T */
    int64_t n_token;            /* in the file */
    const unsigned char *token; /* the first one */
} smp_token_window;

/* Binds the stream to the inputs `tokens` and, where the model has it, `targets`: sets feeds,
 * samples and state. `unit` is what the file holds ("bytes", "tokens"). */
smp_status smp__token_window_bind(const smp_graph *graph, smp_arena *arena, const char *unit,
                                  const unsigned char *token, int64_t n_token, smp_source *source);

/* A pseudo-random permutation of [0, n) that can be asked in any order: exec/data/data_order.c. */
enum { SMP_ORDER_ROUNDS = 8 };

typedef struct smp_order {
    uint64_t n;
    int low_bits, high_bits;
    uint64_t key[SMP_ORDER_ROUNDS];
} smp_order;

void smp__order_init(smp_order *order, int64_t n, uint64_t seed, uint64_t pass); /* n >= 1 */
int64_t smp__order_at(const smp_order *order, int64_t i);                        /* 0 <= i < n */

#endif
