/* A slow network, for tests: messages and sums of the mpi transport take what a link of
 * SMP_THROTTLE bytes a second (an environment variable) would take, while the ranks go on
 * computing.
 *
 * Every rank has a link that its messages go out on, one after the other, and another that its sums
 * and gathers take, one after the other, each half at the bytes of the longest part for each other
 * member. The data itself moves as always; it counts as arrived when the link would have brought
 * it. Clocks of all ranks are taken to be one: a machine's. */
#ifndef SMP_EXEC_TRANSPORT_THROTTLE_H
#define SMP_EXEC_TRANSPORT_THROTTLE_H

#include "exec/transport/transport.h"

typedef struct smp__late_send smp__late_send;

typedef struct smp__throttle {
    double bytes_per_s; /* 0: as fast as it goes */
    double sum_free_s;  /* when the links are free */
    double send_free_s;
    smp__late_send *first, *last, *unused; /* messages on their way, in order; places for others */
} smp__throttle;

/* A sum from when it is asked for. */
typedef struct smp__late_sum {
    double asked_s, latest_s; /* here; by the last member */
    double due_s;             /* 0: not known yet */
    MPI_Request request;
} smp__late_sum;

smp_status smp__throttle_open(smp__throttle *throttle);
void smp__throttle_close(smp__throttle *throttle);

/* Is called in the order of sums, when it is asked for, */
void smp__throttle_ask(const smp__throttle *throttle, smp__late_sum *sum);
/* ... when all before it are done: tells the members; */
smp_status smp__throttle_begin(const smp__throttle *throttle, MPI_Comm comm, smp__late_sum *sum);
/* ... and when its data is there: has the link brought it? halves: 1 or 2. */
smp_status smp__throttle_arrived(smp__throttle *throttle, smp__late_sum *sum, int halves,
                                 int64_t bytes, bool *arrived);

/* Instead of MPI_Isend; the request stays where it is until it is done. */
smp_status smp__throttle_send(smp__throttle *throttle, const void *data, int bytes, int peer,
                              int tag, MPI_Comm comm, smp_request *request);
/* Sends what has arrived by now. */
smp_status smp__throttle_progress(smp__throttle *throttle);

#endif
