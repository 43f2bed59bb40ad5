/* Training data: an endless sequence of samples, one shuffled pass over all of them after another,
 * each a function of the seed and its number alone. What a step takes of it, the caller says: a
 * position in the sequence is a number of samples, and means the same whatever the batches are. One
 * source kind per file, listed in exec/data/data.c. */
#ifndef SMP_EXEC_DATA_DATA_H
#define SMP_EXEC_DATA_DATA_H

#include "graph/model/graph.h"

typedef struct smp_data smp_data;

typedef struct smp_data_options {
    const char *const *sources; /* as given to --data: "book.txt", "tokens.bin", "image=x.npy" */
    int n_source;
    int64_t global_batch; /* samples that there must be at least; 1: some */
    uint64_t seed;
    bool shuffle;
} smp_data_options;

/* Opens (maps) the sources and checks them against the model: every input has a source, shapes and
 * types agree, enough samples for one global batch, every index within the rows of the embeddings
 * and classes of the losses that read it (whole file). Text: bytes, and .bin: uint16 tokens with or
 * without the llm.c header (magic 20240520), feed inputs `tokens` and `targets` of shape [T];
 * .npy: C order, one input each, first dimension samples; '<f4' '<f8' to float, '|u1' to float
 * scaled by 1/255, '|u1' '<u2' '<i4' '<i8' to int32.
 * Of an input with `split: false` the array has the input's shape, without samples.
 * SMP_ERR_INPUT with file, and place where there is one. */
smp_status smp_data_open(const smp_graph *graph, const smp_data_options *options, smp_data **out);
void smp_data_close(smp_data *data);

int64_t smp_data_samples(const smp_data *data);

/* Copies samples [first, first + count) of the sequence for one model input: buffer is
 * [count][sample shape]. Of an input with `split: false`: its one array. */
smp_status smp_data_read(smp_data *data, int64_t first, int64_t count, int input, void *buffer);

#endif
