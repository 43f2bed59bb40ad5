/* Sums over the replicas in the middle of operators. Each replica gets what all have and adds it up
 * by rising replica: the same bits on all of them, whatever MPI does inside.
 *
 * Why it cannot deadlock: all replicas run the same programs, so one order of actions, which the
 * verifier replayed, is that of every replica. Of the first action in it that is not done
 * everywhere, all that stands before it is done in every replica: its messages come, and the ranks
 * that have yet to join its sums wait for nothing else. A replica whose micro-batch has no samples
 * joins like the others. The sums have a communicator of their own, since reductions of gradients
 * are begun in the order of the plan but go on whenever a rank looks at them. Whoever waits here
 * moves messages and reductions on. O(replicas * values). */
#include "exec/step/joint_sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/step/cost_samples.h"
#include "exec/step/stepping.h"

struct smp__joint {
    smp_op_joint call;   /* what the operator in progress gets */
    const smp_op *op;    /* ... and which that is */
    double *all;         /* [ddp][most]: what every replica has */
    MPI_Request request; /* the one in flight */
};

static void describe(const void *context, char *buffer, size_t size)
{
    const smp *s = context;
    snprintf(buffer, size, "the other replicas in op '%s' (%s)", s->stepping->joint->op->name,
             s->stepping->joint->op->kind->name);
}

static smp_status test(void *context, bool *done)
{
    smp *s = context;
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Test(&s->stepping->joint->request, &flag, MPI_STATUS_IGNORE),
                            "MPI_Test"));
    *done = flag;
    return flag ? SMP_OK : s->endpoint->transport->progress(s->endpoint->context);
}

static smp_status sum(void *context, double *values, int64_t count)
{
    smp *s = context;
    double *all = s->stepping->joint->all;
    const double begin_s = smp__spent_begin(s->record);
    smp__cost_leave(s);
    memcpy(all + s->comm->replica * count, values, (size_t)count * sizeof(*values));
    SMP_TRY(
        smp__comm_check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)count,
                                       MPI_DOUBLE, s->comm->joint, &s->stepping->joint->request),
                        "MPI_Iallgather"));
    SMP_TRY(smp__comm_wait_until(s->comm, &(smp_wait){0}, test, describe, s));
    for (int64_t i = 0; i < count; i++) {
        values[i] = all[i];
        for (int replica = 1; replica < s->comm->ddp_size; replica++)
            values[i] += all[replica * count + i];
    }
    smp__cost_back(s);
    smp__spent_end(s->record,
                   smp__place_is_forward(s->place) ? SMP__SPENT_JOINT_FORWARD
                                                   : SMP__SPENT_JOINT_OTHER,
                   begin_s);
    return SMP_OK;
}

static int64_t longest(const smp *s, const smp_op **op)
{
    int64_t most = 0;
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int32_t i = 0; i < s->work->chunk[chunk].layout->n_call; i++) {
            const smp_op *own = s->work->chunk[chunk].call[i].op;
            smp_op_needs needs;
            smp_op_needs_get(s->graph, own, s->work->batch, &needs);
            if (needs.forward_joint > most || needs.input_grad_joint > most)
                *op = own;
            most = needs.forward_joint > most ? needs.forward_joint : most;
            most = needs.input_grad_joint > most ? needs.input_grad_joint : most;
        }
    return most;
}

smp_status smp__joint_build(smp *s)
{
    const smp_op *op;
    const int64_t most = s->comm->ddp_size > 1 && s->graph->training ? longest(s, &op) : 0;
    if (most == 0)
        return SMP_OK;
    if (!s->device->host_memory)
        return smp_fail(SMP_ERR_FAILED,
                        "op '%s' (%s) adds up over replicas, which device '%s' cannot: leave out "
                        "`sync`, or use no replicas (ddp 1)",
                        op->name, op->kind->name, s->device->name);
    const size_t bytes =
        (size_t)s->comm->ddp_size * (size_t)most * sizeof(*s->stepping->joint->all);
    s->stepping->joint = calloc(1, sizeof *s->stepping->joint);
    if (!s->stepping->joint || !(s->stepping->joint->all = malloc(bytes)))
        return smp_fail_memory(bytes);
    s->stepping->joint->call =
        (smp_op_joint){.replicas = s->comm->ddp_size, .context = s, .sum = sum};
    return SMP_OK;
}

void smp__joint_free(smp *s)
{
    free(s->stepping->joint ? s->stepping->joint->all : NULL);
    free(s->stepping->joint);
}

const smp_op_joint *smp__joint_of(smp *s, const smp_op *op, int microbatch)
{
    smp_op_needs needs;
    if (!s->stepping->joint || !s->given->training)
        return NULL;
    smp_op_needs_get(s->graph, op, s->work->batch, &needs);
    if (needs.forward_joint == 0 && needs.input_grad_joint == 0)
        return NULL;
    s->stepping->joint->op = op;
    s->stepping->joint->call.samples = 0;
    for (int replica = 0; replica < s->comm->ddp_size; replica++)
        s->stepping->joint->call.samples += smp__job_samples(s, replica, microbatch);
    /* Counted for replica 0, whose samples come first. */
    const int64_t behind = smp__job_following(s, 0, microbatch),
                  own = s->work->microbatches - microbatch - 1;
    s->stepping->joint->call.following = behind < own ? behind : own;
    return &s->stepping->joint->call;
}
