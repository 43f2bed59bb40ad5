/* The group that operators ask for which several devices compute together (smp_op_group), over MPI,
 * for arrays in host memory, or staged there. Where the transport has a group of its own, it is
 * that one (smp_transport.group). */
#ifndef SMP_EXEC_GROUP_OP_GROUP_H
#define SMP_EXEC_GROUP_OP_GROUP_H

#include "exec/device/device.h"
#include "exec/group/timed_group.h"
#include "exec/transport/comm.h"
#include "exec/transport/throttle.h"
#include "graph/model/op.h"

/* Called in every round of a wait: moves on what else is under way. NULL: nothing. */
typedef smp_status (*smp__op_group_progress)(void *context);

/* What is under way of a call that has been begun. */
typedef enum smp__group_half {
    SMP__NO_HALF,
    SMP__HALF_SUM,     /* of an all_reduce: what all have of the own share comes, ... */
    SMP__HALF_SPREAD,  /* ... and its sum goes to all */
    SMP__HALF_OWN_SUM, /* what all have of the own part comes, to be added up */
    SMP__HALF_MOVE     /* what comes is the result */
} smp__group_half;

typedef struct smp__op_group {
    smp_op_group group; /* what calls get; its context is this */
    smp_comm *comm;
    MPI_Comm ranks;
    smp__op_group_progress progress;
    void *progress_context;
    int64_t most;       /* floats that a call may bring */
    float *sent, *came; /* room for them, and a device more */
    smp__group_half half;
    float *to;           /* where its result belongs */
    int64_t n, n_values; /* floats of each device; of an all_reduce, in all */
    MPI_Request request;
    smp__throttle throttle; /* a link of the group's own, for tests */
    smp__late_sum late;
    int64_t half_bytes;   /* that the link takes for it */
    MPI_Request shift[2]; /* under way: what comes, what goes */
    bool timed;           /* is the clock read: */
    double waited_s;      /* for the others, so far */
    bool shifting;        /* until `shifted` */
    /* Where the arrays are a device's: */
    const smp_device *device;
    void *device_context;
    smp_op_group host; /* calls with `down` and `up`, of as many floats, pinned */
    char *down, *up;
    float *coming; /* [n_coming] where a shift under way goes */
    int64_t n_coming;
    smp__timed_group timed_group; /* what `group` was before it told of its waits */
} smp__op_group;

/* ranks: those of the group, by device; it is not copied. most: floats of the largest whole
 * tensor. Freed with smp__op_group_close, after a failure not at all: MPI may still use it. */
smp_status smp__op_group_open(smp__op_group *g, smp_comm *comm, MPI_Comm ranks, int64_t most,
                              smp__op_group_progress progress, void *context);
/* From then on for arrays in the memory of a device that the host cannot read. */
smp_status smp__op_group_stage(smp__op_group *g, const smp_device *device, void *device_context);
/* Moves on what has been begun. */
smp_status smp__op_group_look(smp__op_group *g);
void smp__op_group_close(smp__op_group *g);

#endif
