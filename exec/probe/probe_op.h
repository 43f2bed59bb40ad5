/* The probe of a rank, its shared state: the buffers of the op that is open, and the pool they lie
 * in. Internal to exec/probe*.c. */
#ifndef SMP_EXEC_PROBE_PROBE_OP_H
#define SMP_EXEC_PROBE_PROBE_OP_H

#include "exec/transport/comm.h"
#include "exec/device/device.h"
#include "exec/probe/probe.h"
#include "exec/transport/transport.h"

enum {
    SMP__PATTERN_FLOATS = 1 << 16,
    SMP__PROBE_PARTS = 3,
    SMP__STAGING_BYTES = 4 << 20,
    SMP__PROBE_STAMPS = 2
};

/* Where the buffers of an op lie; offsets from the start of a set, or of the pool. */
typedef struct smp__places {
    int64_t in[SMP_OP_MAX_IN], out[SMP_OP_MAX_OUT], aux;
    int64_t param[SMP_OP_MAX_PARAM], param16[SMP_OP_MAX_PARAM], dparam[SMP_OP_MAX_PARAM];
    int64_t dout[SMP_OP_MAX_OUT], din[SMP_OP_MAX_IN], workspace; /* shared by the sets */
    int64_t set_bytes, shared_bytes;
    int64_t aux_bytes, workspace_bytes;
    int64_t next_out, next_aux; /* of the second op of a pair */
    int64_t next_in[SMP_OP_MAX_IN], next_param[SMP_OP_MAX_PARAM];
    int64_t before_in, before_din; /* of one whose backward_input runs along */
} smp__places;

typedef struct smp__probe_state {
    smp_probe probe; /* first: what the caller holds */
    smp_comm comm;
    bool parallel;
    const smp_device *device;
    void *device_context;
    smp_precision precision;
    int64_t memory_limit; /* of the pool */
    bool alone;           /* no other rank computes on the GPU */
    char *staging;        /* [SMP__STAGING_BYTES] of reserve_host: what is uploaded next */
    char *pool;
    int64_t pool_bytes;
    float *pattern; /* [SMP__PATTERN_FLOATS] in [-1, 1) */
    /* the model whose footprint was computed last */
    const smp_graph *footprint_graph;
    int64_t footprint_batch, footprint_bytes;
    /* the open op */
    const smp_graph *graph;
    const smp_op *op;
    const smp_op_kernels *kernels;
    void *state;
    /* the op that is one kernel with the open one, if any (smp_op_fused) */
    const smp_op *next;
    const smp_op_kernels *next_kernels;
    void *next_state;
    /* that whose backward_input is one kernel with this one's (smp_op_fused_backward) */
    const smp_op *before;
    const smp_op_kernels *before_kernels;
    void *before_state;
    int64_t batch;
    smp__places place;
    int sets, part_sets[SMP__PROBE_PARTS], next_set;
    int newest;  /* input made by the latest op */
    bool joined; /* backward_input is timed as the call that makes both halves */
} smp__probe_state;

/* Gives `bytes` a place of 64-byte aligned size at *total; false if sizes run over. */
bool smp__probe_place(int64_t *total, int64_t bytes, int64_t *offset);
/* A pool of at least `bytes`; it grows only, so that its pages stay mapped. */
smp_status smp__probe_pool(smp__probe_state *p, int64_t bytes);
/* Random values of SMP_F32, SMP_BF16 or SMP_F16 in [-scale, scale). */
smp_status smp__probe_fill(smp__probe_state *p, void *target, smp_dtype dtype, int64_t bytes,
                           float scale);
/* Random int32 in [min, max], none below 0, as tokens of a text: the smaller ones more often by
 * Zipf's law. Some then stand in a batch many times, and the time of an embedding's gradient is
 * that of the most frequent one on a GPU. */
smp_status smp__probe_fill_indices(smp__probe_state *p, void *target, int64_t bytes, int64_t min,
                                   int64_t max);
/* Waits until the device has done everything. */
smp_status smp__probe_idle(smp__probe_state *p);
/* Takes the time between the next two of these calls, as the device sees it. */
smp_status smp__probe_clock_start(smp__probe_state *p);
smp_status smp__probe_clock_stop(smp__probe_state *p, double *us);

/* The probe's open, time and close; context: smp__probe_state. */
smp_status smp__probe_open(void *context, const smp_graph *graph, const smp_op *op, int64_t batch);
smp_status smp__probe_time(void *context, smp_op_part part, int repeat, double *us);
void smp__probe_close(void *context);
/* Finds how the open op's matrix products are computed fastest, once for each product. */
smp_status smp__probe_choose(smp__probe_state *p);

#endif
