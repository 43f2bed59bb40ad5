/* A job whose ranks have arenas of tags: where their layouts say that values lie, and the calls of
 * an action on what lies there. */
#ifndef SMP_TESTS_SCHEDULE_SYMBOLIC_JOB_H
#define SMP_TESTS_SCHEDULE_SYMBOLIC_JOB_H

#include "tests/schedule/symbolic.h"

typedef struct sent_message {
    uint64_t *words; /* NULL: not sent yet */
} sent_message;

/* What a micro-batch of a chunk left, from S to B or I. */
typedef struct away_block {
    uint64_t *words;    /* NULL: not on its way */
    bool stored, asked; /* complete; its load has begun */
} away_block;

typedef struct job {
    const smp_graph *graph;
    const smp_flow *flow;
    const plain *reference;
    int pipeline, chunks, microbatches, ddp, blocks;
    int64_t batch;
    bool backward;
    bool far_states; /* the optimizer's lie in host memory */
    int *stage_rank;
    smp_program *program;
    smp_layout **layout; /* [n_stage] */
    smp_memory_rank **memory;
    uint64_t **arena;
    uint64_t **far;     /* the host areas */
    away_block **away;  /* [pipeline][chunks * microbatches] */
    int horizon;        /* 0: nothing travels */
    int64_t *at;        /* next action of each rank */
    sent_message *sent; /* [n_transfer * microbatches] */
    uint64_t seed_word;
} job;

static int64_t pairs;        /* run as one kernel */
static int64_t input_pairs;  /* likewise, backward */
static int64_t apart;        /* first ones that are repeated without their second */
static int64_t halves;       /* exchanges with something beside them */
static int64_t inputs_first; /* whole backwards whose weight gradient reads what they leave */
static int64_t zeroed;       /* gradients of outputs that add nothing to the loss */

static inline uint64_t *address(job *j, int rank, int chunk, int m, smp_ref ref)
{
    const smp_memory_rank *memory = j->memory[rank];
    int64_t offset = 0;
    switch (ref.space) {
    case SMP_SPACE_NONE:
        return NULL;
    case SMP_SPACE_INPUT:
        return j->reference->input[m][ref.index];
    case SMP_SPACE_STASH:
        offset = memory->stash[ref.index][chunk * j->microbatches + m] + ref.offset;
        break;
    case SMP_SPACE_WORK:
        offset = memory->work + ref.offset;
        break;
    case SMP_SPACE_BORDER:
        offset =
            memory
                ->border[(int64_t)(memory->border_begin[chunk] + ref.index) * j->microbatches + m];
        break;
    case SMP_SPACE_LOSS:
        offset = memory->loss + m * 64;
        break;
    case SMP_SPACE_LOSS_GRADIENT:
        return &j->seed_word;
    }
    assert_true(offset >= 0 && offset % 64 == 0 && offset <= memory->arena_bytes);
    return j->arena[rank] + offset / 4;
}

static inline void run_forward(job *j, int rank, int chunk, int m, int32_t op, smp_layout_redo at)
{
    symbolic_call c = {.graph = j->graph,
                       .op = op,
                       .batch = j->batch,
                       .aux = address(j, rank, chunk, m, at.aux),
                       .workspace = address(j, rank, chunk, m, at.workspace)};
    for (int32_t k = 0; k < j->graph->op[op].n_out; k++)
        c.out[k] = address(j, rank, chunk, m, at.out[k]);
    for (int32_t i = 0; i < j->graph->op[op].n_in; i++)
        c.in[i] = address(j, rank, chunk, m, at.in[i]);
    symbolic_forward(&c);
}

/* A pair as badly behaved as one kernel may be: each op reads and writes while the other does. */
static inline void run_pair(job *j, int rank, int chunk, int m, int32_t op, smp_layout_redo first,
                            smp_layout_redo second)
{
    for (int turn = 0; turn < 5; turn++)
        run_forward(j, rank, chunk, m, op + turn % 2, turn % 2 ? second : first);
}

static inline uint64_t *accumulator(job *j, int rank, int32_t use)
{
    const smp_memory_rank *memory = j->memory[rank];
    for (int32_t i = 0; i < memory->n_use; i++)
        if (memory->use[i].use == use) {
            assert_true(memory->use[i].chunk >= 0);
            return j->arena[rank] + smp_memory_use_at(memory, &memory->use[i]) / 4;
        }
    fail_msg("use %d has no accumulator on rank %d", use, rank);
    return NULL;
}

static inline void add_weights(job *j, int rank, const smp_op *op, const symbolic_call *c)
{
    if (op->n_param == 0)
        return;
    uint64_t weight = symbolic_weight(c);
    for (int32_t i = 0; i < op->n_param; i++) {
        uint64_t added[50];
        fill(added, j->graph->param[op->param[i]].elements, mix(weight, (uint64_t)i));
        add(accumulator(j, rank, op->use[i]), added, j->graph->param[op->param[i]].elements);
    }
}

static inline void run_backward_call(job *j, int rank, int chunk, int m,
                                     const smp_layout_call *call, bool weight)
{
    const smp_op *op = &j->graph->op[call->op];
    symbolic_call c = {.graph = j->graph,
                       .op = call->op,
                       .batch = j->batch,
                       .aux = address(j, rank, chunk, m, call->backward_aux),
                       .plus = address(j, rank, chunk, m, call->plus),
                       .workspace = address(j, rank, chunk, m, call->backward_workspace)};
    for (int32_t k = 0; k < op->n_out; k++) {
        c.out[k] = address(j, rank, chunk, m, call->backward_out[k]);
        c.dout[k] = address(j, rank, chunk, m, call->dout[k]);
        assert_non_null(c.dout[k]);
    }
    for (int32_t i = 0; i < op->n_in; i++) {
        c.in[i] = address(j, rank, chunk, m, call->backward_in[i]);
        c.din[i] = address(j, rank, chunk, m, call->din[i]);
    }
    if (weight)
        add_weights(j, rank, op, &c);
    symbolic_input(&c);
}

/* As badly behaved as an exchange may be: what it writes is spoilt from its beginning and must lie
 * untouched until its end, where it reads all that it reads. */
static inline void run_half(job *j, int rank, int chunk, int m, const smp_layout_call *call,
                            bool begin)
{
    const smp_op *op = &j->graph->op[call->op];
    smp_op_needs needs;
    smp_op_needs_get(j->graph, op, j->batch, &needs);
    for (int32_t i = 0; i <= op->n_in; i++) {
        const bool last = i == op->n_in;
        const int64_t n = last ? words_of(needs.workspace_bytes)
                               : words_of(smp_tensor_bytes(j->graph, op->in[i], j->batch));
        uint64_t *at = address(j, rank, chunk, m, last ? call->backward_workspace : call->din[i]);
        uint64_t spoil = mix(0xbe61, (uint64_t)i);
        for (int64_t e = 0; at && begin && e < n; e++)
            at[e] = mix(spoil, (uint64_t)e);
        for (int64_t e = 0; at && !begin && e < n; e++)
            assert_true(at[e] == mix(spoil, (uint64_t)e));
    }
    halves += begin;
    if (!begin)
        run_backward_call(j, rank, chunk, m, call, false);
}

static inline void run_weight_call(job *j, int rank, int chunk, int m, const smp_layout *layout,
                                   int32_t i)
{
    const smp_layout_weight *at = &layout->weight[i];
    const smp_op *op = &j->graph->op[layout->call[i].op];
    symbolic_call c = {.graph = j->graph,
                       .op = layout->call[i].op,
                       .batch = j->batch,
                       .aux = address(j, rank, chunk, m, at->aux),
                       .workspace = address(j, rank, chunk, m, at->workspace)};
    for (int32_t k = 0; k < op->n_out; k++)
        c.dout[k] = address(j, rank, chunk, m, layout->call[i].dout[k]);
    for (int32_t k = 0; k < op->n_in; k++)
        c.in[k] = address(j, rank, chunk, m, at->in[k]);
    add_weights(j, rank, op, &c);
}

static inline void run_instr(job *j, int rank, int chunk, int m, const smp_layout *layout,
                             const smp_instr *instr)
{
    switch (instr->kind) {
    case SMP_INSTR_BACKWARD:
    case SMP_INSTR_INPUT:
        run_backward_call(j, rank, chunk, m, &layout->call[instr->call],
                          instr->kind == SMP_INSTR_BACKWARD);
        return;
    case SMP_INSTR_BEGIN:
    case SMP_INSTR_END:
        run_half(j, rank, chunk, m, &layout->call[instr->call], instr->kind == SMP_INSTR_BEGIN);
        return;
    case SMP_INSTR_WEIGHT:
        run_weight_call(j, rank, chunk, m, layout, instr->call);
        inputs_first +=
            !layout->split && instr[-1].kind == SMP_INSTR_INPUT && instr[-1].call == instr->call;
        return;
    case SMP_INSTR_RECOMPUTE:
        run_forward(j, rank, chunk, m, layout->call[instr->call].op, layout->redo[instr->call]);
        return;
    case SMP_INSTR_COPY:
    case SMP_INSTR_ADD:
    case SMP_INSTR_ZERO:
        break;
    }
    uint64_t *to = address(j, rank, chunk, m, instr->dst);
    const uint64_t *from = address(j, rank, chunk, m, instr->src);
    zeroed += instr->kind == SMP_INSTR_ZERO;
    if (instr->kind == SMP_INSTR_ZERO)
        memset(to, 0, (size_t)instr->elements * sizeof *to);
    else if (instr->kind == SMP_INSTR_COPY)
        memcpy(to, from, (size_t)instr->elements * sizeof *to);
    else
        add(to, from, instr->elements);
}

static inline smp_layout_redo forward_of(const smp_layout_call *call)
{
    return (smp_layout_redo){
        .in = call->in, .out = call->out, .aux = call->aux, .workspace = call->forward_workspace};
}

/* Two calls of a backward, as badly behaved: the first's operands are read when the second has
 * written, in the array that both have. */
static inline void run_input_pair(job *j, int rank, int chunk, int m, const smp_layout_call *call,
                                  bool weight)
{
    for (int turn = 0; turn < 4; turn++)
        run_backward_call(j, rank, chunk, m, call - turn % 2, weight && turn == 0);
    input_pairs++;
}

/* The calls that a backward repeats, pairs as pairs, then the rest. */
static inline void run_input(job *j, int rank, int chunk, int m, const smp_layout *layout)
{
    for (int32_t i = 0; i < layout->n_instr; i++) {
        const smp_instr *instr = &layout->instr[i];
        if ((instr->kind == SMP_INSTR_BACKWARD || instr->kind == SMP_INSTR_INPUT) &&
            layout->call[instr->call].input_pair) {
            assert_true(i + 1 < layout->n_instr && instr[1].call == instr->call - 1);
            assert_true(instr[1].kind == SMP_INSTR_BACKWARD || instr[1].kind == SMP_INSTR_INPUT);
            run_input_pair(j, rank, chunk, m, &layout->call[instr->call],
                           instr->kind == SMP_INSTR_BACKWARD);
            i++;
            continue;
        }
        if (instr->kind != SMP_INSTR_RECOMPUTE || !layout->redo[instr->call].pair) {
            apart += instr->kind == SMP_INSTR_RECOMPUTE && layout->call[instr->call].pair;
            run_instr(j, rank, chunk, m, layout, instr);
            continue;
        }
        assert_true(i + 1 < layout->n_instr && instr[1].kind == SMP_INSTR_RECOMPUTE);
        assert_int_equal(instr->call + 1, instr[1].call);
        run_pair(j, rank, chunk, m, layout->call[instr->call].op, layout->redo[instr->call],
                 layout->redo[instr->call + 1]);
        i++;
    }
}

/* The kernels of one action; afterwards nothing may count on the work area. */
static inline void run_compute(job *j, int rank, const smp_action *action)
{
    const smp_layout *layout = j->layout[action->chunk * j->pipeline + rank];
    const smp_memory_rank *memory = j->memory[rank];
    int chunk = action->chunk, m = action->microbatch;
    bool input = action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_I;
    bool weight = action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_W;
    for (int32_t i = 0; i < layout->n_call && action->kind == SMP_ACTION_F; i++) {
        const smp_layout_call *at = &layout->call[i];
        if (at->pair) {
            run_pair(j, rank, chunk, m, at->op, forward_of(at), forward_of(at + 1));
            pairs++;
            i++;
        } else {
            run_forward(j, rank, chunk, m, at->op, forward_of(at));
        }
    }
    if (input)
        run_input(j, rank, chunk, m, layout);
    for (int32_t i = 0; i < layout->n_weight_instr && weight; i++)
        run_instr(j, rank, chunk, m, layout, &layout->weight_instr[i]);
    int64_t work = layout->forward_work_bytes;
    if (action->kind != SMP_ACTION_F)
        work = weight && layout->weight_work_bytes > (input ? layout->backward_work_bytes : 0)
                   ? layout->weight_work_bytes
                   : layout->backward_work_bytes;
    fill(j->arena[rank] + memory->work / 4, work / 4, 0x5b011);
}

#endif
