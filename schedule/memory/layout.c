/* Layout of a stage, forward half: a place for every value that an op makes, reads or keeps. The
 * backward half is in layout_backward.c.
 *
 * A value that another stage reads, or that came from one, has a border buffer; one that the
 * backward pass reads is stashed, unless it is made again then; the rest shares the work area by
 * lifetime. O(ops + edges) and the packing. */
#include "schedule/memory/layout_build.h"

#include <stdlib.h>

#include "graph/base/clock.h"

#include "schedule/memory/bytes.h"

smp_status smp__work_add(smp__work *work, int64_t bytes, int64_t time, smp_ref *ref)
{
    size_t need = (size_t)work->n + 1;
    SMP_TRY(smp_array_reserve(&work->bytes, &work->capacity[0], sizeof *work->bytes, need));
    SMP_TRY(smp_array_reserve(&work->begin, &work->capacity[1], sizeof *work->begin, need));
    SMP_TRY(smp_array_reserve(&work->end, &work->capacity[2], sizeof *work->end, need));
    SMP_TRY(smp_array_reserve(&work->offset, &work->capacity[3], sizeof *work->offset, need));
    work->bytes[work->n] = bytes;
    work->begin[work->n] = work->end[work->n] = time;
    *ref = (smp_ref){.space = SMP_SPACE_WORK, .offset = work->n++};
    return SMP_OK;
}

smp_status smp__work_pack(smp__work *work, int64_t *total)
{
    int64_t bound, found[2] = {0};
    smp_memo_key key = {{0}};
    if (work->memo) {
        smp_memo_add(&key, work->bytes, work->n);
        smp_memo_add(&key, work->begin, work->n);
        smp_memo_add(&key, work->end, work->n);
        if (smp_memo_find(work->memo, key, found)) {
            *total = found[0];
            return SMP_OK;
        }
    }
    SMP_TRY(smp_interval_pack(work->n, work->bytes, work->begin, work->end, SMP_BUFFER_ALIGN,
                              work->offset, total, &bound));
    found[0] = *total;
    return work->memo ? smp_memo_keep(work->memo, key, found) : SMP_OK;
}

void smp__work_free(smp__work *work)
{
    free(work->bytes);
    free(work->begin);
    free(work->end);
    free(work->offset);
}

static int compare_int32(const void *left, const void *right)
{
    const int32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* Borders in the order of smp_border_kind, then key (tensor or transfer): smp_layout_border counts
 * on it. */
static smp_status make_borders(smp__layout_build *build)
{
    const smp_flow *flow = build->flow;
    const smp_graph *graph = build->graph;
    int s = build->stage;
    const int32_t *out = &flow->out_list[flow->out_begin[s]],
                  *in = &flow->in_list[flow->in_begin[s]];
    int32_t n_out = flow->out_begin[s + 1] - flow->out_begin[s];
    int32_t n_in = flow->in_begin[s + 1] - flow->in_begin[s];
    build->border = SMP_ARENA_NEW(build->layout->arena, smp_border, (size_t)n_out + (size_t)n_in);
    int32_t *sent = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)n_out);
    if (!build->border || !sent)
        return SMP_ERR_NO_MEMORY;
    int32_t n = 0, n_sent = 0;
    for (int32_t i = 0; i < n_out; i++)
        if (flow->transfer[out[i]].kind == SMP_TRANSFER_F)
            sent[n_sent++] = flow->transfer[out[i]].tensor;
    qsort(sent, (size_t)n_sent, sizeof *sent, compare_int32);
    for (int32_t i = 0; i < n_sent; i++) {
        if (i > 0 && sent[i] == sent[i - 1])
            continue;
        build->made[build->local[sent[i]] - 1] = n;
        build->border[n++] = (smp_border){.kind = SMP_BORDER_OUT,
                                          .tensor = sent[i],
                                          .transfer = -1,
                                          .bytes = smp_tensor_bytes(graph, sent[i], flow->batch)};
    }
    const struct {
        smp_border_kind border;
        smp_transfer_kind transfer;
        const int32_t *list;
        int32_t n;
    } kinds[] = {{SMP_BORDER_IN, SMP_TRANSFER_F, in, n_in},
                 {SMP_BORDER_GRAD_OUT, SMP_TRANSFER_B, out, n_out},
                 {SMP_BORDER_GRAD_IN, SMP_TRANSFER_B, in, n_in}};
    for (int k = 0; k < 3; k++)
        for (int32_t i = 0; i < kinds[k].n; i++) {
            const smp_transfer *transfer = &flow->transfer[kinds[k].list[i]];
            if (transfer->kind != kinds[k].transfer)
                continue;
            build->border_of[kinds[k].list[i]] = n;
            build->border[n++] = (smp_border){.kind = kinds[k].border,
                                              .tensor = transfer->tensor,
                                              .transfer = kinds[k].list[i],
                                              .bytes = transfer->bytes};
        }
    build->layout->border = build->border;
    build->layout->n_border = n;
    return SMP_OK;
}

/* Numbers the values of the stage: outputs of its calls, then the activations it receives. */
static smp_status number_values(smp__layout_build *build)
{
    const smp_graph *graph = build->graph;
    const smp_flow *flow = build->flow;
    smp_layout *layout = build->layout;
    int s = build->stage;
    size_t n_call = (size_t)layout->n_call;
    size_t most = (size_t)(flow->in_begin[s + 1] - flow->in_begin[s]);
    for (int32_t i = flow->op_begin[s]; i < flow->op_begin[s + 1]; i++)
        most += (size_t)graph->op[flow->op_list[i]].n_out;
    build->local = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)graph->n_tensor);
    build->border_of = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)flow->n_transfer);
    build->value = SMP_ARENA_NEW(layout->arena, smp_ref, most);
    build->back = SMP_ARENA_NEW(layout->arena, smp_ref, most);
    build->last_read = SMP_ARENA_NEW(build->scratch, int32_t, most);
    build->need = SMP_ARENA_NEW(build->scratch, bool, most);
    build->need_weight = SMP_ARENA_NEW(build->scratch, bool, most);
    build->repeated = SMP_ARENA_NEW(build->scratch, bool, n_call);
    build->beside = SMP_ARENA_NEW(build->scratch, int32_t, n_call);
    build->second = SMP_ARENA_NEW(build->scratch, bool, n_call);
    build->made = SMP_ARENA_NEW(build->scratch, int32_t, most);
    build->maker = SMP_ARENA_NEW(build->scratch, int32_t, most);
    build->needs = SMP_ARENA_NEW(build->scratch, smp_op_needs, n_call);
    build->reads = SMP_ARENA_NEW(build->scratch, smp__reads, n_call);
    build->din = SMP_ARENA_NEW(build->scratch, smp_ref *, n_call);
    build->call = SMP_ARENA_NEW(layout->arena, smp_layout_call, n_call);
    if (!build->local || !build->border_of || !build->value || !build->back || !build->last_read ||
        !build->need || !build->need_weight || !build->repeated || !build->second || !build->made ||
        !build->maker || !build->beside || !build->needs || !build->reads || !build->din ||
        !build->call)
        return SMP_ERR_NO_MEMORY;
    layout->call = build->call;
    for (int32_t i = 0; i < layout->n_call; i++) {
        int32_t op = flow->op_list[flow->op_begin[s] + i];
        build->call[i].op = op;
        for (int32_t k = 0; k < graph->op[op].n_out; k++) {
            build->made[build->n_value] = -1;
            build->maker[build->n_value] = build->last_read[build->n_value] = i;
            build->local[graph->op[op].out + k] = ++build->n_value;
        }
        smp_op_needs_get(graph, &graph->op[op], flow->batch, &build->needs[i]);
    }
    for (int32_t i = 0; i + 1 < layout->n_call; i++) {
        build->call[i].pair = !build->second[i] && build->call[i + 1].op == build->call[i].op + 1 &&
                              smp_op_fused(graph, build->call[i].op);
        build->second[i + 1] = build->call[i].pair;
        build->call[i + 1].input_pair = build->call[i + 1].op == build->call[i].op + 1 &&
                                        smp_op_fused_backward(graph, build->call[i].op);
    }
    for (int32_t i = flow->in_begin[s]; i < flow->in_begin[s + 1]; i++) {
        const smp_transfer *transfer = &flow->transfer[flow->in_list[i]];
        if (transfer->kind != SMP_TRANSFER_F)
            continue;
        build->maker[build->n_value] = -1;
        build->local[transfer->tensor] = ++build->n_value;
    }
    return SMP_OK;
}

bool smp__layout_weighs(const smp__layout_build *build, int32_t i)
{
    const smp_op *op = &build->graph->op[build->call[i].op];
    bool opaque_weight = !op->kind->cpu.forward && op->cost && op->cost->weight_bytes > 0;
    return build->flow->backward[build->call[i].op] &&
           (smp_op_has_trained(build->graph, op) || opaque_weight);
}

static smp__reads reads_of(const smp__layout_build *build, int32_t i)
{
    const smp_op *op = &build->graph->op[build->call[i].op];
    const smp_op_needs *needs = &build->needs[i];
    smp__reads reads = {0};
    if (!build->flow->backward[build->call[i].op])
        return reads;
    bool input = false;
    for (int32_t slot = 0; slot < op->n_in && !input; slot++)
        input = smp_flow_contributes(build->graph, build->flow->backward, build->call[i].op, slot);
    if (input) {
        reads.in = needs->input_grad_in;
        if (build->call[i].input_pair)
            reads.in = smp_op_fused_reads(build->graph, build->call[i].op, reads.in);
        reads.out = needs->input_grad_out;
        reads.aux = needs->input_grad_aux;
    }
    if (smp_op_has_trained(build->graph, op)) {
        reads.weight_in = needs->weight_grad_in;
        reads.weight_aux = needs->weight_grad_aux;
    }
    return reads;
}

/* Which values live on to the backward pass, and which call reads each last. */
static void find_lives(smp__layout_build *build)
{
    for (int32_t i = 0; i < build->layout->n_call; i++) {
        const smp_op *op = &build->graph->op[build->call[i].op];
        smp__reads reads = build->reads[i] = reads_of(build, i);
        for (int32_t k = 0; k < op->n_out; k++)
            build->need[smp__layout_first(build, i) + k] |= reads.out >> k & 1;
        for (int32_t slot = 0; slot < op->n_in; slot++) {
            int32_t v = build->local[op->in[slot]] - 1;
            if (v < 0)
                continue; /* model input */
            build->last_read[v] = i;
            build->need[v] |= smp__reads_slot(reads.in | reads.weight_in, slot);
            build->need_weight[v] |= smp__reads_slot(reads.weight_in, slot);
        }
    }
}

/* May call i be repeated? One of a tied pair speaks for both. */
static bool is_masked(const smp__layout_build *build, int32_t i)
{
    const smp_layout_call *call = build->call;
    return build->recompute &&
           (build->recompute[call[i].op] ||
            (smp__layout_tied(build, i) && build->recompute[call[i + 1].op]) ||
            (smp__layout_tied_second(build, i) && build->recompute[call[i - 1].op]));
}

/* A call that is repeated needs its inputs. */
static void repeat(smp__layout_build *build, int32_t i)
{
    const smp_op *op = &build->graph->op[build->call[i].op];
    build->repeated[i] = true;
    for (int32_t slot = 0; slot < op->n_in; slot++) {
        int32_t v = build->local[op->in[slot]] - 1;
        if (v >= 0)
            build->need[v] = true;
    }
}

/* Backwards, so that all who read a value are known when its own call is looked at. The second of a
 * pair reads the output of the first, so neither is repeated alone. */
void smp__layout_find_repeated(smp__layout_build *build)
{
    for (int32_t i = build->layout->n_call - 1; i >= 0; i--) {
        bool aux_kept;
        if (!is_masked(build, i))
            continue;
        bool needed = smp__layout_aux_bytes(build, i, &aux_kept) > 0 && aux_kept;
        for (int32_t k = 0; k < smp__layout_n_out(build, i); k++)
            needed |= build->need[smp__layout_first(build, i) + k];
        if (!needed)
            continue;
        repeat(build, i);
        if (smp__layout_tied(build, i))
            repeat(build, i + 1);
    }
}

smp_status smp__layout_stash(smp__layout_build *build, smp_block block, int64_t bytes, smp_ref *ref)
{
    int64_t *top = &build->layout->block_bytes[block];
    *ref = (smp_ref){.space = SMP_SPACE_STASH, .index = block, .offset = *top};
    return smp__bytes_add(top, bytes);
}

/* Room for what a call makes that is kept from the forward pass. weight: weight gradients read it.
 */
static smp_status keep_made(smp__layout_build *build, int32_t call, bool weight, int64_t bytes,
                            smp_ref *ref)
{
    const bool late = build->split && weight;
    if (!build->offload || !build->offload[build->call[call].op])
        return smp__layout_stash(build, late ? SMP_BLOCK_WEIGHT : SMP_BLOCK_INPUT, bytes, ref);
    build->layout->back_in_weight |= late;
    return smp__layout_stash(build, SMP_BLOCK_AWAY, bytes, ref);
}

static smp_status place_output(smp__layout_build *build, smp__work *work, int32_t tensor)
{
    int32_t v = build->local[tensor] - 1, i = build->maker[v];
    smp_ref *ref = &build->value[v];
    bool kept = smp__layout_stays(build, v);
    bool weight = kept && build->need_weight[v];
    if (build->made[v] >= 0) {
        build->border[build->made[v]].in_backward = kept;
        build->border[build->made[v]].in_weight = weight && build->split;
    }
    if (tensor == build->graph->loss) {
        *ref = (smp_ref){.space = SMP_SPACE_LOSS};
        return SMP_OK;
    }
    if (build->made[v] >= 0) {
        *ref = (smp_ref){.space = SMP_SPACE_BORDER, .index = build->made[v]};
        return SMP_OK;
    }
    int64_t bytes = smp_tensor_bytes(build->graph, tensor, build->flow->batch);
    if (kept)
        return keep_made(build, i, weight, bytes, ref);
    SMP_TRY(smp__work_add(work, bytes, i - build->second[i], ref));
    smp__work_extend(work, *ref, build->last_read[v]);
    return SMP_OK;
}

int64_t smp__layout_aux_bytes(const smp__layout_build *build, int32_t i, bool *kept)
{
    int32_t u = build->call[i].op;
    const smp_op *op = &build->graph->op[u];
    if (op->kind->cpu.forward) {
        *kept = build->reads[i].aux || build->reads[i].weight_aux;
        if (build->needs[i].aux_of_backward)
            return 0;
        return build->needs[i].aux_bytes * build->flow->batch;
    }
    *kept = true;
    if (!build->graph->training)
        return 0;
    return op->cost && op->cost->stash_bytes > 0 ? op->cost->stash_bytes : 0;
}

bool smp__layout_aux_weight(const smp__layout_build *build, int32_t i)
{
    if (build->graph->op[build->call[i].op].kind->cpu.forward)
        return build->reads[i].weight_aux;
    return smp__layout_weighs(build, i);
}

static smp_status place_scratch(smp__layout_build *build, smp__work *work, int32_t i)
{
    bool kept;
    smp_layout_call *call = &build->call[i];
    int64_t aux = smp__layout_aux_bytes(build, i, &kept);
    const int64_t begin = i - build->second[i]; /* the second writes while the first still reads */
    if (aux > 0 && kept && !build->repeated[i])
        SMP_TRY(keep_made(build, i, smp__layout_aux_weight(build, i), aux, &call->aux));
    else if (aux > 0)
        SMP_TRY(smp__work_add(work, aux, begin, &call->aux));
    if (build->needs[i].workspace_bytes > 0)
        SMP_TRY(
            smp__work_add(work, build->needs[i].workspace_bytes, begin, &call->forward_workspace));
    return SMP_OK;
}

static void place_received(smp__layout_build *build)
{
    const smp_flow *flow = build->flow;
    for (int32_t i = flow->in_begin[build->stage]; i < flow->in_begin[build->stage + 1]; i++) {
        const smp_transfer *transfer = &flow->transfer[flow->in_list[i]];
        if (transfer->kind != SMP_TRANSFER_F)
            continue;
        int32_t v = build->local[transfer->tensor] - 1, border = build->border_of[flow->in_list[i]];
        build->value[v] = (smp_ref){.space = SMP_SPACE_BORDER, .index = border};
        build->border[border].in_backward = build->need[v];
        build->border[border].in_weight = build->need_weight[v] && build->split;
    }
}

/* Addresses of one call, its values being placed for good. */
static smp_status fill_call(smp__layout_build *build, int32_t i)
{
    const smp_op *op = &build->graph->op[build->call[i].op];
    smp_layout_call *call = &build->call[i];
    smp_ref *in = SMP_ARENA_NEW(build->layout->arena, smp_ref, (size_t)op->n_in);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    for (int32_t slot = 0; slot < op->n_in; slot++)
        in[slot] = smp__layout_find(build, build->value, op->in[slot]);
    call->in = in;
    call->out = &build->value[smp__layout_first(build, i)];
    return SMP_OK;
}

static smp_status layout_forward(smp__layout_build *build)
{
    smp_layout *layout = build->layout;
    smp__work work = {.memo = build->memo};
    smp_status status = SMP_OK;
    place_received(build);
    for (int32_t i = 0; i < layout->n_call && status == SMP_OK; i++) {
        const smp_op *op = &build->graph->op[build->call[i].op];
        for (int32_t t = op->out; t < op->out + op->n_out && status == SMP_OK; t++)
            status = place_output(build, &work, t);
        if (status == SMP_OK)
            status = place_scratch(build, &work, i);
    }
    if (status == SMP_OK)
        status = smp__work_pack(&work, &layout->forward_work_bytes);
    for (int32_t v = 0; v < build->n_value && status == SMP_OK && !build->measure; v++)
        smp__layout_resolve(&work, &build->value[v]);
    for (int32_t i = 0; i < layout->n_call && status == SMP_OK && !build->measure; i++) {
        smp__layout_resolve(&work, &build->call[i].aux);
        smp__layout_resolve(&work, &build->call[i].forward_workspace);
    }
    for (int32_t i = 0; i < layout->n_call && status == SMP_OK && !build->measure; i++)
        status = fill_call(build, i);
    for (int32_t v = 0; v < build->n_value; v++)
        if (!smp__layout_remade(build, v))
            build->back[v] = smp__layout_back(build->value[v]);
    layout->block_bytes[SMP_BLOCK_BACK] = layout->block_bytes[SMP_BLOCK_AWAY];
    smp__work_free(&work);
    return status;
}

smp_status smp__layout_open(smp__layout_build *build)
{
    const smp_flow *flow = build->flow;
    smp_arena *arena = smp_arena_create();
    if (!build->graph->training) {
        build->recompute = build->offload = NULL;
        build->split = false;
    }
    build->scratch = smp_arena_create();
    build->layout = arena ? SMP_ARENA_NEW(arena, smp_layout, 1) : NULL;
    smp_status status =
        build->scratch && build->layout ? SMP_OK : smp_fail_memory(sizeof *build->layout);
    if (status == SMP_OK) {
        build->layout->arena = arena;
        build->layout->stage = build->stage;
        build->layout->split = build->split;
        build->layout->n_call = flow->op_begin[build->stage + 1] - flow->op_begin[build->stage];
        status = number_values(build);
    }
    if (status == SMP_OK)
        status = make_borders(build);
    if (status == SMP_OK) {
        find_lives(build);
        return SMP_OK;
    }
    smp_arena_destroy(build->scratch);
    smp_arena_destroy(arena);
    return status;
}

/* The build's graph, flow, stage and what is wanted are set. */
static smp_status build_in(smp__layout_build *build, smp_layout **out)
{
    SMP_TRY(smp__layout_open(build));
    smp__layout_find_repeated(build);
    smp_work_count(SMP_WORK_LAYOUT, build->layout->n_call);
    smp_status status = layout_forward(build);
    if (status == SMP_OK)
        status = smp__layout_backward(build);
    smp_arena_destroy(build->scratch);
    if (status == SMP_OK)
        *out = build->layout;
    else
        smp_layout_destroy(build->layout);
    return status;
}

static smp__layout_build build_of(const smp_graph *graph, const smp_flow *flow, int stage,
                                  bool split, const bool *recompute, const bool *offload)
{
    return (smp__layout_build){.graph = graph,
                               .flow = flow,
                               .recompute = recompute,
                               .offload = offload,
                               .stage = stage,
                               .split = split};
}

smp_status smp_layout_build(const smp_graph *graph, const smp_flow *flow, int stage, bool split,
                            const bool *recompute, const bool *offload, smp_layout **out)
{
    smp__layout_build build = build_of(graph, flow, stage, split, recompute, offload);
    return build_in(&build, out);
}

/* Moves what has been measured into an arena of its own and lets the rest go. */
static smp_status keep_measures(smp_layout **layout)
{
    const smp_layout *full = *layout;
    smp_arena *arena = smp_arena_create();
    smp_layout *bare = arena ? SMP_ARENA_NEW(arena, smp_layout, 1) : NULL;
    smp_border *border = bare ? SMP_ARENA_NEW(arena, smp_border, (size_t)full->n_border) : NULL;
    if (!border) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    for (int32_t b = 0; b < full->n_border; b++)
        border[b] = full->border[b];
    *bare = *full;
    bare->call = NULL;
    bare->redo = NULL;
    bare->weight = NULL;
    bare->instr = bare->weight_instr = NULL;
    bare->n_call = bare->n_instr = bare->n_weight_instr = 0;
    bare->border = border;
    bare->arena = arena;
    smp_layout_destroy(*layout);
    *layout = bare;
    return SMP_OK;
}

smp_status smp_layout_measure(const smp_graph *graph, const smp_flow *flow, int stage, bool split,
                              const bool *recompute, const bool *offload, smp_memo *memo,
                              smp_layout **out)
{
    smp_layout *layout;
    smp__layout_build build = build_of(graph, flow, stage, split, recompute, offload);
    build.measure = true;
    build.memo = memo;
    SMP_TRY(build_in(&build, &layout));
    smp_status status = keep_measures(&layout);
    if (status == SMP_OK)
        *out = layout;
    else
        smp_layout_destroy(layout);
    return status;
}

bool smp_layout_is_split(const smp_program *program, int chunk)
{
    for (int64_t i = 0; i < program->n; i++)
        if (program->action[i].kind == SMP_ACTION_I && program->action[i].chunk == chunk)
            return true;
    return false;
}

void smp_layout_destroy(smp_layout *layout)
{
    if (layout)
        smp_arena_destroy(layout->arena);
}

int32_t smp_layout_border(const smp_layout *layout, smp_border_kind kind, int32_t key)
{
    int32_t low = 0, high = layout->n_border;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const smp_border *border = &layout->border[middle];
        int32_t its = border->kind == SMP_BORDER_OUT ? border->tensor : border->transfer;
        if (border->kind == kind && its == key)
            return middle;
        if (border->kind < kind || (border->kind == kind && its < key))
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}
