/* See layout_sums.h. O(ops + edges). */
#include "schedule/memory/layout_sums.h"

#include "schedule/memory/bytes.h"

static smp_ref border_ref(const smp__backward_build *b, int32_t transfer)
{
    return (smp_ref){.space = SMP_SPACE_BORDER, .index = b->base->border_of[transfer]};
}

/* For each input slot and each output of the stage, the fold it belongs to. */
static smp_status index_folds(smp__backward_build *b)
{
    smp__layout_build *base = b->base;
    const smp_flow *flow = base->flow;
    int32_t n_call = base->layout->n_call, first = flow->fold_begin[base->stage];
    int32_t n_fold = flow->fold_begin[base->stage + 1] - first;
    b->fold_first = first;
    b->state = SMP_ARENA_NEW(base->scratch, smp__fold_state, (size_t)n_fold);
    b->home = SMP_ARENA_NEW(base->scratch, int32_t, (size_t)base->n_value);
    b->slot_begin = SMP_ARENA_NEW(base->scratch, int64_t, (size_t)n_call + 1);
    b->in_weight = SMP_ARENA_NEW(base->scratch, bool, (size_t)n_call);
    if (!b->state || !b->home || !b->slot_begin || !b->in_weight)
        return SMP_ERR_NO_MEMORY;
    for (int32_t v = 0; v < base->n_value; v++)
        b->home[v] = -1;
    for (int32_t i = 0; i < n_call; i++)
        b->slot_begin[i + 1] = b->slot_begin[i] + base->graph->op[base->call[i].op].n_in;
    size_t n_slot = (size_t)b->slot_begin[n_call];
    b->slot_fold = SMP_ARENA_NEW(base->scratch, int32_t, n_slot);
    b->slot_source = SMP_ARENA_NEW(base->scratch, int32_t, n_slot);
    if (!b->slot_fold || !b->slot_source)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_slot; i++)
        b->slot_fold[i] = -1;
    for (int32_t f = first; f < first + n_fold; f++) {
        const smp_fold *fold = &flow->fold[f];
        b->state[f - first].next = fold->source_begin;
        if (fold->transfer_out < 0)
            b->home[base->local[fold->tensor] - 1] = f;
        for (int32_t k = fold->source_begin; k < fold->source_end; k++) {
            const smp_fold_source *source = &flow->source[k];
            if (source->op < 0)
                continue;
            int32_t call = base->maker[base->local[base->graph->op[source->op].out] - 1];
            b->slot_fold[b->slot_begin[call] + source->slot] = f;
            b->slot_source[b->slot_begin[call] + source->slot] = k;
        }
    }
    return SMP_OK;
}

/* Is the gradient of what the input slot reads the very array of the output's gradient? */
static bool hands_on(const smp__backward_build *b, int32_t i, int32_t slot)
{
    const smp_flow *flow = b->base->flow;
    const int32_t f = b->slot_fold[b->slot_begin[i] + slot];
    const smp_graph *graph = b->base->graph;
    return f >= 0 && smp_op_passes_dout(graph, &graph->op[b->base->call[i].op]) &&
           flow->fold[f].transfer_out < 0 &&
           flow->fold[f].source_end - flow->fold[f].source_begin == 1;
}

/* Makers stand before readers. */
static void find_weight_reads(smp__backward_build *b)
{
    const smp__layout_build *base = b->base;
    for (int32_t i = 0; i < base->layout->n_call; i++) {
        const smp_op *op = &base->graph->op[base->call[i].op];
        b->in_weight[i] = smp__layout_weighs(base, i);
        for (int32_t slot = 0; slot < op->n_in && !b->in_weight[i]; slot++)
            b->in_weight[i] =
                hands_on(b, i, slot) && b->in_weight[base->maker[base->local[op->in[slot]] - 1]];
    }
}

smp_status smp__sums_open(smp__backward_build *b)
{
    SMP_TRY(index_folds(b));
    find_weight_reads(b);
    return SMP_OK;
}

smp_status smp__sums_emit(smp__backward_build *b, smp_instr instr)
{
    smp__work_extend(&b->work, instr.dst, (int64_t)b->n_instr);
    smp__work_extend(&b->work, instr.src, (int64_t)b->n_instr);
    if (!b->base->measure) {
        SMP_TRY(smp_array_reserve(&b->instr, &b->capacity, sizeof *b->instr, b->n_instr + 1));
        b->instr[b->n_instr] = instr;
    }
    b->n_instr++;
    return SMP_OK;
}

smp_status smp__sums_emit_sum(smp__backward_build *b, smp_instr_kind kind, int32_t tensor,
                              smp_ref dst, smp_ref src)
{
    int64_t bytes = smp_tensor_bytes(b->base->graph, tensor, b->base->flow->batch);
    smp_dtype dtype = b->base->graph->tensor[tensor].dtype;
    return smp__sums_emit(b, (smp_instr){.kind = kind,
                                         .call = -1,
                                         .dst = dst,
                                         .src = src,
                                         .elements = bytes / smp_dtype_bytes(dtype),
                                         .dtype = dtype});
}

smp_status smp__backward_place(smp__backward_build *b, bool weight, int64_t bytes, int64_t time,
                               smp_ref *ref)
{
    if (b->base->split && weight)
        return smp__layout_stash(b->base, SMP_BLOCK_GRAD, bytes, ref);
    return smp__work_add(&b->work, bytes, time, ref);
}

/* A place for the sum of a fold that stays in this stage, born at the next instruction. */
static smp_status place_own(smp__backward_build *b, int32_t f, smp_ref *ref)
{
    const int32_t tensor = b->base->flow->fold[f].tensor;
    const int32_t maker = b->base->maker[b->base->local[tensor] - 1];
    return smp__backward_place(b, b->in_weight[maker],
                               smp_tensor_bytes(b->base->graph, tensor, b->base->flow->batch),
                               (int64_t)b->n_instr, ref);
}

/* Where the sum of a fold lives. */
static smp_status place_sum(smp__backward_build *b, int32_t f)
{
    const smp_flow *flow = b->base->flow;
    const smp_fold *fold = &flow->fold[f];
    smp__fold_state *state = &b->state[f - b->fold_first];
    if (state->placed)
        return SMP_OK;
    state->placed = true;
    const smp_fold_source *source = &flow->source[fold->source_begin];
    if (fold->transfer_out >= 0 || source->transfer >= 0) {
        state->sum = border_ref(b, fold->transfer_out >= 0 ? fold->transfer_out : source->transfer);
        return SMP_OK;
    }
    return place_own(b, f, &state->sum);
}

/* What is added to a shared sum next is where the sum lives from then on. */
static smp_status add_to_shared(smp__backward_build *b, int32_t f, smp_ref own)
{
    smp__fold_state *state = &b->state[f - b->fold_first];
    const smp_ref shared = state->sum;
    state->sum = own;
    state->shared = false;
    return smp__sums_emit_sum(b, SMP_INSTR_ADD, b->base->flow->fold[f].tensor, own, shared);
}

smp_status smp__sums_receive(smp__backward_build *b, int32_t f)
{
    const smp_flow *flow = b->base->flow;
    const smp_fold *fold = &flow->fold[f];
    smp__fold_state *state = &b->state[f - b->fold_first];
    for (; state->next < fold->source_end && flow->source[state->next].transfer >= 0;
         state->next++) {
        SMP_TRY(place_sum(b, f));
        smp_ref from = border_ref(b, flow->source[state->next].transfer);
        bool begins = state->next == fold->source_begin;
        if (begins && fold->transfer_out < 0)
            continue; /* the sum grows where it was received */
        if (state->shared) {
            SMP_TRY(add_to_shared(b, f, from)); /* likewise */
            continue;
        }
        SMP_TRY(smp__sums_emit_sum(b, begins ? SMP_INSTR_COPY : SMP_INSTR_ADD, fold->tensor,
                                   state->sum, from));
    }
    return SMP_OK;
}

/* For a pair one kernel makes what the second call writes; where there are two, the second works in
 * the array of the first. */
static smp_status place_pair(smp__backward_build *b, int32_t i, int32_t f, smp_ref *din)
{
    const int32_t of_before = b->slot_fold[b->slot_begin[i - 1]];
    if (of_before < 0 ||
        b->slot_source[b->slot_begin[i - 1]] != b->base->flow->fold[of_before].source_begin)
        return SMP_ERR_FAILED;
    SMP_TRY(place_sum(b, of_before));
    smp__fold_state *state = &b->state[f - b->fold_first];
    state->placed = true;
    *din = state->sum = b->state[of_before - b->fold_first].sum;
    return SMP_OK;
}

smp_status smp__sums_place(smp__backward_build *b, int32_t i, int32_t slot, smp_ref *din)
{
    const smp_flow *flow = b->base->flow;
    int64_t at = b->slot_begin[i] + slot;
    int32_t f = b->slot_fold[at];
    if (f < 0)
        return SMP_OK;
    SMP_TRY(smp__sums_receive(b, f));
    if (b->slot_source[at] != flow->fold[f].source_begin) {
        const smp__fold_state *state = &b->state[f - b->fold_first];
        if (b->base->needs[i].input_grad_adds) {
            b->base->call[i].plus = *din = state->sum;
            smp__work_extend(&b->work, state->sum, (int64_t)b->n_instr);
        }
        if (state->shared)
            return place_own(b, f, din);
        if (b->base->needs[i].input_grad_adds)
            return SMP_OK;
        int64_t bytes = smp_tensor_bytes(b->base->graph, flow->fold[f].tensor, flow->batch);
        return smp__work_add(&b->work, bytes, (int64_t)b->n_instr, din);
    }
    if (b->base->call[i].input_pair && slot == 0)
        return place_pair(b, i, f, din);
    SMP_TRY(place_sum(b, f));
    *din = b->state[f - b->fold_first].sum;
    return SMP_OK;
}

smp_status smp__sums_add(smp__backward_build *b, int32_t i, int32_t slot, smp_ref din)
{
    const smp_flow *flow = b->base->flow;
    int64_t at = b->slot_begin[i] + slot;
    int32_t f = b->slot_fold[at];
    if (f < 0)
        return SMP_OK;
    smp__fold_state *state = &b->state[f - b->fold_first];
    if (b->slot_source[at] != flow->fold[f].source_begin && b->base->needs[i].input_grad_adds) {
        state->sum = din;
        state->shared = false;
    } else if (state->shared)
        SMP_TRY(add_to_shared(b, f, din));
    else if (b->slot_source[at] != flow->fold[f].source_begin)
        SMP_TRY(smp__sums_emit_sum(b, SMP_INSTR_ADD, flow->fold[f].tensor, state->sum, din));
    state->next++;
    return smp__sums_receive(b, f);
}

smp_status smp__sums_pass(smp__backward_build *b, int32_t i, int32_t slot, smp_ref dout)
{
    const smp_flow *flow = b->base->flow;
    const int64_t at = b->slot_begin[i] + slot;
    const int32_t f = b->slot_fold[at];
    if (f < 0)
        return SMP_OK;
    SMP_TRY(smp__sums_receive(b, f));
    const smp_fold *fold = &flow->fold[f];
    smp__fold_state *state = &b->state[f - b->fold_first];
    const bool begins = b->slot_source[at] == fold->source_begin;
    smp_ref copy;
    if (begins && fold->transfer_out < 0 && dout.space != SMP_SPACE_LOSS_GRADIENT) {
        state->placed = state->shared = true;
        state->sum = dout;
    } else if (begins) {
        SMP_TRY(place_sum(b, f));
        SMP_TRY(smp__sums_emit_sum(b, SMP_INSTR_COPY, fold->tensor, state->sum, dout));
    } else if (state->shared) {
        SMP_TRY(place_own(b, f, &copy));
        SMP_TRY(smp__sums_emit_sum(b, SMP_INSTR_COPY, fold->tensor, copy, dout));
        SMP_TRY(add_to_shared(b, f, copy));
    } else
        SMP_TRY(smp__sums_emit_sum(b, SMP_INSTR_ADD, fold->tensor, state->sum, dout));
    state->next++;
    return smp__sums_receive(b, f);
}
