/* cross_entropy: logits [.., V] and int32 targets [..] -> one loss per micro-batch, the mean of
 * -log softmax(logits)[target] over the targets that are not -1; 0 if all are.
 *
 * With M the largest logit of a row and S = sum exp(logit - M), the loss of a row is log S + (M -
 * logit[target]), which neither overflows nor cancels. Forward saves M and S of each row, 8 bytes
 * instead of 4 V; backward reads the logits again: dlogits = dout / count * (exp(logit - M) / S -
 * [target]). The rows are added in double, in order. O(rows * V).
 *
 * label_smoothing e (Szegedy et al. 2016): the target has the probability 1 - e, and e is shared
 * out evenly among all V, so that the loss reads (1 - e) logit[target] + e mean(logits) for the
 * target's logit.
 *
 * Of several devices that each have a part of the classes (`devices`), each makes M, S and what it
 * has of the target's logit of its own, and all put these together by rising device.
 *
 * A row is a hit if an argmax that takes the first of equals finds its target; one with a NaN that
 * an argmax could find is none. */
#include "graph/ops/collective/collective.h"
#include "graph/ops/loss/loss.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

enum { SHARE = sizeof(smp__row_share) / sizeof(float) };

static const smp_attr_desc ATTRS[] = {
    [SMP__CROSS_ENTROPY_SMOOTHING] = {"label_smoothing", SMP_ATTR_FLOAT, false, 0, 0, 1, NULL},
    [SMP__CROSS_ENTROPY_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    {0},
};

smp_status smp__infer_cross_entropy(smp_infer *infer, const smp_shape *logits, int64_t devices)
{
    const smp_tensor *targets = infer->in[SMP__TARGETS];
    if (targets->dtype != SMP_I32)
        return smp_infer_fail(infer, "input '%s' is float, expected int32 targets", targets->name);
    smp_shape expected = *logits;
    expected.n_dim--;
    char got[128], want[128], of[128];
    if (!smp_shape_equal(&expected, &targets->shape))
        return smp_infer_fail(infer, "targets '%s' are %s, expected %s for logits %s",
                              targets->name, smp_shape_format(got, sizeof got, &targets->shape),
                              smp_shape_format(want, sizeof want, &expected),
                              smp_shape_format(of, sizeof of, logits));
    const int64_t rows = targets->elements;
    if (smp_shape_elements(&(smp_shape){2, {rows, devices}}) < 0)
        return smp_infer_fail(infer, "devices: %lld for %lld rows are too many", (long long)devices,
                              (long long)rows);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){0};
    infer->out_batched = false;
    return SMP_OK;
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_float(infer, SMP__LOGITS));
    SMP_TRY(smp_infer_dims(infer, SMP__LOGITS, 1, SMP_MAX_DIMS));
    return smp__infer_cross_entropy(infer, &infer->in[SMP__LOGITS]->shape,
                                    infer->attr[SMP__CROSS_ENTROPY_DEVICES].i);
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    const int64_t devices = op->attr[SMP__CROSS_ENTROPY_DEVICES].i;
    *needs = (smp_op_needs){
        .input_grad_in = 1u << SMP__LOGITS | 1u << SMP__TARGETS,
        .input_grad_aux = true,
        .aux_bytes = smp__in(graph, op, SMP__TARGETS)->elements * (int64_t)sizeof(smp__row_stats),
        .workspace_bytes = devices > 1 ? (1 + devices) * rows * (int64_t)sizeof(smp__row_share) : 0,
    };
}

int64_t smp__cross_entropy_parts_bytes(int64_t rows)
{
    const int64_t parts = (rows + 1023) / 1024;
    return (parts < 256 ? parts : 256) * 2 * (int64_t)sizeof(double);
}

/* The GPU saves the number of targets that count as well, after the rows, and adds the losses of
 * parts of the rows in the workspace: two doubles each. What devices have of the rows follows
 * there, and the targets' logits; with smoothing the means of the rows. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    needs(graph, op, batch, out);
    out->aux_bytes += (int64_t)sizeof(double);
    out->workspace_bytes += smp__cross_entropy_parts_bytes(rows);
    if (op->attr[SMP__CROSS_ENTROPY_DEVICES].i > 1)
        out->workspace_bytes += rows * (int64_t)sizeof(float);
    if (op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f > 0)
        out->workspace_bytes += rows * (int64_t)sizeof(float);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    smp__work_elementwise(graph, op, batch, 20, 20, work);
    work->forward_exchange =
        smp_op_exchange_each(op->attr[SMP__CROSS_ENTROPY_DEVICES].i, rows * SHARE);
}

static bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max)
{
    if (slot != SMP__TARGETS)
        return false;
    *min = SMP__IGNORED_TARGET;
    *max =
        smp__columns(smp__in(graph, op, SMP__LOGITS)) * op->attr[SMP__CROSS_ENTROPY_DEVICES].i - 1;
    return true;
}

int64_t smp__cross_entropy_counted(const int32_t *target, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += target[i] != SMP__IGNORED_TARGET;
    return count;
}

/* What the loss has for the target's logit. */
static double smoothed_logit(const float *logits, int64_t classes, int32_t target, double smoothing)
{
    double logit = (double)logits[target];
    if (smoothing > 0)
        logit += smoothing * ((double)smp__sum(logits, classes) / (double)classes - logit);
    return logit;
}

/* How many of the classes stand before the target, of index `target` and this logit: what is before
 * it is as large, or what is after it larger. */
static int64_t before_target(const float *logits, int64_t classes, int64_t target, float logit)
{
    const int64_t middle = target < 0 ? 0 : target < classes ? target : classes;
    int64_t before = 0;
    for (int64_t c = 0; c < middle; c++)
        before += !(logits[c] < logit);
    for (int64_t c = middle; c < classes; c++)
        before += !(logits[c] <= logit);
    return before;
}

static void add_hit(int64_t *hits, double before)
{
    hits[0] += before == 0;
    hits[1] += before < SMP_TOP;
}

SMP_VECTOR static void subtract(float *y, float x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] -= x;
}

/* The first of the classes that this device has. */
static int64_t first_class(const smp__class_rows *r)
{
    return r->devices > 1 ? r->call->graph->device * r->classes : 0;
}

static smp_status check_target(const smp__class_rows *r, int64_t row)
{
    const int64_t classes = r->classes * r->devices;
    const int32_t target = r->target[row];
    if (target >= 0 && target < classes)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "op '%s' (%s): target %d at position %lld of the micro-batch, expected 0 to "
                    "%lld, or -1 to ignore it",
                    r->call->op->name, r->call->op->kind->name, (int)target,
                    (long long)(r->first + row), (long long)classes - 1);
}

/* What this device has of the rows. */
static smp_status own_shares(const smp__class_rows *r, smp__row_share *out)
{
    const float *logits = r->logits;
    for (int64_t i = 0; i < r->counted; i++, logits += r->classes) {
        out[i] = (smp__row_share){0};
        if (r->target[i] == SMP__IGNORED_TARGET)
            continue;
        SMP_TRY(check_target(r, i));
        const int64_t own = r->target[i] - first_class(r);
        out[i].max = smp__max(logits, r->classes);
        out[i].sum = smp__exp_sum(logits, out[i].max, r->classes);
        out[i].target = own >= 0 && own < r->classes ? logits[own] : 0;
        out[i].total = r->smoothing > 0 ? smp__sum(logits, r->classes) : 0;
    }
    return SMP_OK;
}

/* all [devices][rows] -> one. */
static smp__row_share join_shares(const smp__row_share *all, int64_t rows, int64_t devices)
{
    smp__row_share whole = all[0];
    double sum = 0;
    for (int64_t d = 1; d < devices; d++) {
        whole.max = all[d * rows].max > whole.max ? all[d * rows].max : whole.max;
        whole.target += all[d * rows].target;
        whole.total += all[d * rows].total;
    }
    for (int64_t d = 0; d < devices; d++)
        sum += (double)all[d * rows].sum * exp((double)all[d * rows].max - (double)whole.max);
    whole.sum = (float)sum;
    return whole;
}

/* Classes before the target are summed over the devices, which all know its logit; these are
 * overwritten. Whole numbers: exact. */
static smp_status add_hits(smp__class_rows *r, const smp_op_group *group, float *target_logit)
{
    const float *logits = r->logits;
    float *before = target_logit;
    for (int64_t i = 0; i < r->counted; i++, logits += r->classes)
        before[i] = r->target[i] == SMP__IGNORED_TARGET
                        ? SMP_TOP
                        : (float)before_target(logits, r->classes, r->target[i] - first_class(r),
                                               target_logit[i]);
    SMP_TRY(group->all_reduce(group->context, before, r->counted));
    for (int64_t i = 0; i < r->counted; i++)
        add_hit(r->hits, (double)before[i]);
    return SMP_OK;
}

static smp_status add_rows_together(smp__class_rows *r)
{
    const smp_op_group *group;
    SMP_TRY(smp__group_of(r->call, r->devices, &group));
    float *target_logit = (float *)r->own; /* once they are sent */
    SMP_TRY(own_shares(r, r->own));
    SMP_TRY(
        group->all_gather(group->context, (float *)r->own, (float *)r->shares, r->counted * SHARE));
    for (int64_t i = 0; i < r->counted; i++) {
        r->stats[i] = (smp__row_stats){0, 1};
        target_logit[i] = 0;
        if (r->target[i] == SMP__IGNORED_TARGET)
            continue;
        const smp__row_share row = join_shares(r->shares + i, r->counted, r->devices);
        double logit = (double)row.target,
               mean = (double)row.total / (double)(r->classes * r->devices);
        r->stats[i] = (smp__row_stats){row.max, row.sum};
        target_logit[i] = row.target;
        r->loss +=
            log((double)row.sum) + ((double)row.max - (logit + r->smoothing * (mean - logit)));
        r->count++;
    }
    return r->call->hits ? add_hits(r, group, target_logit) : SMP_OK;
}

smp_status smp__class_rows_add(smp__class_rows *r)
{
    if (r->devices > 1)
        return add_rows_together(r);
    const float *logits = r->logits;
    for (int64_t i = 0; i < r->counted; i++, logits += r->classes) {
        const int32_t target = r->target[i];
        r->stats[i] = (smp__row_stats){0, 1};
        if (target == SMP__IGNORED_TARGET)
            continue;
        SMP_TRY(check_target(r, i));
        float max = smp__max(logits, r->classes);
        float sum = smp__exp_sum(logits, max, r->classes);
        r->stats[i] = (smp__row_stats){max, sum};
        r->loss += log((double)sum) +
                   ((double)max - smoothed_logit(logits, r->classes, target, r->smoothing));
        r->count++;
        if (r->call->hits)
            add_hit(r->hits, (double)before_target(logits, r->classes, target, logits[target]));
    }
    return SMP_OK;
}

void smp__class_rows_end(const smp__class_rows *r)
{
    if (r->call->hits)
        memcpy(r->call->hits, r->hits, sizeof r->hits);
    *(float *)r->call->out[0] = r->count > 0 ? (float)(r->loss / (double)r->count) : 0;
}

void smp__class_rows_gradient(const smp__class_rows *r, int64_t padding, float scale,
                              float *dlogits)
{
    const float *logits = r->logits;
    float target_share = scale * (float)(1 - r->smoothing);
    float each_share = scale * (float)(r->smoothing / (double)(r->classes * r->devices));
    for (int64_t i = 0; i < r->counted; i++, logits += r->classes, dlogits += r->classes) {
        if (r->target[i] == SMP__IGNORED_TARGET) {
            memset(dlogits, 0, (size_t)r->classes * sizeof *dlogits);
            continue;
        }
        smp__exp_row(dlogits, logits, r->stats[i].max, r->classes);
        smp__scale(dlogits, scale / r->stats[i].sum, r->classes);
        const int64_t own = r->target[i] - first_class(r);
        if (own >= 0 && own < r->classes)
            dlogits[own] -= target_share;
        if (r->smoothing > 0)
            subtract(dlogits, each_share, r->classes);
    }
    memset(dlogits, 0, (size_t)(padding * r->classes) * sizeof *dlogits);
}

/* All rows of the micro-batch. */
static smp__class_rows rows_of(const smp_op_call *call)
{
    const int64_t counted =
        smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch - call->padding);
    smp__row_share *own = call->workspace;
    return (smp__class_rows){
        .call = call,
        .logits = call->in[SMP__LOGITS],  /* (B, .., V) */
        .target = call->in[SMP__TARGETS], /* (B, ..) */
        .stats = call->aux,               /* (B, ..) */
        .counted = counted,
        .classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS)),
        .devices = call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i,
        .smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f,
        .own = own,
        .shares = own ? own + counted : NULL,
    };
}

static smp_status forward(const smp_op_call *call)
{
    smp__class_rows rows = rows_of(call);
    SMP_TRY(smp__class_rows_add(&rows));
    smp__class_rows_end(&rows);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp__class_rows rows = rows_of(call);
    const int64_t all = smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch);
    if (!call->din[SMP__LOGITS])
        return SMP_OK;
    const int64_t count = smp__cross_entropy_counted(rows.target, rows.counted);
    smp__class_rows_gradient(&rows, all - rows.counted,
                             *call->dout[0] / (float)(count > 0 ? count : 1),
                             call->din[SMP__LOGITS]);
    return SMP_OK;
}

/* The classes of a device follow each other. */
static bool allows_classes(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                           int devices)
{
    (void)graph, (void)op, (void)devices;
    return choice.blocks == 1;
}

static const smp_split_rule SPLITS[] = {
    {"classes", .in = {SMP_CELL_LAST, SMP_CELL_WHOLE}, .out = SMP_CELL_WHOLE,
     .allows = allows_classes},
    {0},
};

/* With the head before it, where a sample's logits are more than a chunk. */
static const smp_op_kind *joins(const smp_graph *graph, const smp_op *op, const smp_op *before)
{
    const smp_tensor *logits = smp__in(graph, op, SMP__LOGITS);
    return before->kind == &smp__op_linear && logits->elements > SMP__CHUNK_LOGITS
               ? &smp__op_linear_cross_entropy
               : NULL;
}

const smp_op_kind smp__op_cross_entropy = {
    .name = "cross_entropy",
    .summary = "mean negative log likelihood of int32 targets; -1 is ignored",
    .sample = "inputs:\n"
              "  logits: {dtype: float32, shape: [4, 6]}\n"
              "  targets: {dtype: int32, shape: [4]}\n"
              "ops:\n"
              "  - {op: cross_entropy, name: op, in: [logits, targets], out: loss}\n",
    .min_in = 2,
    .max_in = 2,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .joins = joins,
    .cpu = {.forward = forward, .backward_input = backward_input},
    .index_range = index_range,
    .rows_counted = smp__cross_entropy_counted,
    .rows_in = SMP__TARGETS,
    .counts_hits = true,
};
