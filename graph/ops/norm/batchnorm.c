/* batchnorm over the samples of a micro-batch and space, by channel: y = (x - mean) * rstd * weight
 * + bias, rstd = 1 / sqrt(variance + eps) with the biased variance (Ioffe and Szegedy 2015).
 * Evaluation takes the running statistics instead.
 *
 * Forward saves mean and variance of each channel. With xhat = (x - mean) * rstd:
 *   dx = rstd * weight * (dy - mean(dy) - xhat * mean(dy * xhat)),
 *   dweight += sum dy * xhat,  dbias += sum dy.
 * Padding is in no sum and gets no gradient.
 *
 * The running statistics are those of torch.nn.BatchNorm2d, with the unbiased variance: see
 * smp__running_share.
 *
 * With `sync` the statistics are those of micro-batch m of all replicas (torch.nn.SyncBatchNorm).
 * Forward adds up sum x and sum (x - r)^2 of each channel over the replicas, backward_input sum dy
 * and sum dy * (x - mean); the gradients of weight and bias are this replica's part. r is the
 * running mean, which all replicas have: so one round does where (x - mean)^2 would need the mean
 * first, and in double (mean - r)^2 can be taken off again. While r is 0 still, a mean of a
 * thousand deviations costs no more than floats do.
 *
 * Sums are of double lanes, element i of a row in lane i mod SMP_LANES. Forward reads a channel of
 * a micro-batch three times, from a cache if it fits one. O(elements). */
#include "graph/ops/norm/norm.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

static const smp_attr_desc ATTRS[] = {
    [SMP__BATCHNORM_EPS] = {"eps", SMP_ATTR_FLOAT, false, 1e-5, 0, 1, NULL},
    [SMP__BATCHNORM_MOMENTUM] = {"momentum", SMP_ATTR_FLOAT, false, 0.1, 0, 1, NULL},
    [SMP__BATCHNORM_SYNC] = {"sync", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    SMP_TRY(smp__infer_like_input(infer));
    const smp_shape shape = {1, {infer->in[0]->shape.dim[0]}};
    infer->n_param = 4;
    infer->param[SMP__BATCHNORM_WEIGHT] =
        (smp_param_decl){.role = "weight", .shape = shape, .init = SMP_INIT_ONE};
    infer->param[SMP__BATCHNORM_BIAS] =
        (smp_param_decl){.role = "bias", .shape = shape, .init = SMP_INIT_ZERO};
    infer->param[SMP__BATCHNORM_MEAN] = (smp_param_decl){
        .role = "running_mean", .shape = shape, .init = SMP_INIT_ZERO, .running = true};
    infer->param[SMP__BATCHNORM_VARIANCE] = (smp_param_decl){
        .role = "running_var", .shape = shape, .init = SMP_INIT_ONE, .running = true};
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const int64_t statistics = 2 * smp__in(graph, op, 0)->shape.dim[0];
    *needs = (smp_op_needs){
        .input_grad_in = 1,
        .weight_grad_in = 1,
        .input_grad_aux = true,
        .weight_grad_aux = true,
        .aux_bytes = (statistics + batch - 1) / batch * (int64_t)sizeof(float), /* of a sample */
    };
    if (op->attr[SMP__BATCHNORM_SYNC].i) {
        needs->forward_joint = needs->input_grad_joint = statistics;
        needs->workspace_bytes = statistics * (int64_t)sizeof(double);
    }
}

/* The GPU's sums are those of parts of a channel, (channels, parts, 2) in the workspace: enough
 * parts to fill a large device, none too short to pay. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    const int64_t channels = in->shape.dim[0], rows = smp__count(in, batch) / channels;
    const int64_t wanted = (1024 + channels - 1) / channels, most = (rows + 1023) / 1024;
    const int64_t parts =
        in->channels_last ? smp__channel_parts(1, rows, channels, (int)smp_dtype_bytes(in->dtype))
                          : (wanted < most ? wanted : most);
    needs(graph, op, batch, out);
    out->workspace_bytes = parts * channels * 2 * (int64_t)sizeof(float);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 8, 10, work);
    work->backward_weight_flops = work->forward_flops / 8 * 5;
}

/* One channel of a micro-batch: a row of `space` values in each sample, `stride` values apart. */
typedef struct channel {
    int64_t samples; /* without padding */
    int64_t stride, space;
} channel;

static channel channel_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    return (channel){call->batch - call->padding, in->elements, in->elements / in->shape.dim[0]};
}

static double fold(double lane[SMP_LANES])
{
    for (int width = SMP_LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

SMP_VECTOR static double sum(const float *x, channel c)
{
    double lane[SMP_LANES] = {0};
    for (int64_t s = 0; s < c.samples; s++, x += c.stride) {
        int64_t i = 0;
        for (; i + SMP_LANES <= c.space; i += SMP_LANES)
            for (int l = 0; l < SMP_LANES; l++)
                lane[l] += (double)x[i + l];
        for (int l = 0; i + l < c.space; l++)
            lane[l] += (double)x[i + l];
    }
    return fold(lane);
}

/* Sum of (x - mean)^2. */
SMP_VECTOR static double sum_squares(const float *x, double mean, channel c)
{
    double lane[SMP_LANES] = {0};
    for (int64_t s = 0; s < c.samples; s++, x += c.stride) {
        int64_t i = 0;
        for (; i + SMP_LANES <= c.space; i += SMP_LANES)
            for (int l = 0; l < SMP_LANES; l++)
                lane[l] += ((double)x[i + l] - mean) * ((double)x[i + l] - mean);
        for (int l = 0; i + l < c.space; l++)
            lane[l] += ((double)x[i + l] - mean) * ((double)x[i + l] - mean);
    }
    return fold(lane);
}

typedef struct gradient_sums {
    double dy, dot; /* of dy, of dy * (x - mean) */
} gradient_sums;

/* Half of the lanes: in registers, because gcc 12 would keep two arrays of them in memory. */
enum { HALF = SMP_LANES / 2 };
typedef float half __attribute__((vector_size(HALF * sizeof(float)), aligned(4), may_alias));
typedef double wide_half __attribute__((vector_size(HALF * sizeof(double))));

SMP_VECTOR static gradient_sums sum_gradients(const float *x, const float *dy, double mean,
                                              channel c)
{
    wide_half sum[2] = {{0}}, dot[2] = {{0}};
    const int64_t left = c.space % SMP_LANES, whole = c.space - left;
    for (int64_t s = 0; s < c.samples; s++, x += c.stride, dy += c.stride) {
        float tail[2][SMP_LANES] = {{0}};
        memcpy(tail[0], x + whole, (size_t)left * sizeof *x);
        memcpy(tail[1], dy + whole, (size_t)left * sizeof *dy);
        for (int64_t i = 0; i < c.space; i += SMP_LANES)
            for (int h = 0; h < 2; h++) {
                const float *from = (i < whole ? x + i : tail[0]) + h * HALF;
                const float *by = (i < whole ? dy + i : tail[1]) + h * HALF;
                const wide_half own = __builtin_convertvector(*(const half *)by, wide_half);
                sum[h] += own;
                dot[h] += own * (__builtin_convertvector(*(const half *)from, wide_half) - mean);
            }
    }
    double lane[2][SMP_LANES];
    memcpy(lane[0], sum, sizeof lane[0]);
    memcpy(lane[1], dot, sizeof lane[1]);
    return (gradient_sums){fold(lane[0]), fold(lane[1])};
}

/* Normalises `samples` rows, those of the padding too: what stands there must be finite afterwards.
 */
SMP_VECTOR static void normalize(float *restrict y, const float *restrict x, int64_t samples,
                                 channel c, float mean, float scale, float bias)
{
    for (int64_t s = 0; s < samples; s++, x += c.stride, y += c.stride)
        for (int64_t i = 0; i < c.space; i++)
            y[i] = (x[i] - mean) * scale + bias;
}

/* dx = scale * (dy - mean_dy - (x - mean) * slope) */
SMP_VECTOR static void input_gradient(float *restrict dx, const float *restrict x,
                                      const float *restrict dy, channel c, float mean, float scale,
                                      float mean_dy, float slope)
{
    for (int64_t s = 0; s < c.samples; s++, x += c.stride, dy += c.stride, dx += c.stride)
        for (int64_t i = 0; i < c.space; i++)
            dx[i] = scale * (dy[i] - mean_dy - (x[i] - mean) * slope);
}

static double rstd_of(const smp_op_call *call, float variance)
{
    return 1.0 / sqrt((double)variance + call->op->attr[SMP__BATCHNORM_EPS].f);
}

/* Padding alone has no statistics; it gets finite ones. */
static void measure(const float *x, channel c, float *mean, float *variance)
{
    const double n = (double)(c.samples * c.space);
    const double m = n > 0 ? sum(x, c) / n : 0;
    *mean = (float)m;
    *variance = n > 0 ? (float)(sum_squares(x, m, c) / n) : 1;
}

/* Values of a channel in all replicas that are normalised together. */
static double joint_count(const smp_op_call *call, channel c)
{
    return (double)((call->joint ? call->joint->samples : c.samples) * c.space);
}

/* Into aux: means (C), variances (C). */
static smp_status joint_statistics(const smp_op_call *call, channel c, int64_t channels)
{
    float *mean = call->aux, *variance = mean + channels;
    double *total = call->workspace, *squares = total + channels; /* (C) each */
    const double n = joint_count(call, c);
    for (int64_t k = 0; k < channels; k++) {
        total[k] = sum((const float *)call->in[0] + k * c.space, c);
        squares[k] = sum_squares((const float *)call->in[0] + k * c.space,
                                 (double)call->param[SMP__BATCHNORM_MEAN][k], c);
    }
    SMP_TRY(call->joint->sum(call->joint->context, total, 2 * channels));
    for (int64_t k = 0; k < channels; k++) {
        const double m = n > 0 ? total[k] / n : 0,
                     off = m - (double)call->param[SMP__BATCHNORM_MEAN][k];
        const double v = n > 0 ? squares[k] / n - off * off : 1;
        mean[k] = (float)m;
        variance[k] = v < 0 ? 0 : (float)v;
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    const channel c = channel_of(call);
    const int64_t channels = c.stride / c.space;
    const float *x = call->in[0];              /* (B, C, ..) */
    float *y = call->out[0], *aux = call->aux; /* aux: means (C), variances (C) */
    if (call->step.training && call->joint)
        SMP_TRY(joint_statistics(call, c, channels));
    for (int64_t k = 0; k < channels; k++, x += c.space, y += c.space) {
        if (call->step.training && !call->joint)
            measure(x, c, &aux[k], &aux[channels + k]);
        const float mean = call->step.training ? aux[k] : call->param[SMP__BATCHNORM_MEAN][k];
        const float variance =
            call->step.training ? aux[channels + k] : call->param[SMP__BATCHNORM_VARIANCE][k];
        normalize(y, x, call->batch, c, mean,
                  (float)(rstd_of(call, variance) * (double)call->param[SMP__BATCHNORM_WEIGHT][k]),
                  call->param[SMP__BATCHNORM_BIAS][k]);
    }
    return SMP_OK;
}

/* dx of one channel from its sums over what is normalised together, n values. */
static void channel_gradient(const smp_op_call *call, channel c, int64_t k, double n,
                             gradient_sums sums)
{
    const float *mean = call->aux;
    const double rstd = rstd_of(call, mean[c.stride / c.space + k]);
    const int64_t at = k * c.space;
    input_gradient(call->din[0] + at, (const float *)call->in[0] + at, call->dout[0] + at, c,
                   mean[k], (float)(rstd * (double)call->param[SMP__BATCHNORM_WEIGHT][k]),
                   (float)(sums.dy / n), (float)(sums.dot * rstd * rstd / n));
}

static gradient_sums own_gradients(const smp_op_call *call, channel c, int64_t k)
{
    const float *mean = call->aux;
    const int64_t at = k * c.space;
    return sum_gradients((const float *)call->in[0] + at, call->dout[0] + at, (double)mean[k], c);
}

static smp_status joint_gradient(const smp_op_call *call, channel c, int64_t channels)
{
    double *dy = call->workspace, *dot = dy + channels; /* (C) each */
    for (int64_t k = 0; k < channels; k++) {
        const gradient_sums own = own_gradients(call, c, k);
        dy[k] = own.dy;
        dot[k] = own.dot;
    }
    SMP_TRY(call->joint->sum(call->joint->context, dy, 2 * channels));
    for (int64_t k = 0; c.samples > 0 && k < channels; k++)
        channel_gradient(call, c, k, joint_count(call, c), (gradient_sums){dy[k], dot[k]});
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const channel c = channel_of(call);
    const int64_t channels = c.stride / c.space;
    float *dx = call->din[0];
    if (!dx)
        return SMP_OK;
    memset(dx + c.samples * c.stride, 0, (size_t)(call->padding * c.stride) * sizeof *dx);
    if (call->joint)
        return joint_gradient(call, c, channels);
    for (int64_t k = 0; c.samples > 0 && k < channels; k++)
        channel_gradient(call, c, k, joint_count(call, c), own_gradients(call, c, k));
    return SMP_OK;
}

double smp__running_share(const smp_op_call *call, double momentum)
{
    const smp_op_joint *joint = call->joint;
    const int64_t following = joint ? joint->following : call->step.following;
    return momentum * pow(1 - momentum, (double)following) / (double)(joint ? joint->replicas : 1);
}

static smp_status backward_weight(const smp_op_call *call)
{
    const channel c = channel_of(call);
    const int64_t channels = c.stride / c.space;
    const double n = joint_count(call, c), unbiased = n > 1 ? n / (n - 1) : 1;
    const double share = smp__running_share(call, call->op->attr[SMP__BATCHNORM_MOMENTUM].f);
    const float *mean = call->aux, *variance = mean + channels;
    for (int64_t k = 0; n > 0 && k < channels; k++) {
        const gradient_sums sums = own_gradients(call, c, k);
        call->dparam[SMP__BATCHNORM_WEIGHT][k] += (float)(sums.dot * rstd_of(call, variance[k]));
        call->dparam[SMP__BATCHNORM_BIAS][k] += (float)sums.dy;
        call->dparam[SMP__BATCHNORM_MEAN][k] +=
            (float)(share * ((double)mean[k] - (double)call->param[SMP__BATCHNORM_MEAN][k]));
        call->dparam[SMP__BATCHNORM_VARIANCE][k] +=
            (float)(share * ((double)variance[k] * unbiased -
                             (double)call->param[SMP__BATCHNORM_VARIANCE][k]));
    }
    return SMP_OK;
}

/* The activation that reads it: which values it let through follows from x. */
static bool absorbs(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    (void)graph, (void)op;
    return next->kind == &smp__op_relu;
}

static bool fuses(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    return next->kind == &smp__op_relu && next->in[0] == op->out && op->out != graph->loss;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0, SMP_CELL_DIM0, SMP_CELL_DIM0}},
    {0},
};

const smp_op_kind smp__op_batchnorm = {
    .name = "batchnorm",
    .summary = "normalisation of each channel over the micro-batch and space, with weight and bias",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 4, 5]}\n"
              "ops:\n"
              "  - {op: batchnorm, name: op, in: x, out: y, momentum: 0.2}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .layout = smp__layout_alike,
    .split = SPLITS,
    .fuses = fuses,
    .absorbs = absorbs,
    .pairs_alike = true,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
};
