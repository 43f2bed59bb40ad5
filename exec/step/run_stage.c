/* Interprets a stage's layout on the values of one micro-batch: the forward calls of F, the
 * instructions of B or I and of W. Between operators the transport gets a chance to move data, and
 * so does the group of devices that compute them together. What was captured before the first step
 * (captures.h) is one operator here. */
#include "exec/step/run_stage.h"

#include "exec/state/device_wait.h"
#include "exec/state/updates.h"
#include "exec/step/captures.h"
#include "exec/step/cost_samples.h"
#include "exec/step/joint_sums.h"
#include "exec/inputs/loss_share.h"
#include "exec/step/messages.h"
#include "exec/group/op_group.h"
#include "exec/step/reduce.h"
#include "exec/step/stepping.h"
#include "exec/step/sum_list.h"

static const double MOVE_EVERY_S = 10e-6;

static void fill_call(smp *s, int microbatch, const smp__call *call, smp_op_call *out)
{
    out->graph = s->graph;
    out->op = call->op;
    out->batch = s->work->batch;
    out->padding = s->work->batch -
                   smp__job_samples(s, s->comm->replica, s->given->first_microbatch + microbatch);
    out->state = call->state;
    out->device = s->device->kernel_context(s->device_context);
    out->param = call->param;
    out->param16 = call->param16;
    out->dparam = call->dparam;
    out->step.training = s->given->training;
    out->step.seed = s->options->runtime.seed;
    if (call->op->kind->random)
        out->step.turn =
            smp_op_turn(s->step + 1, smp__job_microbatch(s, s->comm->replica, microbatch));
    out->step.samples = s->given->samples;
    out->step.following = smp__job_following(s, s->comm->replica, microbatch);
    out->joint = smp__joint_of(s, call->op, microbatch);
    out->group = s->stepping->tensor_group ? &s->stepping->tensor_group->group : NULL;
}

/* Arrays that a call points to. */
typedef struct operands {
    const void *in[SMP_OP_MAX_IN];
    void *out[SMP_OP_MAX_OUT];
    const float *dout[SMP_OP_MAX_OUT];
    float *din[SMP_OP_MAX_IN];
} operands;

/* The arguments of an op's forward call on the values that `at` names. */
static smp_op_call forward_args(smp *s, int chunk, int microbatch, const smp__call *call,
                                const smp_layout_redo *at, operands *of)
{
    smp_op_call args = {.in = of->in, .out = of->out};
    fill_call(s, microbatch, call, &args);
    for (int32_t k = 0; k < call->op->n_in; k++)
        of->in[k] = smp__job_address(s, chunk, at->in[k], microbatch);
    for (int32_t k = 0; k < call->op->n_out; k++)
        of->out[k] = smp__job_address(s, chunk, at->out[k], microbatch);
    args.aux = smp__job_address(s, chunk, at->aux, microbatch);
    args.workspace = smp__job_address(s, chunk, at->workspace, microbatch);
    return args;
}

/* Where the loss counts its hits, beside its value in the slot; NULL while the model is trained. */
static int64_t *hits_of(const smp *s, const smp_op_call *args)
{
    if (s->given->training || args->op != smp__counting_loss(s) || !args->op->kind->counts_hits)
        return NULL;
    return ((smp__loss_slot *)args->out[0])->hits;
}

/* at[0] is the call's; of a pair at[1] is that of the next one, which is done too. */
static smp_status forward_call(smp *s, int chunk, int microbatch, const smp__call *call,
                               const smp_layout_redo *at, bool pair)
{
    operands of[2];
    smp_op_call args = forward_args(s, chunk, microbatch, call, &at[0], &of[0]);
    args.hits = hits_of(s, &args);
    if (!pair)
        return call->kernels->forward(&args);
    smp_op_call next = forward_args(s, chunk, microbatch, call + 1, &at[1], &of[1]);
    return call->kernels->forward_fused(&args, &next);
}

/* The gradients of the outputs. */
static void set_douts(const smp *s, int chunk, int microbatch, const smp__call *call, operands *of,
                      smp_op_call *args)
{
    for (int32_t k = 0; k < call->op->n_out; k++)
        of->dout[k] = smp__job_address(s, chunk, call->layout->dout[k], microbatch);
    args->dout = of->dout;
}

/* What a device cannot begin is done at the beginning. */
static smp_status input_call(const smp__call *call, smp_instr_kind kind, const smp_op_call *args)
{
    const smp_op_kernels *kernels = call->kernels;
    const bool halves = kernels->backward_input_begin;
    if (kind == SMP_INSTR_END)
        return halves ? kernels->backward_input_end(args) : SMP_OK;
    return kind == SMP_INSTR_BEGIN && halves ? kernels->backward_input_begin(args)
                                             : kernels->backward_input(args);
}

/* backward_weight, or `backward`. Of the first micro-batch of a block accumulators hold nothing
 * yet. */
static smp_status weigh(smp *s, int microbatch, const smp__call *call, smp_op_call args,
                        smp_status (*kernel)(const smp_op_call *))
{
    const bool first = microbatch % smp__reduce_block_size(s) == 0;
    args.fresh = first && call->kernels->writes_fresh;
    for (int32_t k = 0; first && !args.fresh && k < call->op->n_param; k++)
        if (call->dparam[k])
            SMP_TRY(s->device->zero(s->device_context, call->dparam[k],
                                    s->graph->param[call->op->param[k]].elements *
                                        (int64_t)sizeof(float)));
    return kernel(&args);
}

/* The arguments of an op's call in B or I; *wanted: does it make gradients of inputs? */
static smp_op_call backward_args(smp *s, int chunk, int microbatch, const smp__call *call,
                                 operands *of, bool *wanted)
{
    smp_op_call args = {.in = of->in, .out = of->out, .din = of->din};
    fill_call(s, microbatch, call, &args);
    *wanted = false;
    for (int32_t k = 0; k < call->op->n_in; k++) {
        of->in[k] = smp__job_address(s, chunk, call->layout->backward_in[k], microbatch);
        of->din[k] = smp__job_address(s, chunk, call->layout->din[k], microbatch);
        *wanted = *wanted || of->din[k];
    }
    for (int32_t k = 0; k < call->op->n_out; k++)
        of->out[k] = smp__job_address(s, chunk, call->layout->backward_out[k], microbatch);
    set_douts(s, chunk, microbatch, call, of, &args);
    args.plus = smp__job_address(s, chunk, call->layout->plus, microbatch);
    args.aux = smp__job_address(s, chunk, call->layout->backward_aux, microbatch);
    args.workspace = smp__job_address(s, chunk, call->layout->backward_workspace, microbatch);
    return args;
}

/* backward_input of B or I or a half of it, in B after backward_weight; of a pair that of the call
 * before, too. */
static smp_status backward_call(smp *s, int chunk, int microbatch, const smp__call *call,
                                smp_instr_kind kind)
{
    operands of, of_before;
    bool wanted;
    const smp_op_call args = backward_args(s, chunk, microbatch, call, &of, &wanted);
    if (kind == SMP_INSTR_BACKWARD && smp_op_has_trained(s->graph, call->op)) {
        /* costs are told apart by halves, which have the same bits */
        if (wanted && !call->input_pair && call->kernels->backward && !s->stepping->cost_samples)
            return weigh(s, microbatch, call, args, call->kernels->backward);
        SMP_TRY(weigh(s, microbatch, call, args, call->kernels->backward_weight));
        SMP_TRY(smp__cost_mark(s, chunk, microbatch, (int)(call - s->work->chunk[chunk].call),
                               SMP_OP_BACKWARD_WEIGHT));
    }
    if (call->input_pair) {
        const smp_op_call before =
            backward_args(s, chunk, microbatch, call - 1, &of_before, &wanted);
        return call->kernels->backward_input_fused(&args, &before);
    }
    return wanted ? input_call(call, kind, &args) : SMP_OK;
}

/* backward_weight of W, or put off in B. */
static smp_status weight_call(smp *s, int chunk, int microbatch, const smp__call *call,
                              const smp_layout_weight *at)
{
    operands of = {.out = {NULL}, .din = {NULL}};
    smp_op_call args = {.in = of.in, .out = of.out, .din = of.din};
    fill_call(s, microbatch, call, &args);
    for (int32_t k = 0; k < call->op->n_in; k++)
        of.in[k] = smp__job_address(s, chunk, at->in[k], microbatch);
    set_douts(s, chunk, microbatch, call, &of, &args);
    args.aux = smp__job_address(s, chunk, at->aux, microbatch);
    args.workspace = smp__job_address(s, chunk, at->workspace, microbatch);
    return weigh(s, microbatch, call, args, call->kernels->backward_weight);
}

static smp_status sum(smp *s, int chunk, int microbatch, const smp_instr *instr)
{
    void *target = smp__job_address(s, chunk, instr->dst, microbatch);
    const void *source = smp__job_address(s, chunk, instr->src, microbatch);
    if (instr->kind == SMP_INSTR_ZERO)
        return s->device->zero(s->device_context, target,
                               instr->elements * smp_dtype_bytes(instr->dtype));
    if (instr->kind == SMP_INSTR_COPY)
        return s->device->copy(s->device_context, target, source,
                               instr->elements * smp_dtype_bytes(instr->dtype));
    return s->device->add(s->device_context, instr->dtype, target, source, instr->elements);
}

/* Does one kernel repeat this call and the next? */
static bool repeats_pair(const smp__chunk *stage, const smp__call *call)
{
    return call->pair && stage->layout->redo[call - stage->call].pair;
}

static smp_status run_instr(smp *s, int chunk, int microbatch, const smp_instr *instr)
{
    const smp__chunk *stage = &s->work->chunk[chunk];
    const smp__call *call = instr->call >= 0 ? &stage->call[instr->call] : NULL;
    switch (instr->kind) {
    case SMP_INSTR_BACKWARD:
    case SMP_INSTR_INPUT:
    case SMP_INSTR_BEGIN:
    case SMP_INSTR_END:
        return backward_call(s, chunk, microbatch, call, instr->kind);
    case SMP_INSTR_WEIGHT:
        return weight_call(s, chunk, microbatch, call, &stage->layout->weight[instr->call]);
    case SMP_INSTR_RECOMPUTE:
        return forward_call(s, chunk, microbatch, call, &stage->layout->redo[instr->call],
                            repeats_pair(stage, call));
    case SMP_INSTR_COPY:
    case SMP_INSTR_ADD:
    case SMP_INSTR_ZERO:
        break;
    }
    return sum(s, chunk, microbatch, instr);
}

static bool passes_gradient(const smp__call *call)
{
    for (int32_t k = 0; k < call->op->n_in; k++)
        if (call->layout->din[k].space != SMP_SPACE_NONE)
            return true;
    return false;
}

/* The call finds its weights as the last step leaves them. */
static smp_status await_weights(smp *s, const smp__call *call, bool pair)
{
    return smp__updates_wait(s, pair && call[1].updates > call->updates ? call[1].updates
                                                                        : call->updates);
}

/* MPI moves nothing unless it is called, and a call takes up to a microsecond (it yields the core
 * where ranks may outnumber cores): as much as a small operator. */
static smp_status move_messages(smp *s)
{
    if (!s->endpoint->context)
        return SMP_OK;
    const double now_s = smp_clock_s();
    if (now_s - s->stepping->moved_s < MOVE_EVERY_S)
        return SMP_OK;
    s->stepping->moved_s = now_s;
    return s->endpoint->transport->progress(s->endpoint->context);
}

/* After an operator: messages move on, and the host does not run away from the device. */
static smp_status after_operator(smp *s)
{
    SMP_TRY(smp__device_pace(s));
    SMP_TRY(smp__updates_look(s));
    SMP_TRY(smp__messages_look(s));
    SMP_TRY(smp__sum_lists_look(s));
    if (s->stepping->tensor_group)
        SMP_TRY(smp__op_group_look(s->stepping->tensor_group));
    return move_messages(s);
}

/* Whose time an instruction takes: a sum of gradients is of the last call whose gradients it may
 * be, forward again is nobody's. */
static smp_status mark_instr(smp *s, int chunk, int microbatch, const smp_instr *instr, int *call)
{
    int part = SMP_OP_BACKWARD_INPUT;
    if (!smp__cost_looks_at(s, microbatch))
        return SMP_OK;
    if (instr->kind == SMP_INSTR_RECOMPUTE)
        return smp__cost_mark_at(s, chunk, -1, 0);
    if (instr->call >= 0)
        *call = instr->call;
    else if (*call < 0)
        return SMP_OK; /* of the first call, then */
    if (instr->kind == SMP_INSTR_WEIGHT || !passes_gradient(&s->work->chunk[chunk].call[*call]))
        part = SMP_OP_BACKWARD_WEIGHT;
    return smp__cost_mark_at(s, chunk, *call, part);
}

/* What this rank has waited for others inside of actions. */
static double waited_s(const smp *s)
{
    return smp__spent_s(s->record, SMP__SPENT_JOINT_FORWARD) +
           smp__spent_s(s->record, SMP__SPENT_JOINT_OTHER) +
           (s->stepping->tensor_group ? s->stepping->tensor_group->waited_s : 0.0);
}

/* Forward again: a device's own time would need stamps around it. */
static smp_status recompute(smp *s, int chunk, int microbatch, const smp_instr *instr)
{
    if (!s->record || !s->device->host_memory)
        return run_instr(s, chunk, microbatch, instr);
    const double begin_s = smp_clock_s() - waited_s(s);
    SMP_TRY(run_instr(s, chunk, microbatch, instr));
    smp__spent_add(s->record, SMP__SPENT_RECOMPUTE, smp_clock_s() - waited_s(s) - begin_s);
    return SMP_OK;
}

/* Has the instruction done that of the pair's other call, which stands after it, too? */
static bool does_next(const smp *s, int chunk, const smp_instr *instr)
{
    const smp__chunk *stage = &s->work->chunk[chunk];
    const smp__call *call = instr->call >= 0 ? &stage->call[instr->call] : NULL;
    if (instr->kind == SMP_INSTR_BACKWARD || instr->kind == SMP_INSTR_INPUT)
        return call->input_pair;
    return instr->kind == SMP_INSTR_RECOMPUTE && repeats_pair(stage, call);
}

/* The op whose gradients of weights an instruction makes; NULL: it makes none. */
static const smp_op *weighed_op(const smp *s, int chunk, const smp_instr *instr)
{
    return instr->kind == SMP_INSTR_BACKWARD || instr->kind == SMP_INSTR_WEIGHT
               ? s->work->chunk[chunk].call[instr->call].op
               : NULL;
}

static const smp_instr *instructions(const smp *s, const smp__sequence *q)
{
    const smp_layout *layout = s->work->chunk[q->chunk].layout;
    return q->part == SMP__STAGE_WEIGHT ? layout->weight_instr : layout->instr;
}

int32_t smp__sequence_length(const smp *s, const smp__sequence *q)
{
    const smp_layout *layout = s->work->chunk[q->chunk].layout;
    return q->part == SMP__STAGE_FORWARD ? layout->n_call
           : q->part == SMP__STAGE_INPUT ? layout->n_instr
                                         : layout->n_weight_instr;
}

/* Has the call to run by itself what a fused kernel would keep to itself? */
static bool tap_parts_pair(const smp *s, int chunk, int call)
{
    return s->stepping->tap && s->stepping->tap->chunk == chunk && s->stepping->tap->call == call;
}

/* Enqueued after the call, the copy of micro-batch `microbatch` of a forward pass. */
static smp_status take_tap(smp *s, int chunk, int call, int microbatch)
{
    const smp__tap *tap = s->stepping->tap;
    if (!tap || tap->chunk != chunk || tap->call != call)
        return SMP_OK;
    const smp_layout_call *layout = s->work->chunk[chunk].call[call].layout;
    const int64_t place = s->given->first_microbatch + microbatch;
    return s->device->download(s->device_context, tap->values + place * tap->bytes,
                               smp__job_address(s, chunk, layout->out[tap->slot], microbatch),
                               tap->bytes);
}

static smp_status enqueue_forward(smp *s, const smp__sequence *q, int32_t i, int32_t *n)
{
    const smp__call *call = &s->work->chunk[q->chunk].call[i];
    const bool pair = call->pair && !tap_parts_pair(s, q->chunk, i) &&
                      !(call->op->kind->pairs_alike && smp__cost_looks_at(s, q->microbatch));
    smp_layout_redo at[2];
    SMP_TRY(await_weights(s, call, pair));
    for (int k = 0; k <= (int)pair; k++) {
        const smp_layout_call *layout = call[k].layout;
        at[k] = (smp_layout_redo){
            .in = layout->in,
            .out = layout->out,
            .aux = layout->aux,
            .workspace = layout->forward_workspace,
        };
    }
    SMP_TRY(forward_call(s, q->chunk, q->microbatch, call, at, pair));
    *n = 1 + pair;
    return take_tap(s, q->chunk, i + pair, q->microbatch);
}

smp_status smp__sequence_enqueue(smp *s, const smp__sequence *q, int32_t item, int32_t *n)
{
    if (q->part == SMP__STAGE_FORWARD)
        return enqueue_forward(s, q, item, n);
    const smp_instr *instr = &instructions(s, q)[item];
    *n = 1 + does_next(s, q->chunk, instr);
    return instr->kind == SMP_INSTR_RECOMPUTE ? recompute(s, q->chunk, q->microbatch, instr)
                                              : run_instr(s, q->chunk, q->microbatch, instr);
}

/* backward_weight exchanges nothing. */
static bool is_fixed(const smp *s, const smp_op *op, smp_op_part part)
{
    smp_op_work work;
    smp_op_work_get(s->graph, op, s->work->batch, &work);
    const bool exchanges = part == SMP_OP_FORWARD ? work.forward_exchange.messages > 0
                           : part == SMP_OP_BACKWARD_INPUT
                               ? work.backward_input_exchange.messages > 0
                               : false;
    return !op->kind->random && !exchanges;
}

bool smp__sequence_is_fixed(const smp *s, const smp__sequence *q, int32_t item)
{
    const smp__call *call = s->work->chunk[q->chunk].call;
    if (q->part == SMP__STAGE_FORWARD)
        return is_fixed(s, call[item].op, SMP_OP_FORWARD);
    const smp_instr *instr = &instructions(s, q)[item];
    if (instr->call < 0)
        return true; /* sums of gradients */
    const smp_op *op = call[instr->call].op;
    switch (instr->kind) {
    case SMP_INSTR_RECOMPUTE:
        return is_fixed(s, op, SMP_OP_FORWARD);
    case SMP_INSTR_WEIGHT:
        return is_fixed(s, op, SMP_OP_BACKWARD_WEIGHT);
    case SMP_INSTR_BACKWARD:
    case SMP_INSTR_INPUT:
        return is_fixed(s, op, SMP_OP_BACKWARD_INPUT);
    default:
        return false; /* the halves of an exchange */
    }
}

bool smp__sequence_starts_sums(const smp *s, const smp__sequence *q, int32_t item)
{
    if (q->part == SMP__STAGE_FORWARD)
        return false;
    const smp_op *op = weighed_op(s, q->chunk, &instructions(s, q)[item]);
    return op && op->n_param > 0 && smp__reduce_may_start(s, q->chunk, q->microbatch);
}

/* What was captured at once, or an item; *n: of so many items. */
static smp_status enqueue(smp *s, const smp__sequence *q, int32_t item, int32_t *n)
{
    SMP_TRY(smp__captures_replay(s, q, item, n));
    return *n > 0 ? SMP_OK : smp__sequence_enqueue(s, q, item, n);
}

static smp_status run_instructions(smp *s, const smp__sequence *q)
{
    const smp_instr *instr = instructions(s, q);
    const int32_t length = smp__sequence_length(s, q);
    int last_call = -1;
    SMP_TRY(smp__cost_mark(s, q->chunk, q->microbatch, -1, 0));
    for (int32_t i = 0, n; i < length; i += n) {
        SMP_TRY(enqueue(s, q, i, &n));
        for (int32_t k = i; k < i + n; k++) {
            const smp_op *op = weighed_op(s, q->chunk, &instr[k]);
            if (op)
                SMP_TRY(smp__reduce_weights(s, q->chunk, q->microbatch, op));
        }
        if (n > 1 || instr[i].call >= 0)
            SMP_TRY(after_operator(s));
        SMP_TRY(mark_instr(s, q->chunk, q->microbatch, &instr[i], &last_call));
    }
    return SMP_OK;
}

smp_status smp__stage_forward(smp *s, int chunk, int microbatch)
{
    const smp__sequence q = {SMP__STAGE_FORWARD, chunk, microbatch};
    const int32_t length = smp__sequence_length(s, &q);
    SMP_TRY(smp__cost_mark(s, chunk, microbatch, -1, 0));
    for (int32_t i = 0, n; i < length; i += n) {
        SMP_TRY(enqueue(s, &q, i, &n));
        SMP_TRY(after_operator(s));
        SMP_TRY(smp__cost_mark(s, chunk, microbatch, i, SMP_OP_FORWARD));
    }
    return SMP_OK;
}

smp_status smp__stage_input(smp *s, int chunk, int microbatch)
{
    return run_instructions(s, &(smp__sequence){SMP__STAGE_INPUT, chunk, microbatch});
}

smp_status smp__stage_weight(smp *s, int chunk, int microbatch)
{
    return run_instructions(s, &(smp__sequence){SMP__STAGE_WEIGHT, chunk, microbatch});
}

/* In a chunk whose other backwards are split, a whole one is its two halves. */
smp_status smp__stage_backward(smp *s, int chunk, int microbatch)
{
    SMP_TRY(smp__stage_input(s, chunk, microbatch));
    return smp__stage_weight(s, chunk, microbatch);
}
