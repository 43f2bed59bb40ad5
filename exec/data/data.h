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

/* Opens the sources, those of one input one after another, and checks them against the model:
 * every input has a source, shapes and types agree, enough samples for one global batch, every
 * index within the rows of the embeddings and classes of the losses that read it (whole file).
 * Formats: exec/data/README.md. Of an input with `split: false` the array has the input's shape,
 * without samples. SMP_ERR_INPUT with file, and place where there is one. */
smp_status smp_data_open(const smp_graph *graph, const smp_data_options *options, smp_data **out);
void smp_data_close(smp_data *data);

/* Holds out a share of the samples, chosen by the seed alone: what is left is what `data` has from
 * now on, in its order; *held_out has the others, each once in the order of the files. It reads the
 * files of `data`, is closed before it, and may be read by another thread at the same time.
 * SMP_ERR_INPUT: either would be empty. */
smp_status smp_data_split(smp_data *data, double share, smp_data **held_out);

int64_t smp_data_samples(const smp_data *data);

/* What tells data from other data without reading them: bytes of all files, and a hash of their
 * sizes, first and last bytes; of folders of images, of how many there are. */
smp_status smp_data_mark(const smp_data *data, int64_t *bytes, uint64_t *hash);

/* Copies samples [first, first + count) of the sequence for one model input: buffer is
 * [count][sample shape]. Of an input with `split: false`: its one array. */
smp_status smp_data_read(smp_data *data, int64_t first, int64_t count, int input, void *buffer);

#endif
