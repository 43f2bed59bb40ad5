/* What the files behind exec/data/data.h share: a source kind as a table entry, files opened for
 * reading, arrays, token windows, and the shuffled order. Private to this room and its tests.
 *
 * A kind is one file that defines an smp_source_kind, and one line in exec/data/data.c. */
#ifndef SMP_EXEC_DATA_DATA_SOURCE_H
#define SMP_EXEC_DATA_DATA_SOURCE_H

#include "exec/data/data.h"
#include "exec/data/index_range.h"

/* A regular file open for reading. Not mapped: reading a mapped page that is no longer in the file
 * ends the process with SIGBUS, reading the file fails. Zeroed: nothing is open. */
typedef struct smp_data_file {
    const char *path; /* the caller's */
    int fd;
    int64_t bytes; /* when it was opened */
} smp_data_file;

enum { SMP_DATA_PIECE = 1 << 14 }; /* bytes that kinds read at once, onto the stack */

/* SMP_ERR_INPUT with the reason: absent, unreadable, not a regular file, empty. */
smp_status smp__data_file_open(const char *path, smp_data_file *file);
void smp__data_file_close(smp_data_file *file);
/* Bytes offset .. offset + n - 1, which the file had when it was opened. SMP_ERR_FAILED: it could
 * not be read, or has been truncated since. */
smp_status smp__data_file_read(const smp_data_file *file, int64_t offset, void *buffer, size_t n);
/* Is there such a file, and does it begin with these bytes? */
bool smp__file_begins(const char *path, const char *bytes, size_t n);

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
/* The input that stands before the '=' of "image=x.npy", -1 if none does. */
int smp__input_named(const smp_graph *graph, const char *spec);
/* The same; SMP_ERR_INPUT names the nearest, or all of them. */
smp_status smp__input_parse(const smp_graph *graph, const char *spec, int *input);
/* The names of the model's inputs, "'tokens', 'targets'", cut to the buffer; returns it. */
char *smp__input_list(char *buffer, size_t size, const smp_graph *graph);

typedef struct smp_source_kind smp_source_kind;

enum { SMP_SOURCE_MAX_FEEDS = 4 };

/* An open source. The file is closed by exec/data/data.c, also after a failed open. */
typedef struct smp_source {
    const smp_source_kind *kind;
    const char *path;
    smp_data_file file;
    int64_t samples;
    bool unsplit; /* one array for all samples */
    int n_feed;
    int feed[SMP_SOURCE_MAX_FEEDS]; /* model inputs; a place in this list is a slot */
    const void *state;              /* of the kind, in the arena of the data */
} smp_source;

struct smp_source_kind {
    const char *name;
    const char *form; /* as the user writes it, and what it is */
    bool named;       /* written INPUT=FILE: feeds that input, else `tokens` and `targets` */
    bool folder;      /* the path is a folder's: no file is open */
    /* Is the file of this kind, by its suffix or its first bytes? `named`: an input stood before
     * it. The kinds are asked in the order of the list. */
    bool (*claims)(const char *path, bool named);
    /* Path, file and, with `named`, the one feed are set; checks the file against the inputs it
     * feeds and fills in the rest. */
    smp_status (*open)(const smp_graph *graph, smp_arena *arena, smp_source *source);
    /* Copies one sample of one input to `buffer`: [sample shape], int32 or float. */
    smp_status (*read)(const smp_source *source, int slot, int64_t sample, void *buffer);
    /* Fails on the first value of the whole file that an int32 input must not take. */
    smp_status (*check)(const smp_source *source, int slot, const smp__index_range *range);
};

/* What --data says, one file each. */
typedef struct smp__spec {
    const char *text;
    struct smp__spec *next;
} smp__spec;

typedef struct smp__spec_list {
    smp__spec *first, *last;
    int n;
} smp__spec_list;

/* Appends what `spec` stands for: itself, or the files that match its pattern, in the order of
 * their bytes: exec/data/data_pattern.c. All lies in the arena. */
smp_status smp__spec_expand(const smp_graph *graph, smp_arena *arena, const char *spec,
                            smp__spec_list *list);

/* Every kind, in the order of the list; ends with NULL. */
const smp_source_kind *const *smp__source_kinds(void);

enum { SMP_ARRAY_MAX_DIMS = SMP_MAX_DIMS + 1, SMP_ARRAY_MAX_DESCR = 32 };

/* What the header of an array's file says. */
typedef struct smp_array {
    char descr[SMP_ARRAY_MAX_DESCR]; /* NumPy's name of the type: "<f4", big-endian ">f4" */
    int n_dim;
    int64_t dim[SMP_ARRAY_MAX_DIMS]; /* samples first; C order */
    int64_t offset;                  /* from the start of the file to the first value */
} smp_array;

/* For `open` of a named kind: checks type, shape and length, sets samples and state. The other two
 * are `read` and `check` of such a kind. */
smp_status smp__array_bind(const smp_graph *graph, smp_arena *arena, const smp_array *array,
                           smp_source *source);
smp_status smp__array_read(const smp_source *source, int slot, int64_t sample, void *buffer);
smp_status smp__array_check(const smp_source *source, int slot, const smp__index_range *range);

/* State of the kinds that hold one stream of tokens. Sample i is tokens [i*length, i*length +
 * length]: the first `length` feed `tokens` (slot 0), the last `length` feed `targets` (slot 1). */
typedef struct smp_token_window {
    int64_t length;  /* T */
    int64_t n_token; /* in the file */
    int width;       /* bytes of a token */
    int64_t offset;  /* from the start of the file to the first one */
} smp_token_window;

/* Binds the stream to the inputs `tokens` and, where the model has it, `targets`: sets feeds,
 * samples and state. `unit` is what the file holds ("bytes", "tokens"). */
smp_status smp__token_window_bind(const smp_graph *graph, smp_arena *arena, const char *unit,
                                  int width, int64_t offset, int64_t n_token, smp_source *source);

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
