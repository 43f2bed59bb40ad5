/* Training data: the samples of any step, a function of the seed and the step number alone.
 *
 * The global batch of step s is samples [s*G, (s+1)*G) of an endless sequence: one shuffled pass
 * over all samples after another (an incomplete global batch at the end of a pass is dropped).
 * Replica d takes the d-th of ddp equal parts. One source kind per file, listed in exec/data/data.c. */
#ifndef SMP_EXEC_DATA_DATA_H
#define SMP_EXEC_DATA_DATA_H

#include "graph/model/graph.h"

typedef struct smp_data smp_data;

typedef struct smp_data_options {
    const char *const *sources; /* as given to --data: "book.txt", "tokens.bin", "image=x.npy" */
    int n_source;
    int64_t global_batch; /* samples */
    uint64_t seed;
    bool shuffle;
} smp_data_options;

/* Opens (maps) the sources and checks them against the model: every input has a source, shapes and
 * types agree, enough samples for one global batch, every index within the rows of the embeddings
 * and classes of the losses that read it (whole file). Text: bytes, and .bin: uint16 tokens with or
 * without the llm.c header (magic 20240520), feed inputs `tokens` and `targets` of shape [T];
 * .npy: C order, one input each, first dimension samples; '<f4' '<f8' to float, '|u1' to float
 * scaled by 1/255, '|u1' '<u2' '<i4' '<i8' to int32.
 * SMP_ERR_INPUT with file, and place where there is one. */
smp_status smp_data_open(const smp_graph *graph, const smp_data_options *options, smp_data **out);
void smp_data_close(smp_data *data);

int64_t smp_data_samples(const smp_data *data);

/* Copies samples [first, first + count) of the global batch of `step` (from 0) for one model input:
 * buffer is [count][sample shape]. */
smp_status smp_data_read(smp_data *data, int64_t step, int64_t first, int64_t count, int input,
                         void *buffer);

#endif
