/* Interprets a stage's layout: forward calls, then backward instructions, on the values of one
 * micro-batch. Between operators the transport gets a chance to move data. */
#include "exec/job.h"

static void fill_call(const smp *s, int chunk, int microbatch, const smp__call *call,
                      smp_op_call *out)
{
    out->graph = s->graph;
    out->op = call->op;
    out->batch = s->batch;
    out->state = call->state;
    out->param = call->param;
    out->dparam = call->dparam;
    out->aux = smp__job_address(s, chunk, call->layout->aux, microbatch);
    out->seed = s->options.seed;
    out->step = s->step + 1;
    out->microbatch = (int64_t)s->comm.replica * s->microbatches + microbatch;
    out->training = s->training_call;
}

smp_status smp__stage_forward(smp *s, int chunk, int microbatch)
{
    const smp__chunk *stage = &s->chunk[chunk];
    for (int32_t i = 0; i < stage->layout->n_call; i++) {
        const smp__call *call = &stage->call[i];
        const void *in[SMP_OP_MAX_IN];
        smp_op_call args = {.in = in};
        fill_call(s, chunk, microbatch, call, &args);
        for (int32_t k = 0; k < call->op->n_in; k++)
            in[k] = smp__job_address(s, chunk, call->layout->in[k], microbatch);
        args.out = smp__job_address(s, chunk, call->layout->out, microbatch);
        args.workspace = smp__job_address(s, chunk, call->layout->forward_workspace, microbatch);
        SMP_TRY(call->kernels->forward(&args));
        SMP_TRY(s->transport->progress(s->transport_context));
    }
    return SMP_OK;
}

static smp_status backward_call(smp *s, int chunk, int microbatch, const smp__call *call)
{
    const void *in[SMP_OP_MAX_IN];
    float *din[SMP_OP_MAX_IN];
    smp_op_call args = {.in = in, .din = din};
    fill_call(s, chunk, microbatch, call, &args);
    bool wanted = false;
    for (int32_t k = 0; k < call->op->n_in; k++) {
        in[k] = smp__job_address(s, chunk, call->layout->backward_in[k], microbatch);
        din[k] = smp__job_address(s, chunk, call->layout->din[k], microbatch);
        wanted = wanted || din[k];
    }
    args.out = smp__job_address(s, chunk, call->layout->backward_out, microbatch);
    args.dout = smp__job_address(s, chunk, call->layout->dout, microbatch);
    args.workspace = smp__job_address(s, chunk, call->layout->backward_workspace, microbatch);
    if (call->op->n_param > 0)
        SMP_TRY(call->kernels->backward_weight(&args));
    if (wanted)
        SMP_TRY(call->kernels->backward_input(&args));
    return SMP_OK;
}

smp_status smp__stage_backward(smp *s, int chunk, int microbatch)
{
    const smp__chunk *stage = &s->chunk[chunk];
    for (int32_t i = 0; i < stage->layout->n_instr; i++) {
        const smp_instr *instr = &stage->layout->instr[i];
        if (instr->kind == SMP_INSTR_BACKWARD) {
            SMP_TRY(backward_call(s, chunk, microbatch, &stage->call[instr->call]));
            SMP_TRY(s->transport->progress(s->transport_context));
            continue;
        }
        void *target = smp__job_address(s, chunk, instr->dst, microbatch);
        const void *source = smp__job_address(s, chunk, instr->src, microbatch);
        if (instr->kind == SMP_INSTR_COPY)
            s->device->copy(target, source, instr->elements * (int64_t)sizeof(float));
        else
            s->device->add(target, source, instr->elements);
    }
    return SMP_OK;
}
