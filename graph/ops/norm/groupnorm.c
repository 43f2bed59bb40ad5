/* groupnorm over x [C, ..]: the channels in `groups` groups of neighbours, each normalised by its
 * own mean and biased variance over channels and places, y = (x - mean) * rstd * weight[c] +
 * bias[c] (Wu and He, "Group Normalization", 2018). Every sample by itself, so nothing depends on
 * how a batch is cut.
 *
 * Forward saves mean and rstd of each group. With xhat = (x - mean) * rstd, g = dy * weight[c] and
 * means over the group:
 *   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),
 *   dweight[c] += sum dy * xhat,  dbias[c] += sum dy.
 * Sums are taken channel by channel: the weight then stands before them. O(B * C * places). */
#include "graph/ops/norm/norm.h"

#include <math.h>

#include "graph/math/vector.h"

typedef struct group_stats {
    float mean, rstd;
} group_stats;

static const smp_attr_desc ATTRS[] = {
    [SMP__GROUPNORM_GROUPS] = {"groups", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [SMP__GROUPNORM_EPS] = {"eps", SMP_ATTR_FLOAT, false, 1e-5, 0, 1, NULL},
    {0},
};

/* A sample is (groups, channels, places); `channels` are those of one group. */
typedef struct layout {
    int64_t groups, channels, places;
} layout;

static layout layout_of(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    int64_t groups = call->op->attr[SMP__GROUPNORM_GROUPS].i, channels = in->shape.dim[0];
    return (layout){groups, channels / groups, in->elements / channels};
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    SMP_TRY(smp__infer_like_input(infer));
    smp_shape shape = {1, {infer->in[0]->shape.dim[0]}};
    if (shape.dim[0] % infer->attr[SMP__GROUPNORM_GROUPS].i != 0)
        return smp_infer_fail(infer, "groups: %lld does not divide the %lld channels",
                              (long long)infer->attr[SMP__GROUPNORM_GROUPS].i,
                              (long long)shape.dim[0]);
    infer->n_param = 2;
    infer->param[0] = (smp_param_decl){.role = "weight", .shape = shape, .init = SMP_INIT_ONE};
    infer->param[1] = (smp_param_decl){.role = "bias", .shape = shape, .init = SMP_INIT_ZERO};
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)batch;
    *needs = (smp_op_needs){
        .input_grad_in = 1,
        .weight_grad_in = 1,
        .input_grad_aux = true,
        .weight_grad_aux = true,
        .aux_bytes = op->attr[SMP__GROUPNORM_GROUPS].i * (int64_t)sizeof(group_stats),
    };
}

/* Where channels lie last the GPU's sums are those of parts of a channel, (B, channels, parts, 2)
 * in the workspace. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    const int64_t channels = in->shape.dim[0];
    needs(graph, op, batch, out);
    if (in->channels_last)
        out->workspace_bytes = smp__channel_parts(batch, in->elements / channels, channels,
                                                  (int)smp_dtype_bytes(in->dtype)) *
                               batch * channels * 2 * (int64_t)sizeof(float);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 8, 11, work);
    work->backward_weight_flops = work->forward_flops / 8 * 5;
}

typedef struct gradient_sums {
    float dy, dot; /* of dy, of dy * (x - mean) */
} gradient_sums;

SMP_VECTOR static gradient_sums sum_gradients(const float *x, const float *dy, float mean,
                                              int64_t n)
{
    smp__lanes sum = {0}, dot = {0};
    float tail_dy[SMP_LANES] = {0}, tail_x[SMP_LANES] = {0}, lane[2][SMP_LANES];
    int64_t i = 0;
    for (; i + SMP_LANES <= n; i += SMP_LANES) {
        const smp__lanes own = *(const smp__loose *)(dy + i);
        sum += own;
        dot += own * (*(const smp__loose *)(x + i) - mean);
    }
    for (int l = 0; i + l < n; l++) {
        tail_dy[l] = dy[i + l];
        tail_x[l] = x[i + l] - mean;
    }
    for (int l = 0; l < SMP_LANES; l++) {
        lane[0][l] = sum[l] + tail_dy[l];
        lane[1][l] = dot[l] + tail_dy[l] * tail_x[l];
    }
    return (gradient_sums){smp__fold(lane[0]), smp__fold(lane[1])};
}

static group_stats stats_of(const layout *at, const float *x, float eps)
{
    const float n = (float)(at->channels * at->places);
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < at->channels; c++)
        sum += smp__sum(x + c * at->places, at->places);
    const float mean = sum / n;
    for (int64_t c = 0; c < at->channels; c++)
        squares += smp__sum_squares(x + c * at->places, mean, at->places);
    return (group_stats){mean, 1.0f / sqrtf(squares / n + eps)};
}

/* The places of one channel. */
SMP_VECTOR static void normalize(float *restrict y, const float *restrict x, group_stats stats,
                                 float weight, float bias, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - stats.mean) * stats.rstd * weight + bias;
}

static smp_status forward(const smp_op_call *call)
{
    const layout at = layout_of(call);
    const float *x = call->in[0]; /* (B, groups, channels, places) */
    float *out = call->out[0];
    group_stats *stats = call->aux; /* (B, groups) */
    const float eps = (float)call->op->attr[SMP__GROUPNORM_EPS].f;
    for (int64_t g = 0; g < call->batch * at.groups; g++) {
        const int64_t first = g % at.groups * at.channels;
        stats[g] = stats_of(&at, x, eps);
        for (int64_t c = first; c < first + at.channels; c++, x += at.places, out += at.places)
            normalize(out, x, stats[g], call->param[0][c], call->param[1][c], at.places);
    }
    return SMP_OK;
}

/* means[0]: of g, means[1]: of g times x normalised. */
SMP_VECTOR static void input_gradient(float *restrict dx, const float *restrict x,
                                      const float *restrict dy, group_stats stats, float weight,
                                      const float means[2], int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - stats.mean) * stats.rstd;
        dx[i] = stats.rstd * (dy[i] * weight - means[0] - xhat * means[1]);
    }
}

/* One group of one sample; weight: of its channels. */
static void group_gradient(const layout *at, float *dx, const float *x, const float *dy,
                           group_stats stats, const float *weight)
{
    const float n = (float)(at->channels * at->places);
    float means[2] = {0};
    for (int64_t c = 0; c < at->channels; c++) {
        const int64_t begin = c * at->places;
        const gradient_sums sums = sum_gradients(x + begin, dy + begin, stats.mean, at->places);
        means[0] += weight[c] * sums.dy;
        means[1] += weight[c] * sums.dot;
    }
    means[0] /= n;
    means[1] *= stats.rstd / n;
    for (int64_t c = 0; c < at->channels; c++) {
        const int64_t begin = c * at->places;
        input_gradient(dx + begin, x + begin, dy + begin, stats, weight[c], means, at->places);
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    const layout at = layout_of(call);
    const float *x = call->in[0];
    const group_stats *stats = call->aux;
    const int64_t size = at.channels * at.places;
    for (int64_t g = 0; call->din[0] && g < call->batch * at.groups; g++)
        group_gradient(&at, call->din[0] + g * size, x + g * size, call->dout[0] + g * size,
                       stats[g], call->param[0] + g % at.groups * at.channels);
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    const layout at = layout_of(call);
    const float *x = call->in[0];
    const group_stats *stats = call->aux;
    const int64_t channels = at.groups * at.channels;
    for (int64_t c = 0; c < channels; c++) {
        float weight_sum = 0, bias_sum = 0;
        for (int64_t b = 0; b < call->batch; b++) {
            const int64_t begin = (b * channels + c) * at.places;
            const group_stats s = stats[b * at.groups + c / at.channels];
            const gradient_sums sums =
                sum_gradients(x + begin, call->dout[0] + begin, s.mean, at.places);
            weight_sum += s.rstd * sums.dot;
            bias_sum += sums.dy;
        }
        call->dparam[0][c] += weight_sum;
        call->dparam[1][c] += bias_sum;
    }
    return SMP_OK;
}

static const smp_split_rule SPLITS[] = {
    {"channels", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << SMP__GROUPNORM_GROUPS},
    {0},
};

const smp_op_kind smp__op_groupnorm = {
    .name = "groupnorm",
    .summary = "normalisation of groups of channels, sample by sample, with weight and bias",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 3, 2]}\n"
              "ops:\n"
              "  - {op: groupnorm, name: op, in: x, out: y, groups: 2}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .layout = smp__layout_alike,
    .split = SPLITS,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
};
