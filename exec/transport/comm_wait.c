/* Waiting, and what ranks tell each other meanwhile. A rank that fails sends a notice to every
 * other rank; ranks listen whenever they wait, so a failure anywhere ends every wait. A rank that
 * hangs sends nothing: the time-out of those that wait for it ends the job. Before it speaks, a
 * rank that is out of time asks all others how far they have come: who waits answers within
 * milliseconds, who hangs or is stopped does not, and is named.
 *
 * Who hangs in a step is told apart from who has not begun it, and may have long work to do, by a
 * witness: in a job that goes well all that a rank sends is one empty message per step, to the rank
 * half of the world away, which a machine that stands still does not take with it.
 *
 * Outside of steps a rank may work for long, and says so: it counts the pieces of its work, and its
 * answers have the count. Who waits begins its time anew when the count of any rank has risen. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/transport/comm.h"

/* ASK: by one that is out of time; CALL: who is in the step? Both are answered. ENTER: I am. */
enum {
    NOTICE_TAG = 1,
    ASK_TAG = 2,
    ANSWER_TAG = 3,
    CALL_TAG = 4,
    ENTER_TAG = 5,
    WORLD_TAG = 32000, /* added in MPI_COMM_WORLD, while there is no communicator of our own */
    SPIN = 200,
    SPIN_CROWDED = 4
};

static const double MIN_NAP_S = 10e-6, MAX_NAP_S = 50e-6;
/* A long wait sleeps on any machine: the core is for others, and the wait is hardly any longer. */
static const double LONG_WAIT_S = 0.1;
/* of the time-out: who is in the step by now, who makes progress? */
static const double CALL_EVERY = 0.25;
/* In a step after SIGTERM: who has died on another machine is seen by nothing else. */
static const double ENDING_S = 10.0;
static const double LOOK_EVERY_S = 1e-3; /* for other ranks' messages and the time-out */
static const double MAX_GAP_S = 0.1;     /* of waiting: in a longer one the process did not run */
static const double ANSWER_S = 0.5;      /* who waits looks every millisecond, */
static const double LAST_ANSWER_S = 2.0; /* or is back from a busy disk before it is named */
static const double SPEAK_S = 2.0;       /* for a lower rank that is out of time, too, to speak */

struct smp_comm_notice {
    char text[SMP_NOTICE_BYTES];
    MPI_Request *request;
    int n;
};

static atomic_llong pieces_done; /* of long work of this process */

void smp__progress_note(void)
{
    atomic_fetch_add(&pieces_done, 1);
}

/* A rank may wait for others to come to the first collective: it then asks in MPI_COMM_WORLD. */
static MPI_Comm talk_of(const smp_comm *comm)
{
    return comm->notice != MPI_COMM_NULL ? comm->notice : MPI_COMM_WORLD;
}

static int tag_of(const smp_comm *comm, int tag)
{
    return comm->notice != MPI_COMM_NULL ? tag : WORLD_TAG + tag;
}

smp_status smp__comm_notify(smp_comm *comm, smp_status status)
{
    if (comm->failed)
        return status;
    comm->failed = true;
    struct smp_comm_notice *notice = calloc(1, sizeof(*notice));
    MPI_Request *request = calloc((size_t)comm->world_size, sizeof(*request));
    if (!notice || !request) { /* the others' time-out will find out */
        free(notice);
        free(request);
        return status;
    }
    snprintf(notice->text, sizeof(notice->text), "%s", smp_last_error());
    notice->request = request;
    for (int rank = 0; rank < comm->world_size; rank++)
        if (rank != comm->world_rank)
            MPI_Isend(notice->text, SMP_NOTICE_BYTES, MPI_CHAR, rank, tag_of(comm, NOTICE_TAG),
                      talk_of(comm), &request[notice->n++]);
    /* The sends need progress and their buffer must outlive them: give them a moment, then keep
     * the buffer for the rest of the process. */
    int done = 0;
    for (double until = smp_clock_s() + 0.2; !done && smp_clock_s() < until;)
        MPI_Testall(notice->n, request, &done, MPI_STATUSES_IGNORE);
    comm->notices = notice;
    return status;
}

static smp_status receive_notice(smp_comm *comm, int from)
{
    char text[SMP_NOTICE_BYTES];
    SMP_TRY(smp__comm_check(MPI_Recv(text, SMP_NOTICE_BYTES, MPI_CHAR, from,
                                     tag_of(comm, NOTICE_TAG), talk_of(comm), MPI_STATUS_IGNORE),
                            "a failure notice"));
    comm->failed = comm->told = true;
    return smp_fail(SMP_ERR_PEER, "rank %d says: %.900s", from, text);
}

bool smp__comm_was_told(smp_status status)
{
    int rank, length = 0;
    return status == SMP_ERR_PEER &&
           sscanf(smp_last_error(), "rank %d says: %n", &rank, &length) == 1 && length > 0;
}

/* Sends and forgets: nobody could do more if it failed, and the numbers stay where they are. */
static void tell(const smp_comm *comm, int rank, int tag, const long long *number, int n)
{
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(number, n, MPI_LONG_LONG, rank, tag_of(comm, tag), talk_of(comm), &request);
    if (request != MPI_REQUEST_NULL)
        MPI_Request_free(&request);
}

static smp_status receive(smp_comm *comm, int from, int tag)
{
    smp_comm_peer *peer = &comm->peer[from];
    long long number[3] = {0};
    if (tag == NOTICE_TAG)
        return receive_notice(comm, from);
    SMP_TRY(smp__comm_check(MPI_Recv(number, 3, MPI_LONG_LONG, from, tag_of(comm, tag),
                                     talk_of(comm), MPI_STATUS_IGNORE),
                            "a message after a time-out"));
    switch (tag) {
    case ENTER_TAG:
        comm->witnessed++;
        return SMP_OK;
    case ANSWER_TAG:
        peer->came = number[0];
        peer->witnessed = number[1];
        comm->moved = comm->moved || (peer->known && peer->progress != number[2]);
        peer->progress = number[2];
        peer->known = true;
        return SMP_OK;
    }
    peer->asks = peer->asks || tag == ASK_TAG;
    peer->reply[0] = comm->came;
    peer->reply[1] = comm->witnessed;
    peer->reply[2] = atomic_load(&pieces_done);
    tell(comm, from, ANSWER_TAG, peer->reply, 3);
    return SMP_OK;
}

static smp_status hear(smp_comm *comm, int tag)
{
    for (int found = 1; found;) {
        MPI_Status from;
        SMP_TRY(smp__comm_check(MPI_Iprobe(MPI_ANY_SOURCE, tag, talk_of(comm), &found, &from),
                                "MPI_Iprobe"));
        if (found)
            SMP_TRY(receive(comm, from.MPI_SOURCE, from.MPI_TAG - tag_of(comm, 0)));
    }
    return SMP_OK;
}

/* Takes what other ranks have sent. SMP_ERR_PEER: one has failed. */
static smp_status listen(smp_comm *comm)
{
    if (comm->notice != MPI_COMM_NULL)
        return hear(comm, MPI_ANY_TAG);
    for (int tag = NOTICE_TAG; tag <= CALL_TAG && comm->peer; tag++)
        SMP_TRY(hear(comm, tag_of(comm, tag)));
    return SMP_OK;
}

smp_status smp__comm_answer(smp_comm *comm)
{
    smp__progress_note();
    return comm->world_size > 1 && !comm->failed ? listen(comm) : SMP_OK;
}

/* Whoever polls takes the core from others: from a rank that computes, where there are more ranks
 * than cores. So sleep, for a tenth of the time waited so far: a wait gets at most that much longer
 * and costs few wake-ups. */
static void nap(double waited_s)
{
    double nap_s = 0.1 * waited_s;
    nap_s = nap_s < MIN_NAP_S ? MIN_NAP_S : nap_s > MAX_NAP_S ? MAX_NAP_S : nap_s;
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)(1e9 * nap_s)};
    nanosleep(&time, NULL);
}

/* A gap is suspended time, or a burden on the machine that is none of the other ranks' doing. */
static void count_time(smp_wait *wait, double now)
{
    double gap = wait->polled_s > 0.0 ? now - wait->polled_s : 0.0;
    wait->waited_s += gap < MAX_GAP_S ? gap : MAX_GAP_S;
    wait->polled_s = now;
}

/* Listens for a while, which counts as waiting; ends early when nobody is missing. */
static smp_status listen_for(smp_comm *comm, smp_wait *wait, double seconds, bool for_answers)
{
    const double end_s = wait->waited_s + seconds;
    const struct timespec short_while = {.tv_nsec = 1000000};
    while (wait->waited_s < end_s) {
        bool missing = !for_answers;
        SMP_TRY(listen(comm));
        for (int rank = 0; rank < comm->world_size; rank++)
            missing = missing || (rank != comm->world_rank && comm->peer[rank].came < 0);
        if (!missing)
            return SMP_OK;
        nanosleep(&short_while, NULL);
        count_time(wait, smp_clock_s());
    }
    return SMP_OK;
}

/* "; rank 1, 3: no answer; rank 2: not there yet" */
static void name_missing(const smp_comm *comm, char *text, size_t size)
{
    static const char *const why[] = {": no answer", ": not there yet"};
    size_t used = 0;
    text[0] = '\0';
    for (int kind = 0; kind < 2; kind++) {
        int n = 0;
        for (int rank = 0; rank < comm->world_size; rank++) {
            long long came = comm->peer[rank].came;
            if (rank == comm->world_rank ||
                (kind == 0 ? came >= 0 : came < 0 || came >= comm->came))
                continue;
            if (used < size)
                used += (size_t)snprintf(text + used, size - used, n++ > 0 ? ", %d" : "; rank %d",
                                         rank);
        }
        if (n > 0 && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s", why[kind]);
    }
}

/* Asks all others how far they have come. */
static smp_status call_roll(smp_comm *comm, smp_wait *wait, int tag, double seconds)
{
    for (int rank = 0; rank < comm->world_size; rank++) {
        comm->peer[rank].came = -1;
        if (rank != comm->world_rank)
            tell(comm, rank, tag, NULL, 0);
    }
    return listen_for(comm, wait, seconds, true);
}

/* Whom a rank that is out of time waits for in the end: written to `text`. SMP_ERR_PEER: somebody
 * else has spoken. */
static smp_status find_missing(smp_comm *comm, char *text, size_t size)
{
    bool lower = false;
    smp_wait wait = {0};
    text[0] = '\0';
    if (!comm->peer)
        return SMP_OK;
    SMP_TRY(call_roll(comm, &wait, ASK_TAG, LAST_ANSWER_S));
    name_missing(comm, text, size);
    for (int rank = 0; rank < comm->world_rank; rank++)
        lower = lower || comm->peer[rank].asks;
    return lower ? listen_for(comm, &wait, SPEAK_S, false) : SMP_OK;
}

static smp_status out_of_time(smp_comm *comm, double limit_s, smp_wait_describe describe,
                              const void *context)
{
    char what[256] = "", missing[256];
    SMP_TRY(find_missing(comm, missing, sizeof(missing)));
    describe(context, what, sizeof(what));
    return smp_fail(SMP_ERR_PEER, "no progress for %g s: rank %d waits for %s%s", limit_s,
                    comm->world_rank, what, missing);
}

static int witness_of(const smp_comm *comm, int rank)
{
    return (rank + comm->world_size / 2) % comm->world_size;
}

/* Has the rank begun the step that this one is in, by its own answer or by its witness's? */
static bool has_entered(const smp_comm *comm, int rank)
{
    const int witness = witness_of(comm, rank);
    if (rank == comm->world_rank || comm->peer[rank].came >= comm->entered)
        return true;
    if (witness == comm->world_rank)
        return comm->witnessed >= comm->steps;
    return comm->peer[witness].came >= 0 && comm->peer[witness].witnessed >= comm->steps;
}

/* How far are the others? If all are in the step patience ends, and the clock begins anew. */
static smp_status call_others(smp_comm *comm, smp_wait *wait)
{
    SMP_TRY(call_roll(comm, wait, CALL_TAG, ANSWER_S));
    wait->called_s = wait->waited_s;
    if (!comm->entering)
        return SMP_OK;
    for (int rank = 0; rank < comm->world_size; rank++)
        if (!has_entered(comm, rank))
            return SMP_OK;
    comm->entering = false;
    wait->waited_s = 0.0;
    return SMP_OK;
}

/* How long the wait may take; 0: for ever. */
static double limit_of(const smp_comm *comm, const smp_wait *wait)
{
    const smp_comm_limits *limit = &comm->limit;
    if (comm->entering)
        return comm->steps > 1 ? limit->save_s : limit->start_s;
    if (wait->patient)
        return comm->steps > 0 ? limit->save_s : limit->start_s;
    const bool ending = comm->signalled && *comm->signalled == SIGTERM;
    return ending && !(limit->step_s > 0.0 && limit->step_s < ENDING_S) ? ENDING_S : limit->step_s;
}

/* Has this process, or a rank that was asked, worked meanwhile? */
static bool has_moved(smp_comm *comm, smp_wait *wait)
{
    const long long noted = atomic_load(&pieces_done);
    const bool moved = comm->moved || noted != wait->noted;
    comm->moved = false;
    wait->noted = noted;
    return moved;
}

/* What is done a thousand times a second. */
static smp_status look_at_request(smp_comm *comm, smp_wait *wait, smp_wait_describe describe,
                                  const void *context)
{
    SMP_TRY(listen(comm));
    if (wait->waited_s < wait->called_s)
        wait->called_s = 0.0; /* there was progress */
    const bool patient = wait->patient || comm->entering;
    if (has_moved(comm, wait) && patient)
        wait->waited_s = wait->called_s = 0.0;
    const double limit_s = limit_of(comm, wait), step_s = comm->limit.step_s;
    const double call_s = CALL_EVERY * (comm->entering && step_s > 0.0 ? step_s : limit_s);
    if (patient && call_s > 0.0 && comm->peer && wait->waited_s > wait->called_s + call_s)
        SMP_TRY(call_others(comm, wait));
    if (limit_s > 0.0 && wait->waited_s > limit_s)
        return out_of_time(comm, limit_s, describe, context);
    return SMP_OK;
}

smp_status smp__comm_pause(smp_comm *comm, smp_wait *wait, smp_wait_describe describe,
                           const void *context)
{
    if (wait->polls++ < (comm->crowded ? SPIN_CROWDED : SPIN))
        return SMP_OK;
    double now = smp_clock_s();
    count_time(wait, now);
    if (wait->looked_s == 0.0)
        wait->looked_s = now;
    if (now - wait->looked_s > LOOK_EVERY_S) {
        wait->looked_s = now;
        SMP_TRY(look_at_request(comm, wait, describe, context));
    }
    if (comm->crowded || wait->waited_s > LONG_WAIT_S)
        nap(wait->waited_s);
    else
        sched_yield();
    return SMP_OK;
}

smp_status smp__comm_wait_until(smp_comm *comm, smp_wait *wait, smp_wait_test test,
                                smp_wait_describe describe, void *context)
{
    double begin_s = 0.0; /* what is done already is not waited for: no clock is read */
    for (bool done = false;;) {
        SMP_TRY(test(context, &done));
        if (done && begin_s > 0.0)
            comm->waited_s += smp_clock_s() - begin_s;
        if (done)
            return SMP_OK;
        if (begin_s == 0.0)
            begin_s = smp_clock_s();
        SMP_TRY(smp__comm_pause(comm, wait, describe, context));
    }
}

void smp__comm_enter(smp_comm *comm)
{
    if (comm->world_size == 1)
        return;
    comm->entered = ++comm->came;
    comm->steps++;
    comm->entering = true;
    tell(comm, witness_of(comm, comm->world_rank), ENTER_TAG, NULL, 0);
}

static void describe_enter(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the other ranks to have begun the step");
}

static smp_status test_enter(void *context, bool *done)
{
    smp_comm *comm = context;
    SMP_TRY(listen(comm));
    *done = comm->witnessed >= comm->steps; /* or is in the next one already */
    return SMP_OK;
}

smp_status smp__comm_entered(smp_comm *comm)
{
    comm->entering = false;
    if (comm->witnessed >= comm->steps)
        return SMP_OK;
    smp_status status =
        smp__comm_wait_until(comm, &(smp_wait){0}, test_enter, describe_enter, comm);
    return status == SMP_OK ? SMP_OK : smp__comm_notify(comm, status);
}
