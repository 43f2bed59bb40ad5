/* The samples of the call in progress: where the kernels find the inputs, and what of them
 * counts. */
#ifndef SMP_EXEC_STATE_GIVEN_H
#define SMP_EXEC_STATE_GIVEN_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "exec/data/index_range.h"

/* A model input. With host memory the kernels read the caller's arrays, else a copy of them; of an
 * input that is not split always a copy, one micro-batch for all. */
typedef struct smp__input {
    bool needed;
    const char *data;   /* the first micro-batch with samples, as the kernels see it */
    const char *padded; /* likewise all micro-batches that samples do not fill */
    int64_t bytes;      /* of a micro-batch */
    int64_t stride;     /* from a micro-batch to the next: bytes, or 0 if it is not split */
    int places;         /* micro-batches in memory of the job */
    char *host;   /* [places * bytes] for the device to copy from; with host memory what the kernels
                     do not read in the caller's array */
    char *device; /* the same in device memory; NULL with host memory */
    smp__index_range range; /* of an int32 input */
    double counted;         /* how often its values decide what counts in the loss */
    bool counts_here;       /* ... and this rank is the one of its replica that looks at them */
} smp__input;

typedef struct smp__given {
    bool training;        /* false while evaluating */
    int64_t samples;      /* of the global batch */
    int first_microbatch; /* what micro-batch 0 of a call reads; 0 in training */
    smp__input *input;    /* [n_input] */
    double *rows;         /* [micro-batches of all replicas] of each loss's mean: loss_share.h */
    MPI_Comm rows_group;  /* ranks that have to tell each other at the start; MPI_COMM_NULL: none */
} smp__given;

#endif
