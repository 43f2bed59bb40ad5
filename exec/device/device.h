/* The device interface: where a rank's arena lives and who runs its operators. One static
 * smp_device per file, listed once in exec/device/device.c.
 *
 * A device does what it is told in the order in which it is told (its compute stream), perhaps much
 * later: calls that move or compute return when the work is enqueued. `host_memory` devices do
 * everything at once. What the host reads it reads after `idle` said true. */
#ifndef SMP_EXEC_DEVICE_DEVICE_H
#define SMP_EXEC_DEVICE_DEVICE_H

#include "exec/optimizer/optimizer.h"
#include "graph/math/gemm_algorithms.h"
#include "graph/math/choice.h"
#include "graph/model/op.h"

enum { SMP_SQUARE_PIECE = 1 << 14 };

/* sum[i] (of reserve_host) = the sum of squares in double of piece i, SMP_SQUARE_PIECE values or
 * what is left, in an order that depends only on how many there are. */
typedef struct smp_squares {
    const void *values; /* [elements] */
    int64_t elements;
    double *sum;
} smp_squares;

typedef struct smp_device_options {
    smp_precision precision;
    int node_rank;   /* of this process among those on its node: which GPU is its own */
    int stamps;      /* how many time stamps are in use, see `stamp` */
    int host_copies; /* how many slots, see `copy_to_host` */
} smp_device_options;

struct smp_transport;

typedef struct smp_device {
    const char *name;
    const char *summary; /* a line of smp-run --help */
    smp_backend backend;
    bool host_memory; /* an address in the arena can be used by the host */
    /* Those that move what lies in its memory, the best first; NULL-terminated. */
    const struct smp_transport *const *transports;
    /* Before the process opens MPI, which may open the device's libraries: what they are to read in
     * the environment, which is put back after that. NULL: nothing. */
    void (*before_mpi)(void);
    /* Can one be opened here? SMP_ERR_FAILED: there is none, or no library for it. Cheap. */
    smp_status (*present)(void);
    /* Once per job. SMP_ERR_FAILED: there is no such device, or no library for it. */
    smp_status (*open)(const smp_device_options *options, void **context);
    void (*close)(void *context); /* accepts NULL */
    /* "NVIDIA H200, GPU 0, 139.8 GiB, CUDA 13.0": text of the context's life. */
    const char *(*describe)(void *context);
    /* Which physical device this is: equal for two ranks of a node that share one. */
    void (*identity)(void *context, char id[64]);
    /* Bytes that can be reserved now; some of them libraries will take. NULL with host_memory: the
     * kernel lends memory that it may not have, which shows when it is touched. */
    smp_status (*available)(void *context, int64_t *bytes);
    /* Zeroed memory, 256-byte aligned, touched so that no page fault comes later. */
    smp_status (*reserve)(void *context, int64_t bytes, char **arena);
    void (*release)(void *context, char *arena, int64_t bytes);
    /* Host memory that the device copies from and to fast (pinned); zeroed. */
    smp_status (*reserve_host)(void *context, int64_t bytes, char **memory);
    void (*release_host)(void *context, char *memory);
    /* What `prepare` and calls of operators get as their device; NULL on the CPU. */
    void *(*kernel_context)(void *context);
    /* Ways to compute that operators found in `prepare`, of which the ranks choose. NULL: there is
     * one way on this device. */
    smp__choices *(*choices)(void *context);
    /* How its matrix products are computed, of the context's life; filled by `prepare` of kernels.
     * NULL: in one way, and there is nothing to choose. */
    smp_gemms *(*products)(void *context);

    /* In the order of the compute stream. Targets and sources are device memory, `host` is from
     * reserve_host and belongs to the device until it is idle. */
    smp_status (*copy)(void *context, void *target, const void *source, int64_t bytes);
    smp_status (*zero)(void *context, void *target, int64_t bytes);
    smp_status (*upload)(void *context, void *target, const void *host, int64_t bytes);
    smp_status (*download)(void *context, void *host, const void *source, int64_t bytes);
    /* target[i] += source[i], of SMP_F32, SMP_BF16 or SMP_F16 (added in fp32, rounded once) */
    smp_status (*add)(void *context, smp_dtype dtype, void *target, const void *source,
                      int64_t elements);
    /* Sums of squares, one for each of n arrays of SMP_F32 or SMP_BF16. */
    smp_status (*square_sums)(void *context, smp_dtype dtype, const smp_squares *of, int n);
    /* target16[i] = source[i] in a format of 16 bits. */
    smp_status (*round16)(void *context, smp_dtype half, void *target16, const float *source,
                          int64_t elements);
    /* Has it the optimizer? NULL: any. */
    bool (*updates)(const smp_optimizer *optimizer);
    /* The optimizer's update or, where update->direction says so, its measurement; and those after
     * it (update->next): a GPU makes many in one launch. */
    smp_status (*update)(void *context, const smp_optimizer *optimizer, const smp_update *update);
    /* What is enqueued on the compute stream from `capture` to `captured` is not done then: *work
     * has it, so many launches with the arguments they got, and `replay` enqueues all of it again
     * at once. NULL: there was nothing. Between the two nothing but enqueueing is asked of the
     * device. After a failure it is as before `capture`. `forget`: of an idle device. All NULL:
     * there is nothing to gain here. */
    smp_status (*capture)(void *context);
    smp_status (*captured)(void *context, void **work, int *launches);
    smp_status (*replay)(void *context, void *work);
    void (*forget)(void *work);
    /* NULL: the kind has none here. */
    const smp_op_kernels *(*kernels)(const smp_op_kind *kind, smp_precision precision);

    /* Has everything that was enqueued been done? Errors of the device appear here. */
    smp_status (*idle)(void *context, bool *done);
    /* Notes the time at which the device gets here, under a number below options.stamps. */
    smp_status (*stamp)(void *context, int index);
    /* Has the stamp been passed since it was last enqueued? Its time in seconds of smp_clock_s;
     * time_s may be NULL. */
    bool (*passed)(void *context, int index, double *time_s);

    /* Copies beside the compute stream, those of each direction one after the other. `host` is from
     * reserve_host. `slot`, below options.host_copies, is the
     * copy's number, not used again before it was joined. NULL with host_memory: there it is a
     * thread's work. */
    smp_status (*copy_to_host)(void *context, int slot, void *host, const void *source,
                               int64_t bytes);
    smp_status (*copy_to_device)(void *context, int slot, void *target, const void *host,
                                 int64_t bytes);
    /* Those of a direction that are asked for from here on begin when the compute stream gets here;
     * others do not wait for it. */
    smp_status (*copy_from_here)(void *context, bool back);
    /* What is enqueued from here on begins when the slot's copy is done. */
    smp_status (*copy_join)(void *context, int slot);
    /* Is it? When it began and ended, as for `passed`. */
    bool (*copy_times)(void *context, int slot, double *begin_s, double *end_s);
} smp_device;

enum { SMP_DEVICE_NAME_BYTES = 128 };
/* What profiles call an open device: "cpu", or what it calls itself, without details: "NVIDIA
 * H200"; after its backend ("name: ") where that would not tell it. name:
 * [SMP_DEVICE_NAME_BYTES]. */
void smp_device_profile_name(const smp_device *device, void *context, char *name);

const smp_device *smp_device_find(const char *name); /* NULL if unknown or not built in */
const smp_device *const *smp_devices(void);          /* NULL-terminated */

/* As smp_backend_find; SMP_ERR_INPUT lists backends, devices without one of their own, "auto". */
smp_status smp_device_backend(const char *name, smp_backend *out);

#endif
