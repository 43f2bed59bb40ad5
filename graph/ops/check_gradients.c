/* Gradients against finite differences: graph/ops/check_gradients.h.
 *
 * What is differentiated is the sum of the outputs times random numbers, which are the gradients
 * that backward is given. A difference adds up only what changed of each output, in double, so that
 * its rounding is that of the outputs which an element reaches.
 *
 * Every part of a gradient, of up to PARTS, is first checked along one random direction: two
 * forward calls. A part that seems wrong is halved until one element is left. That one, and some
 * others, are checked alone, and only they decide: a gradient is right that lies between the
 * slopes to the left and to the right, up to TOLERANCE of the largest gradient. At a kink (relu,
 * a tie of max_pool) these differ, and any gradient between them is right; a jump (a router that
 * chooses another expert) makes one of them large. The step is the smallest one whose rounding
 * does not matter, so that a kink nearby is rarely within it; what fails there is tried with the
 * next one, as roundings are estimates. Where all elements that were looked at drown in roundings,
 * as those of a loss of many rows, the gradient is checked along itself. Complexity: some
 * 2 (PARTS + ALONE) forward calls a gradient. */
#include "graph/ops/check_gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/random.h"

enum { PARTS = 32, ALONE = 12, SUSPECTS = 4, FINEST = 11, COARSEST = 2, STEP = 3, ALIGNMENT = 64 };

#define TOLERANCE 1e-2
#define ROUNDINGS (16 * 0x1p-24) /* of an output, relative to it */
#define AMPLE_FLOPS 2e8          /* for a gradient: larger ops are looked at in fewer places */

typedef struct checking {
    const smp_graph *graph;
    const smp_op *op;
    const smp_op_kernels *cpu;
    int64_t batch;
    uint64_t seed;
    smp_op_needs needs;
    void *state, *aux, *workspace;
    void *in[SMP_OP_MAX_IN], *out[SMP_OP_MAX_OUT];
    float *param[SMP_OP_MAX_PARAM], *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    float *dout[SMP_OP_MAX_OUT],
        *base[SMP_OP_MAX_OUT]; /* base: outputs of the values as they are */
    int parts, alone;
} checking;

/* The values of an input or a weight, and their gradient. */
typedef struct target {
    float *value, *saved;
    const float *grad;
    int64_t n;
    double unit, largest; /* of the values, a power of two; of the gradient */
    bool steepest;        /* steps go where the gradient does, else anywhere */
} target;

static double random_of(uint64_t seed, uint64_t stream, uint64_t i)
{
    const uint64_t word = smp_random_mix(smp_random_mix(seed ^ stream << 40) + i);
    return 2.0 * smp_random_uniform((uint32_t)word) - 1.0;
}

static int64_t elements_of(const checking *c, int32_t tensor)
{
    return smp_tensor_bytes(c->graph, tensor, c->batch) / (int64_t)sizeof(float);
}

static bool is_float(const checking *c, int32_t tensor)
{
    return c->graph->tensor[tensor].dtype == SMP_F32;
}

/* So that sums of products are near 1; the power of two at or below it. */
static double weight_unit(const smp_param *param)
{
    const double summands =
        param->shape.n_dim < 2 ? 4.0 : (double)param->elements / (double)param->shape.dim[0];
    return exp2(floor(-0.5 * log2(fmax(summands, 1.0))));
}

static void *make_array(int64_t bytes, smp_status *status)
{
    const size_t size = ((size_t)bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *array = *status == SMP_OK ? aligned_alloc(ALIGNMENT, size) : NULL;
    if (array)
        memset(array, 0xff, size); /* what is not written is not a number */
    else if (*status == SMP_OK)
        *status = smp_fail_memory(size);
    return array;
}

static smp_status make_arrays(checking *c)
{
    smp_status status = SMP_OK;
    for (int i = 0; i < c->op->n_in; i++) {
        const int64_t bytes = smp_tensor_bytes(c->graph, c->op->in[i], c->batch);
        c->in[i] = make_array(bytes, &status);
        if (c->graph->tensor[c->op->in[i]].needs_grad)
            c->din[i] = make_array(bytes, &status);
    }
    for (int i = 0; i < c->op->n_param; i++) {
        const int64_t bytes = c->graph->param[c->op->param[i]].elements * (int64_t)sizeof(float);
        c->param[i] = make_array(bytes, &status);
        c->dparam[i] = make_array(bytes, &status);
    }
    for (int k = 0; k < c->op->n_out; k++) {
        const int64_t bytes = smp_tensor_bytes(c->graph, c->op->out + k, c->batch);
        c->out[k] = make_array(bytes, &status);
        c->base[k] = make_array(bytes, &status);
        if (is_float(c, c->op->out + k))
            c->dout[k] = make_array(bytes, &status);
    }
    c->aux = make_array(c->needs.aux_bytes * c->batch, &status);
    c->workspace = make_array(c->needs.workspace_bytes, &status);
    return status;
}

static void free_arrays(checking *c)
{
    for (int i = 0; i < SMP_OP_MAX_IN; i++) {
        free(c->in[i]);
        free(c->din[i]);
    }
    for (int i = 0; i < SMP_OP_MAX_PARAM; i++) {
        free(c->param[i]);
        free(c->dparam[i]);
    }
    for (int k = 0; k < SMP_OP_MAX_OUT; k++) {
        free(c->out[k]);
        free(c->base[k]);
        free(c->dout[k]);
    }
    free(c->aux);
    free(c->workspace);
}

static void fill_indices(const checking *c, int slot)
{
    int32_t *values = c->in[slot];
    int64_t min = 0, max = 0;
    if (!c->op->kind->index_range || !c->op->kind->index_range(c->graph, c->op, slot, &min, &max) ||
        max < min)
        min = max = 0;
    for (int64_t i = 0, n = elements_of(c, c->op->in[slot]); i < n; i++)
        values[i] = (int32_t)(min + (int64_t)(0.5 * (1.0 + random_of(c->seed, 100 + slot, i)) *
                                              (double)(max - min + 1)));
}

/* So that no output goes unseen. */
static float far_from_zero(double x)
{
    return (float)(0.5 * (x < 0.0 ? x - 1.0 : x + 1.0));
}

/* Inputs lie in [-1, 1), matrices around 0, vectors (biases, scales, variances) above it. */
static void fill_arrays(checking *c)
{
    for (int slot = 0; slot < c->op->n_in; slot++) {
        float *values = c->in[slot];
        if (!is_float(c, c->op->in[slot]))
            fill_indices(c, slot);
        else
            for (int64_t i = 0, n = elements_of(c, c->op->in[slot]); i < n; i++)
                values[i] = (float)random_of(c->seed, (uint64_t)slot, (uint64_t)i);
    }
    for (int slot = 0; slot < c->op->n_param; slot++) {
        const smp_param *param = &c->graph->param[c->op->param[slot]];
        const double unit = weight_unit(param), middle = param->shape.n_dim < 2 ? 2.0 : 0.0;
        for (int64_t i = 0; i < param->elements; i++)
            c->param[slot][i] =
                (float)(unit * (middle + random_of(c->seed, 200 + (uint64_t)slot, (uint64_t)i)));
    }
    for (int k = 0; k < c->op->n_out; k++)
        for (int64_t i = 0, n = elements_of(c, c->op->out + k); c->dout[k] && i < n; i++)
            c->dout[k][i] = far_from_zero(random_of(c->seed, 300 + (uint64_t)k, (uint64_t)i));
}

typedef struct pointers {
    const void *in[SMP_OP_MAX_IN];
    void *out[SMP_OP_MAX_OUT];
} pointers;

/* With the inputs and outputs in the masks; the others are NULL. */
static smp_op_call make_call(const checking *c, uint32_t ins, uint32_t outs, bool aux, pointers *p)
{
    for (int i = 0; i < c->op->n_in; i++)
        p->in[i] = ins >> i & 1 ? c->in[i] : NULL;
    for (int k = 0; k < c->op->n_out; k++)
        p->out[k] = outs >> k & 1 ? c->out[k] : NULL;
    return (smp_op_call){
        .graph = c->graph,
        .op = c->op,
        .batch = c->batch,
        .state = c->state,
        .in = p->in,
        .out = p->out,
        .param = (const float *const *)c->param,
        .aux = aux ? c->aux : NULL,
        .workspace = c->workspace,
        .dout = (const float *const *)c->dout,
        .din = c->din,
        .dparam = c->dparam,
        .step = {
            .training = true, .seed = c->seed, .turn = smp_op_turn(1, 0), .samples = c->batch}};
}

static smp_status run_forward(const checking *c)
{
    pointers p;
    const smp_op_call call =
        make_call(c, ~0u, ~0u, c->needs.aux_bytes > 0 && !c->needs.aux_of_backward, &p);
    return c->cpu->forward(&call);
}

static smp_status run_backward_input(const checking *c)
{
    pointers p;
    if (c->op->kind->passes_dout) {
        for (int i = 0; i < c->op->n_in; i++)
            if (c->din[i])
                memcpy(c->din[i], c->dout[0],
                       (size_t)smp_tensor_bytes(c->graph, c->op->in[i], c->batch));
        return SMP_OK;
    }
    if (!c->cpu->backward_input)
        return SMP_OK;
    const smp_op_call call = make_call(c, c->needs.input_grad_in, c->needs.input_grad_out,
                                       c->needs.input_grad_aux || c->needs.aux_of_backward, &p);
    return c->cpu->backward_input(&call);
}

static smp_status run_backward_weight(const checking *c)
{
    pointers p;
    if (!c->cpu->backward_weight || c->op->n_param == 0)
        return SMP_OK;
    const smp_op_call call = make_call(c, c->needs.weight_grad_in, 0,
                                       c->needs.weight_grad_aux || c->needs.aux_of_backward, &p);
    return c->cpu->backward_weight(&call);
}

/* What a step in a direction makes of the sum, and how far roundings alone move that. */
typedef struct change {
    double sum, roundings;
} change;

static smp_status find_change(const checking *c, change *out)
{
    double sum = 0.0, squares = 0.0;
    SMP_TRY(run_forward(c));
    for (int k = 0; k < c->op->n_out; k++) {
        const float *now = c->out[k], *before = c->base[k];
        for (int64_t i = 0, n = elements_of(c, c->op->out + k); c->dout[k] && i < n; i++) {
            const double most =
                fmax(fabs((double)now[i]), fabs((double)before[i])) * (double)c->dout[k][i];
            sum += ((double)now[i] - (double)before[i]) * (double)c->dout[k][i];
            squares += now[i] != before[i] ? most * most : 0.0;
        }
    }
    *out = (change){sum, ROUNDINGS * sqrt(squares)};
    return SMP_OK;
}

/* Elements [begin, end) of a target go this way by the step, in turn and back. */
static double sign_of(const checking *c, const target *t, int64_t begin, int64_t end, int64_t i)
{
    if (t->steepest)
        return t->grad[i] < 0.0f ? -1.0 : 1.0;
    return end - begin == 1 || random_of(c->seed, 400, (uint64_t)i) < 0.0 ? 1.0 : -1.0;
}

/* The slopes on both sides, of which low <= high, and their roundings. */
typedef struct slopes {
    double low, high, roundings;
} slopes;

static smp_status find_slopes(const checking *c, const target *t, int64_t begin, int64_t end,
                              double step, slopes *out)
{
    change side[2];
    for (int way = 0; way < 2; way++) {
        memcpy(t->saved, t->value + begin, (size_t)(end - begin) * sizeof(float));
        for (int64_t i = begin; i < end; i++)
            t->value[i] += (float)((way ? -step : step) * sign_of(c, t, begin, end, i));
        const smp_status status = find_change(c, &side[way]);
        memcpy(t->value + begin, t->saved, (size_t)(end - begin) * sizeof(float));
        SMP_TRY(status);
    }
    const double right = side[0].sum / step, left = -side[1].sum / step;
    *out = (slopes){fmin(left, right), fmax(left, right),
                    fmax(side[0].roundings, side[1].roundings) / step};
    return SMP_OK;
}

/* The derivatives of elements along their direction: what the gradient says, what the differences
 * do, and how far that is from them over `scale` or the slope. */
typedef struct judgement {
    bool told, wrong; /* wrong: further off than roundings explain */
    double error, got, expected;
} judgement;

static smp_status judge_values(const checking *c, const target *t, int64_t begin, int64_t end,
                               double scale, judgement *out)
{
    *out = (judgement){.error = INFINITY};
    for (int64_t i = begin; i < end; i++)
        out->got += sign_of(c, t, begin, end, i) * (double)t->grad[i];
    for (int k = FINEST, tried = 0; k >= COARSEST && tried < 2; k -= STEP) {
        slopes s;
        SMP_TRY(find_slopes(c, t, begin, end, ldexp(t->unit, -k), &s));
        const double most = fmax(scale, fmax(fabs(s.low), fabs(s.high)));
        const bool still = s.roundings == 0.0; /* nothing changed */
        if (!(s.roundings <= TOLERANCE / 2 * most) || (still && out->got != 0.0 && k > COARSEST))
            continue;
        const double near = fmin(fmax(out->got, s.low), s.high);
        const double beyond = fabs(out->got - near);
        const double error = most > 0.0 ? beyond / most : 0.0;
        tried++;
        out->told = true;
        out->wrong = beyond > TOLERANCE * most + s.roundings;
        if (error < out->error) {
            out->error = error;
            out->expected = near;
        }
        if (!out->wrong)
            break;
    }
    return SMP_OK;
}

static double length_of(const target *t, int64_t begin, int64_t end)
{
    double squares = 0.0;
    for (int64_t i = begin; i < end; i++)
        squares += (double)t->grad[i] * (double)t->grad[i];
    return sqrt(squares);
}

/* One element alone: the worst one so far is kept. */
static smp_status check_element(const checking *c, const target *t, int64_t i,
                                smp_gradient_check *out)
{
    judgement j;
    SMP_TRY(judge_values(c, t, i, i + 1, t->largest, &j));
    const bool before = out->verdict == SMP_GRADIENT_WRONG;
    if (!j.told || before > j.wrong ||
        (before == j.wrong && out->element >= 0 && j.error <= out->error))
        return SMP_OK;
    out->element = i;
    out->error = j.error;
    out->got = j.got;
    out->expected = j.expected;
    out->verdict = j.wrong ? SMP_GRADIENT_WRONG : SMP_GRADIENT_RIGHT;
    return SMP_OK;
}

/* Halves a part, of which something seems wrong, to one element. */
static smp_status find_suspect(const checking *c, const target *t, int64_t begin, int64_t end,
                               int64_t *out)
{
    while (end - begin > 1) {
        const int64_t middle = begin + (end - begin) / 2;
        judgement j[2];
        SMP_TRY(judge_values(c, t, begin, middle, length_of(t, begin, middle), &j[0]));
        SMP_TRY(judge_values(c, t, middle, end, length_of(t, middle, end), &j[1]));
        const bool second = j[1].told && (!j[0].told || j[1].error > j[0].error);
        begin = second ? middle : begin;
        end = second ? end : middle;
    }
    *out = begin;
    return SMP_OK;
}

static smp_status check_parts(const checking *c, const target *t, smp_gradient_check *out)
{
    const int64_t parts = t->n < c->parts ? t->n : c->parts;
    for (int64_t p = 0, suspects = 0; p < parts && suspects < SUSPECTS; p++) {
        const int64_t begin = t->n * p / parts, end = t->n * (p + 1) / parts;
        int64_t suspect;
        judgement j;
        SMP_TRY(judge_values(c, t, begin, end, length_of(t, begin, end), &j));
        if (!j.wrong)
            continue;
        suspects++;
        SMP_TRY(find_suspect(c, t, begin, end, &suspect));
        SMP_TRY(check_element(c, t, suspect, out));
    }
    return SMP_OK;
}

/* Values that are not numbers were not written, or are wrong wherever they come from. */
static bool find_largest(target *t, smp_gradient_check *out)
{
    t->largest = 0.0;
    for (int64_t i = 0; i < t->n; i++) {
        if (!isfinite(t->grad[i])) {
            *out = (smp_gradient_check){.of_param = out->of_param,
                                        .slot = out->slot,
                                        .verdict = SMP_GRADIENT_WRONG,
                                        .error = INFINITY,
                                        .element = i,
                                        .got = (double)t->grad[i],
                                        .expected = NAN};
            return false;
        }
        t->largest = fmax(t->largest, fabs((double)t->grad[i]));
    }
    return true;
}

/* All of it at once, where every single element is lost: that is what its size is. */
static smp_status check_steepest(const checking *c, target *t, smp_gradient_check *out)
{
    judgement j;
    double scale = 0.0;
    for (int64_t i = 0; i < t->n; i++)
        scale += fabs((double)t->grad[i]);
    t->steepest = true;
    SMP_TRY(judge_values(c, t, 0, t->n, scale, &j));
    if (!j.told)
        return SMP_OK;
    out->verdict = j.wrong ? SMP_GRADIENT_WRONG : SMP_GRADIENT_RIGHT;
    out->error = j.error;
    out->got = j.got;
    out->expected = j.expected;
    return SMP_OK;
}

static smp_status check_target(const checking *c, target *t, smp_gradient_check *out)
{
    out->element = -1;
    out->verdict = SMP_GRADIENT_UNKNOWN;
    if (!find_largest(t, out) || t->n == 0)
        return SMP_OK;
    smp_status status = SMP_OK;
    t->saved = make_array(t->n * (int64_t)sizeof(float), &status);
    if (status == SMP_OK)
        status = check_parts(c, t, out);
    const int64_t alone = t->n < c->alone ? t->n : c->alone;
    for (int64_t k = 0; k < alone && status == SMP_OK; k++) {
        const double place = (double)k + 0.5 * (1.0 + random_of(c->seed, 500, (uint64_t)k));
        const int64_t i = (int64_t)(place * (double)t->n / (double)alone);
        status = check_element(c, t, i < t->n ? i : t->n - 1, out);
    }
    if (status == SMP_OK && out->verdict == SMP_GRADIENT_UNKNOWN)
        status = check_steepest(c, t, out);
    free(t->saved);
    return status;
}

static smp_status check_inputs(const checking *c, smp_gradient_check *out, int *n)
{
    for (int slot = 0; slot < c->op->n_in; slot++) {
        target t = {.value = c->in[slot],
                    .grad = c->din[slot],
                    .n = elements_of(c, c->op->in[slot]),
                    .unit = 1.0};
        if (!t.grad)
            continue;
        out[*n] = (smp_gradient_check){.slot = slot};
        SMP_TRY(check_target(c, &t, &out[(*n)++]));
    }
    return SMP_OK;
}

/* Has a second backward with the same values added the same again? first: what was there. */
static bool is_added(const float *first, const float *now, int64_t n, double largest)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)now[i] - 2.0 * (double)first[i]) <= TOLERANCE * largest))
            return false;
    return true;
}

static bool is_trained(const smp_param *param)
{
    return !param->running && !param->frozen;
}

static smp_status check_weights(checking *c, float *const *first, smp_gradient_check *out, int *n)
{
    for (int slot = 0; slot < c->op->n_param; slot++) {
        const smp_param *param = &c->graph->param[c->op->param[slot]];
        target t = {.value = c->param[slot],
                    .grad = first[slot],
                    .n = param->elements,
                    .unit = weight_unit(param)};
        if (!is_trained(param))
            continue;
        smp_gradient_check *check = &out[(*n)++];
        *check = (smp_gradient_check){.of_param = true, .slot = slot};
        SMP_TRY(check_target(c, &t, check));
        if (check->verdict != SMP_GRADIENT_WRONG &&
            !is_added(first[slot], c->dparam[slot], t.n, t.largest))
            check->verdict = SMP_GRADIENT_NOT_ADDED;
    }
    return SMP_OK;
}

/* Gradients of the weights twice: into zeroes, which are kept in `first`, then on top of them. */
static smp_status find_weight_gradients(checking *c, float **first)
{
    smp_status status = SMP_OK;
    for (int slot = 0; slot < c->op->n_param && status == SMP_OK; slot++) {
        const int64_t bytes = c->graph->param[c->op->param[slot]].elements * (int64_t)sizeof(float);
        first[slot] = make_array(bytes, &status);
        memset(c->dparam[slot], 0, (size_t)bytes);
    }
    if (status == SMP_OK)
        status = run_backward_weight(c);
    for (int slot = 0; slot < c->op->n_param && status == SMP_OK; slot++)
        memcpy(first[slot], c->dparam[slot],
               (size_t)c->graph->param[c->op->param[slot]].elements * sizeof(float));
    return status == SMP_OK ? run_backward_weight(c) : status;
}

static smp_status run_base(checking *c)
{
    SMP_TRY(run_forward(c));
    for (int k = 0; k < c->op->n_out; k++) {
        const float *values = c->out[k];
        const int64_t n = elements_of(c, c->op->out + k);
        memcpy(c->base[k], values, (size_t)n * sizeof(float));
        for (int64_t i = 0; is_float(c, c->op->out + k) && i < n; i++)
            if (!isfinite(values[i]))
                return smp_fail_at(smp_op_where(c->graph, c->op),
                                   "op '%s' (%s): element %lld of its output is %g for inputs "
                                   "between -1 and 1",
                                   c->op->name, c->op->kind->name, (long long)i, (double)values[i]);
    }
    return SMP_OK;
}

static smp_status check_all(checking *c, smp_gradient_check *out, int *n)
{
    float *first[SMP_OP_MAX_PARAM] = {0};
    if (c->cpu->prepare)
        SMP_TRY(c->cpu->prepare(c->graph, c->op, c->batch, NULL, &c->state));
    smp_status status = run_base(c);
    if (status == SMP_OK)
        status = run_backward_input(c);
    if (status == SMP_OK)
        status = find_weight_gradients(c, first);
    if (status == SMP_OK)
        status = check_inputs(c, out, n);
    if (status == SMP_OK)
        status = check_weights(c, first, out, n);
    for (int slot = 0; slot < SMP_OP_MAX_PARAM; slot++)
        free(first[slot]);
    if (c->cpu->release)
        c->cpu->release(c->state);
    return status;
}

smp_status smp_op_check_gradients(const smp_graph *graph, const smp_op *op, int64_t batch,
                                  uint64_t seed, smp_gradient_check *out, int *n)
{
    checking c = {.graph = graph, .op = op, .cpu = &op->kind->cpu, .batch = batch, .seed = seed};
    smp_op_work work;
    *n = 0;
    if (op->n_in > SMP_OP_MAX_IN || op->n_param > SMP_OP_MAX_PARAM)
        return smp_fail_at(smp_op_where(graph, op), "op '%s': got %d inputs, expected at most %d",
                           op->name, (int)op->n_in, SMP_OP_MAX_IN);
    smp_op_needs_get(graph, op, batch, &c.needs);
    smp_op_work_get(graph, op, batch, &work);
    const double calls = AMPLE_FLOPS / fmax(work.forward_flops + work.forward_bytes, 1.0);
    c.parts = calls > 4 * PARTS ? PARTS : 4;
    c.alone = calls > 4 * ALONE ? ALONE : 4;
    smp_status status = make_arrays(&c);
    if (status == SMP_OK) {
        fill_arrays(&c);
        status = check_all(&c, out, n);
    }
    free_arrays(&c);
    return status;
}
