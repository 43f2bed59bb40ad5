/* What each micro-batch counts in the loss. The loss of a step is the mean over the rows (targets)
 * that count in the global batch, however it is cut into micro-batches and replicas; an operator
 * only knows its micro-batch, of which it makes the mean over r rows. So with R rows in the global
 * batch the gradient of that mean is r / R, and the means are added up with the same shares: the
 * operator divides by r again, and a micro-batch without a row adds nothing. All gradients are
 * larger by the loss scale (exec/optimizer/loss_scale.h) until the weights are updated.
 *
 * Rows are counted on the host before the step runs: an int32 tensor holds values of model inputs.
 * In each replica one rank counts those of an input, the one with the loss if it reads the input.
 * Where every sample counts alike samples are the rows, and every rank knows how many there are. Of
 * a full batch without ignored targets the shares have the bits of 1.0f / (micro-batches *
 * replicas), rows or samples: the quotient is rounded once (to double before, which makes no
 * difference to a float, since 53 >= 2 * 24 + 2). O(operators) once, O(values of the inputs that
 * decide) a step. */
#include "exec/inputs/loss_share.h"

#include <stdlib.h>

#include "exec/state/progress.h"

const smp_op *smp__counting_loss(const smp *s)
{
    int32_t loss = s->graph->loss >= 0 ? s->graph->tensor[s->graph->loss].producer : -1;
    return loss >= 0 && s->graph->op[loss].kind->rows_counted ? &s->graph->op[loss] : NULL;
}

static bool reads(const smp *s, int input, int rank)
{
    for (int64_t c = s->graph->consumer_begin[input]; c < s->graph->consumer_begin[input + 1]; c++)
        if (s->work->stage_rank[s->work->stage_of_op[s->graph->consumer[c].op]] == rank)
            return true;
    return false;
}

/* How often the int32 values that an op reads stand in the tensor: as often as each of its outputs,
 * which have to be alike and to hold all of them. What is only planned has no values. */
static smp_status times_made(const smp_graph *graph, const smp_op *op, const double *times,
                             double *out)
{
    int64_t left = 0;
    bool alike = true;
    *out = -1.0;
    for (int32_t k = 0; k < op->n_in; k++)
        if (graph->tensor[op->in[k]].dtype == SMP_I32)
            left -= graph->tensor[op->in[k]].elements;
    for (int32_t t = op->out; t < op->out + op->n_out; t++) {
        if (graph->tensor[t].dtype != SMP_I32)
            continue;
        left += graph->tensor[t].elements;
        alike = alike && (*out < 0.0 || times[t] == *out);
        *out = times[t];
    }
    if (alike && (*out <= 0.0 || left >= 0 || !op->kind->cpu.forward))
        return SMP_OK;
    return smp_fail_at(smp_op_where(graph, op),
                       "op '%s' (%s) leaves out some of the targets of the loss, which are "
                       "counted where they enter the model: expected an input of their own",
                       op->name, op->kind->name);
}

/* How often each model input stands in an int32 tensor: ops come after what they read, so one walk
 * back knows all readers of a tensor before it passes the tensor on. */
static smp_status find_inputs(smp *s, int32_t tensor)
{
    const smp_graph *graph = s->graph;
    smp_status status = SMP_OK;
    double *times = calloc((size_t)graph->n_tensor, sizeof(*times));
    if (!times)
        return smp_fail_memory((size_t)graph->n_tensor * sizeof(*times));
    times[tensor] = 1.0;
    for (int32_t i = graph->tensor[tensor].producer; i >= 0 && status == SMP_OK; i--) {
        const smp_op *op = &graph->op[i];
        double made;
        status = times_made(graph, op, times, &made);
        for (int32_t k = 0; k < op->n_in && made > 0.0; k++)
            if (graph->tensor[op->in[k]].dtype == SMP_I32)
                times[op->in[k]] += made;
    }
    for (int i = 0; i < graph->n_input; i++)
        s->given->input[i].counted = times[i];
    free(times);
    return status;
}

/* Who counts, and who has to be told: the rank with the loss in every replica. */
static void choose_ranks(smp *s, int loss_rank)
{
    s->given->rows_group = MPI_COMM_NULL;
    if (s->comm->ddp_size > 1 && s->comm->pipeline_rank == loss_rank)
        s->given->rows_group = s->comm->ddp;
    for (int i = 0; i < s->graph->n_input; i++) {
        if (s->given->input[i].counted == 0.0)
            continue;
        int rank = loss_rank;
        if (!reads(s, i, loss_rank)) {
            const smp_consumer *first = &s->graph->consumer[s->graph->consumer_begin[i]];
            rank = s->work->stage_rank[s->work->stage_of_op[first->op]];
            s->given->rows_group = s->comm->world;
        }
        s->given->input[i].counts_here = rank == s->comm->pipeline_rank;
    }
}

smp_status smp__loss_share_build(smp *s)
{
    const int64_t n = smp__job_microbatches(s);
    s->given->rows_group = MPI_COMM_NULL;
    s->given->rows = calloc((size_t)n, sizeof(*s->given->rows));
    if (!s->given->rows)
        return smp_fail_memory((size_t)n * sizeof(*s->given->rows));
    const smp_op *loss = smp__counting_loss(s);
    if (!loss)
        return SMP_OK;
    SMP_TRY(find_inputs(s, loss->in[loss->kind->rows_in]));
    choose_ranks(s, s->work->stage_rank[s->work->stage_of_op[loss - s->graph->op]]);
    return SMP_OK;
}

static float *share(smp *s, int mb)
{
    return (float *)(s->buffers->share + (int64_t)mb * SMP_LOSS_SLOT_BYTES);
}

/* Rows of this replica's micro-batches, as far as this rank counts them. */
static void count_rows(smp *s, const smp_op *loss, const void *const *inputs)
{
    const int first = smp__job_first(s, s->comm->replica);
    if (s->given->rows_group == s->comm->world && s->comm->tensor_rank > 0)
        return; /* the first device of a group counts for all */
    for (int i = 0; i < s->graph->n_input; i++) {
        if (!s->given->input[i].counts_here)
            continue;
        const int32_t *value = inputs[i];
        for (int mb = first; mb < s->work->microbatches; mb++) {
            int64_t n = s->graph->tensor[i].elements * smp__job_samples(s, s->comm->replica, mb);
            if (n == 0)
                break;
            const bool unsplit = s->graph->tensor[i].unsplit;
            const int64_t each = unsplit ? s->graph->tensor[i].elements : n;
            s->given->rows[smp__job_microbatch(s, s->comm->replica, mb)] +=
                s->given->input[i].counted * (double)loss->kind->rows_counted(value, each) *
                (double)(n / each);
            value += unsplit ? 0 : n;
        }
    }
}

/* Samples in a micro-batch of all replicas. */
static int64_t samples_of(const smp *s, int64_t microbatch)
{
    const int64_t left = s->given->samples - microbatch * s->work->batch;
    return left < 0 ? 0 : left < s->work->batch ? left : s->work->batch;
}

/* All rows that this rank has to know, of all replicas. */
static smp_status find_rows(smp *s, const void *const *inputs)
{
    const int n = (int)smp__job_microbatches(s);
    const smp_op *loss = smp__counting_loss(s);
    for (int i = 0; i < n; i++)
        s->given->rows[i] = loss ? 0.0 : (double)samples_of(s, i);
    if (!loss)
        return SMP_OK;
    count_rows(s, loss, inputs);
    /* an evaluation has no gradient: the replicas' rows come with their losses */
    bool replicas_only = s->given->rows_group == s->comm->ddp;
    if (s->given->rows_group == MPI_COMM_NULL || (!s->given->training && replicas_only))
        return SMP_OK;
    return smp__comm_sum_group(s->comm, s->given->rows_group, s->given->rows, n,
                               "the other ranks at the start of the step");
}

smp_status smp__loss_share_begin(smp *s, const void *const *inputs)
{
    const int64_t n = smp__job_microbatches(s), own = smp__job_microbatch(s, s->comm->replica, 0);
    const int first = smp__job_first(s, s->comm->replica);
    SMP_TRY(find_rows(s, inputs));
    if (!s->given->training || s->memory->loss < 0)
        return SMP_OK;
    double all = 0.0;
    for (int64_t i = 0; i < n; i++)
        all += s->given->rows[i];
    for (int mb = 0; mb < s->work->microbatches; mb++)
        *share(s, mb) = all > 0.0 && mb >= first ? (float)(s->given->rows[own + mb] / all) *
                                                       smp__progress_scale(s->progress)
                                                 : 0.0f;
    return s->device->upload(s->device_context, s->buffers->loss_gradient, s->buffers->share,
                             (int64_t)s->work->microbatches * SMP_LOSS_SLOT_BYTES);
}

double smp__loss_mean(const double *loss, const double *rows, int n)
{
    double all = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++)
        all += rows[i];
    for (int i = 0; i < n && all > 0.0; i++)
        sum += loss[i] * (rows[i] * n / all); /* exactly 1 where all rows are equal */
    return sum / n;
}
