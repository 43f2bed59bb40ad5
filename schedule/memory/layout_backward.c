/* Layout of a stage, backward half: ops in reverse graph order, each followed by the additions that
 * fold its input gradients into those of other consumers (partition/problem/flow.h gives the
 * order).
 *
 * Sums and their places: layout_sums.h. All received sums are there before the first instruction.
 * Forward calls to be repeated come first, their values living in the same way. A weight gradient
 * that is put off keeps what it reads until then; one that reads what the input gradient leaves
 * comes after it.
 * O(ops + edges) and the packing. */
#include "schedule/memory/layout_sums.h"

#include <stdlib.h>
#include <string.h>

#include "graph/split/overlap.h"
#include "schedule/memory/bytes.h"

/* One forward call again. */
static smp_status redo_call(smp__backward_build *b, int32_t i)
{
    smp__layout_build *base = b->base;
    smp_layout_redo *redo = &b->redo[i];
    const smp_op *op = &base->graph->op[base->call[i].op];
    smp_ref *in = base->measure ? b->backward_in[i]
                                : SMP_ARENA_NEW(base->layout->arena, smp_ref, (size_t)op->n_in);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    redo->in = in;
    redo->pair = smp__layout_pair_again(base, i);
    const bool second = i > 0 && smp__layout_pair_again(base, i - 1);
    const int64_t begin = (int64_t)b->n_instr - second;
    for (int32_t slot = 0; slot < op->n_in; slot++) {
        in[slot] = smp__layout_find(base, base->back, op->in[slot]);
        smp__work_extend(&b->work, in[slot], (int64_t)b->n_instr);
    }
    bool kept;
    int64_t aux = smp__layout_aux_bytes(base, i, &kept);
    int32_t first = smp__layout_first(base, i);
    for (int32_t k = 0; k < op->n_out; k++) {
        int64_t bytes = smp_tensor_bytes(base->graph, op->out + k, base->flow->batch);
        SMP_TRY(smp__backward_place(b, base->need_weight[first + k], bytes, begin,
                                    &base->back[first + k]));
    }
    redo->out = &base->back[first];
    if (aux > 0)
        SMP_TRY(smp__backward_place(b, smp__layout_aux_weight(base, i), aux, begin, &redo->aux));
    if (base->needs[i].workspace_bytes > 0)
        SMP_TRY(smp__work_add(&b->work, base->needs[i].workspace_bytes, begin, &redo->workspace));
    /* The row is that of the backward call, which reads some of them only. */
    for (int32_t slot = 0; slot < op->n_in && base->measure; slot++)
        in[slot] = (smp_ref){0};
    return smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_RECOMPUTE, .call = i});
}

/* What the backward call of B or I reads of the forward pass. */
static void find_reads(smp__backward_build *b, int32_t i)
{
    smp__layout_build *base = b->base;
    smp_layout_call *call = &base->call[i];
    const smp_op *op = &base->graph->op[call->op];
    const smp__reads *reads = &base->reads[i];
    uint32_t mask = reads->in | (base->split ? 0 : reads->weight_in);
    bool opaque = !op->kind->cpu.forward;
    for (int32_t slot = 0; slot < op->n_in; slot++)
        if (smp__reads_slot(mask, slot)) {
            b->backward_in[i][slot] = smp__layout_find(base, base->back, op->in[slot]);
            smp__work_extend(&b->work, b->backward_in[i][slot], (int64_t)b->n_instr);
        }
    for (int32_t k = 0; k < op->n_out; k++)
        if (reads->out >> k & 1) {
            b->backward_out[i][k] = base->back[smp__layout_first(base, i) + k];
            smp__work_extend(&b->work, b->backward_out[i][k], (int64_t)b->n_instr);
        }
    if (smp__layout_input_first(base, i))
        ; /* it has a place already */
    else if (reads->aux || opaque || (reads->weight_aux && !base->split))
        call->backward_aux = base->repeated[i] ? b->redo[i].aux : smp__layout_back(call->aux);
    smp__work_extend(&b->work, call->backward_aux, (int64_t)b->n_instr);
}

/* What the second of a pair writes, while the first still reads. */
static void begin_earlier(smp__backward_build *b, smp_ref ref)
{
    if (ref.space == SMP_SPACE_WORK)
        b->work.begin[ref.offset]--;
}

static smp_status place_input_gradients(smp__backward_build *b, int32_t i)
{
    smp__layout_build *base = b->base;
    smp_layout_call *call = &base->call[i];
    const smp_op *op = &base->graph->op[call->op];
    const int32_t n_in = op->n_in;
    const bool passes = smp_op_passes_dout(base->graph, op);
    smp_ref *din = base->din[i];
    for (int32_t slot = 0; slot < n_in; slot++)
        din[slot] = (smp_ref){0};
    for (int32_t slot = 0; slot < n_in && !passes; slot++)
        SMP_TRY(smp__sums_place(b, i, slot, &din[slot]));
    if (base->needs[i].workspace_bytes > 0)
        SMP_TRY(smp__work_add(&b->work, base->needs[i].workspace_bytes, (int64_t)b->n_instr,
                              &call->backward_workspace));
    if (i + 1 < base->layout->n_call && call[1].input_pair)
        begin_earlier(b, call->backward_workspace);
    if (smp__layout_input_first(base, i))
        SMP_TRY(smp__backward_place(b, true, base->needs[i].aux_bytes * base->flow->batch,
                                    (int64_t)b->n_instr, &call->backward_aux));
    /* Received sums may have been added since these buffers were placed: all live until the
     * call. */
    for (int32_t slot = 0; slot < n_in; slot++)
        smp__work_extend(&b->work, din[slot], (int64_t)b->n_instr);
    smp__work_extend(&b->work, call->backward_workspace, (int64_t)b->n_instr);
    smp__work_extend(&b->work, call->plus, (int64_t)b->n_instr);
    for (int32_t k = 0; k < smp__layout_n_out(base, i); k++)
        smp__work_extend(&b->work, b->dout[i][k], (int64_t)b->n_instr);
    find_reads(b, i);
    return SMP_OK;
}

/* The gradient of an output, which is complete. */
static smp_status find_output_gradient(smp__backward_build *b, int32_t i, int32_t tensor,
                                       smp_ref *dout)
{
    smp__layout_build *base = b->base;
    const smp_graph *graph = base->graph;
    int32_t f = b->home[base->local[tensor] - 1];
    if (f >= 0) {
        SMP_TRY(smp__sums_receive(b, f));
        *dout = b->state[f - b->fold_first].sum;
        if (dout->space == SMP_SPACE_BORDER)
            base->border[dout->index].in_weight |= base->split && b->in_weight[i];
        return SMP_OK;
    }
    *dout = (smp_ref){0};
    if (!smp_dtype_is_float(graph->tensor[tensor].dtype))
        return SMP_OK;
    if (tensor == graph->loss || graph->loss < 0) {
        *dout = (smp_ref){.space = SMP_SPACE_LOSS_GRADIENT};
        return SMP_OK;
    }
    int64_t bytes = smp_tensor_bytes(graph, tensor, base->flow->batch);
    SMP_TRY(smp__backward_place(b, b->in_weight[i], bytes, (int64_t)b->n_instr, dout));
    return smp__sums_emit_sum(b, SMP_INSTR_ZERO, tensor, *dout, (smp_ref){0});
}

/* The weight gradient of a call, put off until now. */
static smp_status late_weight_call(smp__backward_build *b, int32_t i)
{
    smp__layout_build *base = b->base;
    const smp_layout_call *call = &base->call[i];
    const smp_op *op = &base->graph->op[call->op];
    const int64_t now = (int64_t)b->n_instr;
    smp_layout_weight *weight = &b->weight[i];
    weight->in = b->backward_in[i];
    weight->aux = call->backward_aux;
    if (base->needs[i].workspace_bytes > 0)
        SMP_TRY(smp__work_add(&b->work, base->needs[i].workspace_bytes, now, &weight->workspace));
    for (int32_t slot = 0; slot < op->n_in; slot++)
        if (smp__reads_slot(base->reads[i].weight_in, slot))
            smp__work_extend(&b->work, b->backward_in[i][slot], now);
    if (base->reads[i].weight_aux)
        smp__work_extend(&b->work, weight->aux, now);
    for (int32_t k = 0; k < op->n_out; k++)
        smp__work_extend(&b->work, b->dout[i][k], now);
    return smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_WEIGHT, .call = i});
}

/* All that the call has is its own until now. */
static void keep_call(smp__backward_build *b, int32_t i)
{
    const smp__layout_build *base = b->base;
    const smp_layout_call *call = &base->call[i];
    const smp_op *op = &base->graph->op[call->op];
    const int64_t now = (int64_t)b->n_instr;
    for (int32_t slot = 0; slot < op->n_in; slot++) {
        smp__work_extend(&b->work, base->din[i][slot], now);
        smp__work_extend(&b->work, b->backward_in[i][slot], now);
    }
    for (int32_t k = 0; k < op->n_out; k++) {
        smp__work_extend(&b->work, b->dout[i][k], now);
        smp__work_extend(&b->work, b->backward_out[i][k], now);
    }
    smp__work_extend(&b->work, call->backward_aux, now);
    smp__work_extend(&b->work, call->backward_workspace, now);
}

static bool is_beside(const smp__backward_build *b, int32_t exchange, int32_t i)
{
    return b->base->beside[i] == exchange;
}

/* The call itself: an exchange with what runs beside it, its weight gradient put off, or whole. */
static smp_status emit_call(smp__backward_build *b, int32_t i)
{
    const smp__layout_build *base = b->base;
    int32_t last = b->last_beside[i];
    if (base->split || (last == i && base->beside[i] >= 0))
        return smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_INPUT, .call = i});
    if (smp__layout_input_first(base, i)) {
        SMP_TRY(smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_INPUT, .call = i}));
        return late_weight_call(b, i);
    }
    if (last == i)
        return smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_BACKWARD, .call = i});
    SMP_TRY(smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_BEGIN, .call = i}));
    for (; last > i; last--)
        if (is_beside(b, i, last))
            SMP_TRY(late_weight_call(b, last));
    keep_call(b, i);
    return smp__sums_emit(b, (smp_instr){.kind = SMP_INSTR_END, .call = i});
}

/* The call of B or I. I has none of an op that passes no gradient on. */
static smp_status backward_call(smp__backward_build *b, int32_t i)
{
    smp__layout_build *base = b->base;
    const smp_op *op = &base->graph->op[base->call[i].op];
    bool wanted = !base->split;
    for (int32_t k = 0; k < op->n_out; k++)
        SMP_TRY(find_output_gradient(b, i, op->out + k, &b->dout[i][k]));
    for (int32_t slot = 0; slot < op->n_in && !wanted; slot++)
        wanted = b->slot_fold[b->slot_begin[i] + slot] >= 0;
    if (!wanted)
        return SMP_OK;
    const bool passes = smp_op_passes_dout(base->graph, op);
    if (!passes || (!base->split && smp__layout_weighs(base, i))) {
        SMP_TRY(place_input_gradients(b, i));
        SMP_TRY(emit_call(b, i));
    }
    for (int32_t slot = 0; slot < op->n_in; slot++)
        SMP_TRY(passes ? smp__sums_pass(b, i, slot, b->dout[i][0])
                       : smp__sums_add(b, i, slot, base->din[i][slot]));
    return SMP_OK;
}

/* Calls of W read nothing of the work area and share it for scratch, one after another. */
static smp_status weight_call(smp__backward_build *b, int32_t i, smp_instr *instr)
{
    smp__layout_build *base = b->base;
    smp_layout_call *call = &base->call[i];
    smp_layout_weight *weight = &b->weight[i];
    const smp__reads *reads = &base->reads[i];
    const smp_op *op = &base->graph->op[call->op];
    smp_ref *in = base->measure ? b->backward_in[i]
                                : SMP_ARENA_NEW(base->layout->arena, smp_ref, (size_t)op->n_in);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    weight->in = in;
    for (int32_t slot = 0; slot < op->n_in; slot++)
        if (smp__reads_slot(reads->weight_in, slot))
            in[slot] = smp__layout_find(base, base->back, op->in[slot]);
    if (smp__layout_input_first(base, i))
        weight->aux = call->backward_aux;
    else if (smp__layout_aux_weight(base, i))
        weight->aux = base->repeated[i] ? b->redo[i].aux : smp__layout_back(call->aux);
    int64_t bytes = 0;
    SMP_TRY(smp__bytes_add(&bytes, base->needs[i].workspace_bytes));
    if (bytes > 0)
        weight->workspace = (smp_ref){.space = SMP_SPACE_WORK};
    if (base->layout->weight_work_bytes < bytes)
        base->layout->weight_work_bytes = bytes;
    *instr = (smp_instr){.kind = SMP_INSTR_WEIGHT, .call = i};
    return SMP_OK;
}

static smp_status weight_calls(smp__backward_build *b)
{
    smp_layout *layout = b->base->layout;
    smp_instr unused;
    bool measure = b->base->measure;
    smp_instr *instr =
        SMP_ARENA_NEW(layout->arena, smp_instr, measure ? 0 : (size_t)layout->n_call);
    if (!instr)
        return SMP_ERR_NO_MEMORY;
    layout->weight_instr = instr;
    for (int32_t i = layout->n_call - 1; i >= 0; i--)
        if (smp__layout_weighs(b->base, i))
            SMP_TRY(weight_call(b, i, measure ? &unused : &instr[layout->n_weight_instr++]));
    return SMP_OK;
}

static smp_status finish(smp__backward_build *b)
{
    smp__layout_build *base = b->base;
    smp_layout *layout = base->layout;
    SMP_TRY(smp__work_pack(&b->work, &layout->backward_work_bytes));
    if (base->measure)
        return SMP_OK;
    smp_instr *instr = SMP_ARENA_NEW(layout->arena, smp_instr, b->n_instr);
    if (!instr)
        return SMP_ERR_NO_MEMORY;
    if (b->n_instr > 0)
        memcpy(instr, b->instr, b->n_instr * sizeof *instr);
    for (size_t k = 0; k < b->n_instr; k++) {
        smp__layout_resolve(&b->work, &instr[k].dst);
        smp__layout_resolve(&b->work, &instr[k].src);
    }
    for (int32_t i = 0; i < layout->n_call; i++) {
        smp_layout_call *call = &base->call[i];
        smp_layout_redo *redo = b->redo ? &b->redo[i] : NULL;
        smp__layout_resolve(&b->work, &call->backward_aux);
        smp__layout_resolve(&b->work, &call->backward_workspace);
        smp__layout_resolve(&b->work, &call->plus);
        for (int32_t slot = 0; slot < base->graph->op[call->op].n_in; slot++) {
            smp__layout_resolve(&b->work, &base->din[i][slot]);
            smp__layout_resolve(&b->work, &b->backward_in[i][slot]);
            if (redo && redo->in)
                smp__layout_resolve(&b->work, (smp_ref *)&redo->in[slot]);
        }
        for (int32_t k = 0; k < smp__layout_n_out(base, i); k++) {
            smp__layout_resolve(&b->work, &b->dout[i][k]);
            smp__layout_resolve(&b->work, &b->backward_out[i][k]);
            if (redo && redo->out)
                smp__layout_resolve(&b->work, (smp_ref *)&redo->out[k]);
        }
        if (b->late) {
            smp__layout_resolve(&b->work, &b->weight[i].aux);
            smp__layout_resolve(&b->work, &b->weight[i].workspace);
        }
        if (redo) {
            smp__layout_resolve(&b->work, &redo->aux);
            smp__layout_resolve(&b->work, &redo->workspace);
        }
    }
    layout->instr = instr;
    layout->n_instr = (int32_t)b->n_instr;
    return SMP_OK;
}

/* Does B put off weight gradients? Then base->beside says which. */
static bool find_late(smp__backward_build *b)
{
    smp__layout_build *base = b->base;
    const smp_flow *flow = base->flow;
    const int32_t n = base->layout->n_call;
    bool late = false;
    if (!base->split)
        smp_overlap_find(base->graph, &flow->op_list[flow->op_begin[base->stage]], n, flow->batch,
                         base->beside);
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = base->split ? -1 : base->beside[i];
        base->beside[i] =
            k >= 0 && flow->backward[base->call[i].op] && flow->backward[base->call[k].op] ? k : -1;
        b->last_beside[i] = i;
        if (base->beside[i] >= 0 && base->beside[i] < i)
            b->last_beside[base->beside[i]] = i;
        late |= base->beside[i] >= 0 || (!base->split && smp__layout_input_first(base, i) &&
                                         flow->backward[base->call[i].op]);
    }
    return late;
}

/* Arrays of the calls' addresses; whoever only measures needs those of one call at a time, and of
 * those that come back later. */
static smp_status allocate(smp__backward_build *b)
{
    smp__layout_build *base = b->base;
    smp_arena *arena = base->layout->arena;
    size_t n_call = (size_t)base->layout->n_call;
    b->backward_in = SMP_ARENA_NEW(base->scratch, smp_ref *, n_call);
    b->backward_out = SMP_ARENA_NEW(base->scratch, smp_ref *, n_call);
    b->dout = SMP_ARENA_NEW(base->scratch, smp_ref *, n_call);
    bool repeats = false;
    for (size_t i = 0; i < n_call; i++)
        repeats |= base->repeated[i];
    b->redo = repeats ? SMP_ARENA_NEW(arena, smp_layout_redo, n_call) : NULL;
    b->last_beside = SMP_ARENA_NEW(base->scratch, int32_t, n_call);
    if (!b->last_beside)
        return SMP_ERR_NO_MEMORY;
    b->late = find_late(b);
    b->weight = base->split || b->late ? SMP_ARENA_NEW(arena, smp_layout_weight, n_call) : NULL;
    if (!b->backward_in || !b->backward_out || !b->dout || (repeats && !b->redo) ||
        ((base->split || b->late) && !b->weight))
        return SMP_ERR_NO_MEMORY;
    base->layout->redo = b->redo;
    base->layout->weight = b->weight;
    const bool one = base->measure && !b->late;
    size_t most = 0;
    for (size_t i = 0; i < n_call && one; i++) {
        const smp_op *op = &base->graph->op[base->call[i].op];
        size_t n = 2 * ((size_t)op->n_in + (size_t)op->n_out);
        most = n > most ? n : most;
    }
    smp_ref *row = SMP_ARENA_NEW(base->scratch, smp_ref, most);
    if (!row)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_call; i++) {
        const smp_op *op = &base->graph->op[base->call[i].op];
        size_t n_in = (size_t)op->n_in, n_out = (size_t)op->n_out;
        smp_arena *home = base->measure ? base->scratch : arena;
        smp_ref *at = one ? row : SMP_ARENA_NEW(home, smp_ref, 2 * (n_in + n_out));
        if (!at)
            return SMP_ERR_NO_MEMORY;
        base->call[i].din = base->din[i] = at;
        base->call[i].backward_in = b->backward_in[i] = at + n_in;
        base->call[i].backward_out = b->backward_out[i] = at + 2 * n_in;
        base->call[i].dout = b->dout[i] = at + 2 * n_in + n_out;
    }
    return SMP_OK;
}

static smp_status layout_calls(smp__backward_build *b)
{
    smp__layout_build *base = b->base;
    SMP_TRY(allocate(b));
    SMP_TRY(smp__sums_open(b));
    for (int32_t i = 0; i < base->layout->n_call; i++)
        if (base->repeated[i])
            SMP_TRY(redo_call(b, i));
    for (int32_t i = base->layout->n_call - 1; i >= 0; i--)
        if (base->flow->backward[base->call[i].op])
            SMP_TRY(backward_call(b, i));
    if (base->split)
        SMP_TRY(weight_calls(b));
    return finish(b);
}

smp_status smp__layout_backward(smp__layout_build *base)
{
    smp__backward_build b = {.base = base, .work = {.memo = base->memo}};
    smp_status status = layout_calls(&b);
    free(b.instr);
    smp__work_free(&b.work);
    return status;
}
