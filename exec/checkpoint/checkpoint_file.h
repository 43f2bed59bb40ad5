/* One checkpoint file: its header, bytes at their places, and that they are on the disk. */
#ifndef SMP_EXEC_CHECKPOINT_CHECKPOINT_FILE_H
#define SMP_EXEC_CHECKPOINT_CHECKPOINT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/optimizer/loss_scale.h"
#include "graph/base/text.h"
#include "exec/checkpoint/byte_spans.h"
#include "graph/model/graph.h"
#include "schedule/memory/memory.h"
#include "exec/checkpoint/checkpoint_folder.h"

enum { SMP__CHECKPOINT_HEADER_BYTES = 4096, SMP__CHECKPOINT_VERSION = 7 };
enum { SMP__CHECKPOINT_OLDEST = 3 };   /* that can be read */
enum { SMP__CHECKPOINT_STATES = 100 }; /* per weight at most; optimizers have two or none */

enum { SMP__WHOLE = 1000000000 };

/* In which order samples are taken, and which are not. A resumed run takes it from here. */
typedef struct smp__sample_order {
    bool known; /* false: the program that saves has an order of its own */
    uint64_t seed;
    int64_t held_out; /* for evaluations, in parts of SMP__WHOLE */
    bool shuffle, drop_last;
} smp__sample_order;

typedef struct smp__checkpoint_header {
    int64_t at;  /* where it begins in its file, and all offsets below count from */
    int version; /* not one that can be read: nothing else is known for sure */
    uint64_t fingerprint;
    int64_t step;
    int64_t samples;         /* position in the data; -1: not known */
    int64_t saved;           /* the how manieth save into its directory, from 1 */
    smp__sample_order order; /* since version 4 */
    bool evaluated;          /* `eval_loss` is known, from version 4 on */
    double eval_loss;        /* of these weights, over all of the held-out data; finite */
    bool scaled;             /* `loss_scale` is known, from version 5 on */
    smp_loss_scale loss_scale;
    char receipt[SMP__RECEIPT_BYTES]; /* exec/job/receipt.h, since version 6; "": none */
    int states;                       /* of the optimizer, per weight */
    bool keeps;                       /* ... and a number for each whole weight, since version 6 */
    int64_t own_bytes;                /* of the program's own state, since version 7; 0: none */
    char optimizer[64];
} smp__checkpoint_header;

/* What a file begins with: the head of safetensors, so that others read weights and states as
 * tensors. A function of the model and of what the header says that there is. Empty where it would
 * be longer than readers take. path: for messages. *out: smp_text_free. */
smp_status smp__checkpoint_head(const smp_graph *graph, const smp__checkpoint_header *says,
                                const char *path, smp_text *out);
/* SMP_ERR_INPUT: the file does not begin with it, or is not as long as the model has it. */
smp_status smp__checkpoint_check(int fd, const smp_graph *graph,
                                 const smp__checkpoint_header *header, const char *path);
/* Where a weight begins in a file with so many states of the optimizer for each. From the beginning
 * of the header on, as all offsets and the length of the file. */
int64_t smp__checkpoint_offset(const smp_graph *graph, int32_t param, int states);
int64_t smp__checkpoint_length(const smp_graph *graph, const smp__checkpoint_header *says);
/* Where the values (k 0) or a state (k) of a weight begin, and the hashes of their pieces of
 * SMP_PIECE_ELEMENTS, 64 bits each. */
int64_t smp__checkpoint_values_at(const smp_graph *graph, int32_t param, int states, int k);
int64_t smp__checkpoint_hashes_at(const smp_graph *graph, int32_t param, int states, int k);
/* The hashes of the pieces of `elements` values, which begin with a whole piece. */
void smp__checkpoint_hash(const float *values, int64_t elements, uint64_t *hash);
static inline int64_t smp__checkpoint_pieces(int64_t elements)
{
    return (elements + SMP_PIECE_ELEMENTS - 1) / SMP_PIECE_ELEMENTS;
}
/* `bytes` at `offset`, all of them. SMP_ERR_FAILED with the path. */
smp_status smp__checkpoint_transfer(int fd, void *data, int64_t bytes, int64_t offset, bool writing,
                                    const char *path);
/* What is written so far survives a crash of the machine, or SMP_ERR_FAILED. */
smp_status smp__checkpoint_sync(int fd, const char *path);

/* Where the number that is kept for a weight stands, with its hash, from the beginning of the file
 * on: after all weights. */
enum { SMP__KEPT_NUMBER_BYTES = 16 };
int64_t smp__checkpoint_kept_at(const smp__checkpoint_header *header, const smp_graph *graph,
                                int32_t param);
/* The number that is kept for a weight. SMP_ERR_INPUT: it is damaged. */
smp_status smp__checkpoint_kept_write(int fd, const smp__checkpoint_header *header,
                                      const smp_graph *graph, int32_t param, double kept,
                                      const char *path);
smp_status smp__checkpoint_kept_read(int fd, const smp__checkpoint_header *header,
                                     const smp_graph *graph, int32_t param, double *kept,
                                     const char *path);

/* Where the program's own state stands, own_bytes and their 64-bit hash, from the beginning of the
 * file on: after everything else. */
enum { SMP__OWN_HASH_BYTES = 8 };
int64_t smp__checkpoint_own_at(const smp__checkpoint_header *header, const smp_graph *graph);
/* own: [own_bytes]; of none, neither does anything. SMP_ERR_INPUT: it is damaged. */
smp_status smp__checkpoint_own_write(int fd, const smp__checkpoint_header *header,
                                     const smp_graph *graph, const void *own, const char *path);
smp_status smp__checkpoint_own_read(int fd, const smp__checkpoint_header *header,
                                    const smp_graph *graph, void *own, const char *path);

/* Bytes of the file, added to a set that is joined later. Of a weight whose values (or a state) and
 * hashes begin at these places a range, which begins with a whole piece; may be empty. */
smp_status smp__checkpoint_add_range(int64_t values_at, int64_t hashes_at, int64_t begin,
                                     int64_t end, smp__spans *out);
/* The number that is kept for a weight; the program's own state: nothing where there is none. */
smp_status smp__checkpoint_add_kept(const smp__checkpoint_header *header, const smp_graph *graph,
                                    int32_t param, smp__spans *out);
smp_status smp__checkpoint_add_own(const smp__checkpoint_header *header, const smp_graph *graph,
                                   smp__spans *out);

/* Writes a header at header->at, of the lowest version that has what it says. */
smp_status smp__checkpoint_header_write(int fd, const smp__checkpoint_header *header,
                                        const char *model, const char *path);
/* SMP_ERR_INPUT: the header is damaged, is none, or has numbers that no job gets to. */
smp_status smp__checkpoint_header_read(int fd, const char *path, smp__checkpoint_header *header);

#endif
