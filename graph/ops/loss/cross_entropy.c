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

typedef struct row_stats {
    float max, sum;
} row_stats;

/* What a device has of a row: its largest logit, the sum of exp(logit - max), the target's logit or
 * 0, and with label smoothing the sum of the logits. */
typedef struct row_share {
    float max, sum, target, total;
} row_share;

enum { SHARE = sizeof(row_share) / sizeof(float) };

static const smp_attr_desc ATTRS[] = {
    [SMP__CROSS_ENTROPY_SMOOTHING] = {"label_smoothing", SMP_ATTR_FLOAT, false, 0, 0, 1, NULL},
    [SMP__CROSS_ENTROPY_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_float(infer, SMP__LOGITS));
    SMP_TRY(smp_infer_dims(infer, SMP__LOGITS, 1, SMP_MAX_DIMS));
    const smp_tensor *logits = infer->in[SMP__LOGITS], *targets = infer->in[SMP__TARGETS];
    if (targets->dtype != SMP_I32)
        return smp_infer_fail(infer, "input '%s' is float, expected int32 targets", targets->name);
    smp_shape expected = logits->shape;
    expected.n_dim--;
    char got[128], want[128], of[128];
    if (!smp_shape_equal(&expected, &targets->shape))
        return smp_infer_fail(infer, "targets '%s' are %s, expected %s for logits %s",
                              targets->name, smp_shape_format(got, sizeof got, &targets->shape),
                              smp_shape_format(want, sizeof want, &expected),
                              smp_shape_format(of, sizeof of, &logits->shape));
    const int64_t devices = infer->attr[SMP__CROSS_ENTROPY_DEVICES].i, rows = targets->elements;
    if (smp_shape_elements(&(smp_shape){2, {rows, devices}}) < 0)
        return smp_infer_fail(infer, "devices: %lld for %lld rows are too many", (long long)devices,
                              (long long)rows);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){0};
    infer->out_batched = false;
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    const int64_t devices = op->attr[SMP__CROSS_ENTROPY_DEVICES].i;
    *needs = (smp_op_needs){
        .input_grad_in = 1u << SMP__LOGITS | 1u << SMP__TARGETS,
        .input_grad_aux = true,
        .aux_bytes = smp__in(graph, op, SMP__TARGETS)->elements * (int64_t)sizeof(row_stats),
        .workspace_bytes = devices > 1 ? (1 + devices) * rows * (int64_t)sizeof(row_share) : 0,
    };
}

/* The GPU saves the number of targets that count as well, after the rows, and adds the losses of
 * parts of the rows in the workspace: two doubles each. What devices have of the rows follows
 * there, and the targets' logits; with smoothing the means of the rows. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const int64_t rows = smp__count(smp__in(graph, op, SMP__TARGETS), batch);
    const int64_t parts = (rows + 1023) / 1024;
    needs(graph, op, batch, out);
    out->aux_bytes += (int64_t)sizeof(double);
    out->workspace_bytes += (parts < 256 ? parts : 256) * 2 * (int64_t)sizeof(double);
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

static int64_t rows_counted(const int32_t *target, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += target[i] != SMP__IGNORED_TARGET;
    return count;
}

/* Those of samples; the rest is padding. */
static int64_t counted_rows(const smp_op_call *call)
{
    return smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch - call->padding);
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
static int64_t first_class(const smp_op_call *call, int64_t classes)
{
    return call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i > 1 ? call->graph->device * classes : 0;
}

static smp_status check_target(const smp_op_call *call, int64_t row, int32_t target,
                               int64_t classes)
{
    if (target >= 0 && target < classes)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "op '%s' (cross_entropy): target %d at position %lld of the "
                    "micro-batch, expected 0 to %lld, or -1 to ignore it",
                    call->op->name, (int)target, (long long)row, (long long)classes - 1);
}

/* What this device has of the rows. */
static smp_status own_shares(const smp_op_call *call, int64_t first, int64_t classes,
                             row_share *out)
{
    const float *logits = call->in[SMP__LOGITS];
    const int32_t *target = call->in[SMP__TARGETS];
    const int64_t rows = counted_rows(call);
    const bool smooth = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f > 0;
    for (int64_t r = 0; r < rows; r++, logits += classes) {
        out[r] = (row_share){0};
        if (target[r] == SMP__IGNORED_TARGET)
            continue;
        SMP_TRY(check_target(call, r, target[r],
                             classes * call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i));
        const int64_t own = target[r] - first;
        out[r].max = smp__max(logits, classes);
        out[r].sum = smp__exp_sum(logits, out[r].max, classes);
        out[r].target = own >= 0 && own < classes ? logits[own] : 0;
        out[r].total = smooth ? smp__sum(logits, classes) : 0;
    }
    return SMP_OK;
}

/* all [devices][rows] -> one. */
static row_share join_shares(const row_share *all, int64_t rows, int64_t devices)
{
    row_share whole = all[0];
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
static smp_status count_hits(const smp_op_call *call, const smp_op_group *group, int64_t first,
                             int64_t classes, float *target_logit)
{
    const float *logits = call->in[SMP__LOGITS];
    const int32_t *target = call->in[SMP__TARGETS];
    const int64_t rows = counted_rows(call);
    float *before = target_logit;
    for (int64_t r = 0; r < rows; r++, logits += classes)
        before[r] = target[r] == SMP__IGNORED_TARGET
                        ? SMP_TOP
                        : (float)before_target(logits, classes, target[r] - first, target_logit[r]);
    SMP_TRY(group->all_reduce(group->context, before, rows));
    memset(call->hits, 0, SMP_OP_HITS * sizeof *call->hits);
    for (int64_t r = 0; r < rows; r++)
        add_hit(call->hits, (double)before[r]);
    return SMP_OK;
}

static smp_status forward_split(const smp_op_call *call)
{
    const int32_t *target = call->in[SMP__TARGETS];
    row_stats *stats = call->aux;
    const int64_t rows = counted_rows(call), devices = call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i;
    const int64_t classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS));
    const double smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f;
    const smp_op_group *group;
    SMP_TRY(smp__group_of(call, devices, &group));
    row_share *own = call->workspace, *all = own + rows;
    float *target_logit = (float *)own; /* once they are sent */
    double loss = 0;
    int64_t count = 0;
    SMP_TRY(own_shares(call, first_class(call, classes), classes, own));
    SMP_TRY(group->all_gather(group->context, (float *)own, (float *)all, rows * SHARE));
    for (int64_t r = 0; r < rows; r++) {
        stats[r] = (row_stats){0, 1};
        target_logit[r] = 0;
        if (target[r] == SMP__IGNORED_TARGET)
            continue;
        const row_share row = join_shares(all + r, rows, devices);
        double logit = (double)row.target, mean = (double)row.total / (double)(classes * devices);
        stats[r] = (row_stats){row.max, row.sum};
        target_logit[r] = row.target;
        loss += log((double)row.sum) + ((double)row.max - (logit + smoothing * (mean - logit)));
        count++;
    }
    *(float *)call->out[0] = count > 0 ? (float)(loss / (double)count) : 0;
    return call->hits ? count_hits(call, group, first_class(call, classes), classes, target_logit)
                      : SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    if (call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i > 1)
        return forward_split(call);
    const float *logits = call->in[SMP__LOGITS];    /* (B, .., V) */
    const int32_t *target = call->in[SMP__TARGETS]; /* (B, ..) */
    row_stats *stats = call->aux;                   /* (B, ..) */
    int64_t rows = counted_rows(call);
    int64_t classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS));
    double smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f;
    double loss = 0;
    int64_t count = 0, hits[SMP_OP_HITS] = {0};
    for (int64_t r = 0; r < rows; r++, logits += classes) {
        stats[r] = (row_stats){0, 1};
        if (target[r] == SMP__IGNORED_TARGET)
            continue;
        SMP_TRY(check_target(call, r, target[r], classes));
        float max = smp__max(logits, classes);
        float sum = smp__exp_sum(logits, max, classes);
        stats[r] = (row_stats){max, sum};
        loss += log((double)sum) +
                ((double)max - smoothed_logit(logits, classes, target[r], smoothing));
        count++;
        if (call->hits)
            add_hit(hits, (double)before_target(logits, classes, target[r], logits[target[r]]));
    }
    if (call->hits)
        memcpy(call->hits, hits, sizeof hits);
    *(float *)call->out[0] = count > 0 ? (float)(loss / (double)count) : 0;
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const float *logits = call->in[SMP__LOGITS];
    const int32_t *target = call->in[SMP__TARGETS];
    const row_stats *stats = call->aux;
    float *dlogits = call->din[SMP__LOGITS];
    int64_t rows = counted_rows(call);
    int64_t all = smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch);
    int64_t classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS));
    const int64_t devices = call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i;
    if (!dlogits)
        return SMP_OK;
    int64_t count = rows_counted(target, rows);
    float scale = *call->dout[0] / (float)(count > 0 ? count : 1);
    double smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f;
    float target_share = scale * (float)(1 - smoothing);
    float each_share = scale * (float)(smoothing / (double)(classes * devices));
    for (int64_t r = 0; r < rows; r++, logits += classes, dlogits += classes) {
        if (target[r] == SMP__IGNORED_TARGET) {
            memset(dlogits, 0, (size_t)classes * sizeof *dlogits);
            continue;
        }
        smp__exp_row(dlogits, logits, stats[r].max, classes);
        smp__scale(dlogits, scale / stats[r].sum, classes);
        const int64_t own = target[r] - first_class(call, classes);
        if (own >= 0 && own < classes)
            dlogits[own] -= target_share;
        if (smoothing > 0)
            subtract(dlogits, each_share, classes);
    }
    memset(dlogits, 0, (size_t)((all - rows) * classes) * sizeof *dlogits);
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
    .cpu = {.forward = forward, .backward_input = backward_input},
    .index_range = index_range,
    .rows_counted = rows_counted,
    .rows_in = SMP__TARGETS,
    .counts_hits = true,
};
