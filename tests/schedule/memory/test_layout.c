/* Layout of a stage: where values live, the order of additions, and what the work area may share.
 * That the addresses are right under execution is shown by test_memory. */
#include "tests/schedule/fixture.h"

enum { RECOMPUTE = 1, SPLIT = 2 }; /* ways to lay a stage out */

/* The mask that names every op of a graph of this file. */
static const bool *all_ops(void)
{
    static bool mask[64];
    memset(mask, true, sizeof mask);
    return mask;
}

typedef struct staged {
    smp_graph *graph;
    smp_flow *flow;
    smp_layout *layout[3];
} staged;

static void lay_out(const smp_graph *graph, const smp_flow *flow, int s, bool split,
                    const bool *mask, smp_layout **out)
{
    assert_int_equal(SMP_OK, smp_layout_build(graph, flow, s, split, mask, NULL, out));
}

static void make_mode(staged *m, const char *text, const int32_t *stage, int n_stage, unsigned mode)
{
    *m = (staged){0};
    if (smp_graph_parse("model.yaml", text, strlen(text), &m->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_flow_build(m->graph, stage, n_stage, 2, &m->flow));
    for (int s = 0; s < n_stage; s++)
        lay_out(m->graph, m->flow, s, mode & SPLIT, mode & RECOMPUTE ? all_ops() : NULL,
                &m->layout[s]);
}

static void make(staged *m, const char *text, const int32_t *stage, int n_stage)
{
    make_mode(m, text, stage, n_stage, 0);
}

static void drop(staged *m)
{
    for (int s = 0; s < 3; s++)
        smp_layout_destroy(m->layout[s]);
    smp_flow_destroy(m->flow);
    smp_graph_destroy(m->graph);
}

static int32_t out_of(const staged *m, const char *op)
{
    int32_t u = smp_graph_find_op(m->graph, op);
    assert_true(u >= 0);
    return m->graph->op[u].out;
}

static const char fan_out[] = "smp: 1\n"
                              "name: fan\n"
                              "inputs:\n"
                              "  i: {dtype: float32, shape: [4]}\n"
                              "  target: {dtype: float32, shape: [4]}\n"
                              "ops:\n"
                              "  - {op: linear, name: a, in: i, out: x, features: 4}\n"
                              "  - {op: relu, name: b, in: x, out: y}\n"
                              "  - {op: tanh, name: c, in: x, out: z}\n"
                              "  - {op: add, name: d, in: [y, z], out: s}\n"
                              "  - {op: add, name: e, in: [s, x], out: s}\n"
                              "  - {op: mse, name: loss, in: [s, target], out: loss}\n"
                              "loss: loss\n";

static bool same_place(smp_ref a, smp_ref b)
{
    return a.space == b.space && a.index == b.index && a.offset == b.offset;
}

static void expect_instr(const smp_layout *layout, int32_t k, smp_instr_kind kind, int32_t call)
{
    assert_true(k < layout->n_instr);
    assert_int_equal(kind, layout->instr[k].kind);
    assert_int_equal(call, layout->instr[k].call);
}

/* One stage: calls in reverse; x has three readers, the sum begins with e's gradient, which is that
 * of s, as are those of y and z: no call makes them, and what is added first gets a place. */
static void test_layout_fold_in_one_stage(void **state)
{
    (void)state;
    staged m;
    make(&m, fan_out, (int32_t[]){0, 0, 0, 0, 0, 0}, 1);
    const smp_layout *l = m.layout[0];
    enum { A, B, C, D, E, LOSS };
    assert_int_equal(0, l->n_border);
    assert_int_equal(6, l->n_instr);
    expect_instr(l, 0, SMP_INSTR_BACKWARD, LOSS);
    expect_instr(l, 1, SMP_INSTR_BACKWARD, C);
    expect_instr(l, 2, SMP_INSTR_ADD, -1);
    expect_instr(l, 3, SMP_INSTR_BACKWARD, B);
    expect_instr(l, 4, SMP_INSTR_ADD, -1);
    expect_instr(l, 5, SMP_INSTR_BACKWARD, A);
    const smp_ref passed = l->call[LOSS].din[0], sum = l->call[C].din[0];
    assert_int_equal(SMP_SPACE_WORK, sum.space);
    for (int i = B; i <= C; i++)
        assert_true(same_place(passed, l->call[i].dout[0]));
    for (int k = 2; k <= 4; k += 2) {
        assert_true(same_place(sum, l->instr[k].dst));
        assert_true(same_place(k == 2 ? passed : l->call[B].din[0], l->instr[k].src));
        assert_false(same_place(sum, l->instr[k].src));
        assert_int_equal(8, l->instr[k].elements);
    }
    assert_int_equal(sum.offset, l->call[A].dout[0].offset);
    assert_int_equal(SMP_SPACE_LOSS_GRADIENT, l->call[LOSS].dout[0].space);
    assert_int_equal(SMP_SPACE_NONE, l->call[LOSS].din[1].space); /* the target */
    assert_int_equal(SMP_SPACE_NONE, l->call[A].din[0].space);
    assert_int_equal(SMP_SPACE_INPUT, l->call[A].in[0].space);
    assert_int_equal(SMP_SPACE_LOSS, l->call[LOSS].out[0].space);
    drop(&m);
}

/* x's gradient: e in stage 2 begins, c in stage 1 goes on, b in stage 0 ends. Stage 1 copies the
 * received sum into what it sends; stage 0 adds into the buffer that it received. What e passes on
 * goes into a border of its own. */
static void test_layout_relay(void **state)
{
    (void)state;
    staged m;
    make(&m, fan_out, (int32_t[]){0, 0, 1, 1, 2, 2}, 3);
    int32_t x = out_of(&m, "a");
    const smp_layout *last = m.layout[2], *middle = m.layout[1], *first = m.layout[0];
    assert_int_equal(SMP_INSTR_COPY, last->instr[last->n_instr - 1].kind); /* e, slot of x */
    const smp_ref sent = last->instr[last->n_instr - 1].dst;
    assert_int_equal(SMP_SPACE_BORDER, sent.space);
    assert_int_equal(SMP_BORDER_GRAD_OUT, last->border[sent.index].kind);
    assert_int_equal(x, last->border[sent.index].tensor);

    int copies = 0, adds = 0;
    for (int32_t k = 0; k < middle->n_instr; k++) {
        const smp_instr *instr = &middle->instr[k];
        if (instr->kind == SMP_INSTR_BACKWARD)
            continue;
        assert_int_equal(SMP_SPACE_BORDER, instr->dst.space);
        assert_int_equal(SMP_BORDER_GRAD_OUT, middle->border[instr->dst.index].kind);
        if (middle->border[instr->dst.index].tensor != x)
            continue; /* what d passes on to stage 0 */
        copies += instr->kind == SMP_INSTR_COPY;
        adds += instr->kind == SMP_INSTR_ADD;
        if (instr->kind == SMP_INSTR_COPY)
            assert_int_equal(SMP_BORDER_GRAD_IN, middle->border[instr->src.index].kind);
    }
    assert_int_equal(1, copies);
    assert_int_equal(1, adds);

    const smp_ref sum = first->call[0].dout[0]; /* a */
    assert_int_equal(SMP_SPACE_BORDER, sum.space);
    assert_int_equal(SMP_BORDER_GRAD_IN, first->border[sum.index].kind);
    assert_int_equal(3, first->n_instr);
    expect_instr(first, 0, SMP_INSTR_BACKWARD, 1);
    expect_instr(first, 1, SMP_INSTR_ADD, -1);
    assert_int_equal(sum.index, first->instr[1].dst.index);
    expect_instr(first, 2, SMP_INSTR_BACKWARD, 0);
    drop(&m);
}

/* All of a stage's borders can be found, and only those. */
static void test_layout_borders(void **state)
{
    (void)state;
    staged m;
    make(&m, fan_out, (int32_t[]){0, 0, 1, 1, 2, 2}, 3);
    for (int s = 0; s < 3; s++) {
        const smp_layout *l = m.layout[s];
        int seen = 0;
        for (int32_t b = 0; b < l->n_border; b++) {
            const smp_border *border = &l->border[b];
            int32_t key = border->kind == SMP_BORDER_OUT ? border->tensor : border->transfer;
            assert_int_equal(b, smp_layout_border(l, border->kind, key));
        }
        for (int32_t i = 0; i < m.flow->n_transfer; i++) {
            const smp_transfer *t = &m.flow->transfer[i];
            bool forward = t->kind == SMP_TRANSFER_F;
            smp_border_kind in = forward ? SMP_BORDER_IN : SMP_BORDER_GRAD_IN;
            assert_int_equal(t->to_stage == s, smp_layout_border(l, in, i) >= 0);
            seen += t->to_stage == s;
            if (!forward) {
                assert_int_equal(t->from_stage == s,
                                 smp_layout_border(l, SMP_BORDER_GRAD_OUT, i) >= 0);
                seen += t->from_stage == s;
            }
        }
        /* x leaves stage 0 twice through one border. */
        assert_int_equal(seen + (s == 0 ? 2 : s == 1 ? 1 : 0), l->n_border);
    }
    drop(&m);
}

/* mul(x, x): both gradients of one call are live at once, then added in slot order. */
static void test_layout_same_tensor_twice(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: twice\n"
        "inputs: {i: {dtype: float32, shape: [4]}, target: {dtype: float32, shape: [4]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: i, out: x, features: 4}\n"
        "  - {op: mul, name: b, in: [x, x], out: x}\n"
        "  - {op: mse, name: loss, in: [x, target], out: loss}\n"
        "loss: loss\n";
    staged m;
    make(&m, text, (int32_t[]){0, 0, 0}, 1);
    const smp_layout *l = m.layout[0];
    assert_int_equal(4, l->n_instr);
    expect_instr(l, 1, SMP_INSTR_BACKWARD, 1);
    expect_instr(l, 2, SMP_INSTR_ADD, -1);
    assert_int_not_equal(l->call[1].din[0].offset, l->call[1].din[1].offset);
    assert_int_equal(l->call[1].din[0].offset, l->instr[2].dst.offset);
    assert_int_equal(l->call[1].din[1].offset, l->instr[2].src.offset);
    drop(&m);
}

/* A chain of n ops needs two work buffers forward if nothing is kept. */
static void test_layout_inference_reuses_work(void **state)
{
    (void)state;
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: chain\nmode: inference\n"
                           "inputs: {x: {dtype: float32, shape: [100]}}\nops:\n");
    for (int i = 0; i < 50; i++)
        smp_text_append(&text, "  - {op: relu, name: r%d, in: x, out: x}\n", i);
    staged m;
    int32_t stage[50] = {0};
    make(&m, text.data, stage, 1);
    assert_int_equal(2 * (2 * 100 * 4 + 32), m.layout[0]->forward_work_bytes);
    assert_int_equal(0, m.layout[0]->block_bytes[SMP_BLOCK_INPUT]);
    assert_int_equal(0, m.layout[0]->backward_work_bytes);
    assert_int_equal(0, m.layout[0]->n_instr);
    drop(&m);
    smp_text_free(&text);
}

/* Ops without kernels: their stash is counted, their gradients flow. */
static void test_layout_opaque(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nname: opaque\n"
        "ops:\n"
        "  - {op: opaque, name: a, in: [], out: x, cost: {forward_us: 1, backward_us: 2, "
        "weight_bytes: 1000, stash_bytes: 100, output_bytes: 400}}\n"
        "  - {op: opaque, name: b, in: [x], out: y, cost: {forward_us: 1, backward_us: 2, "
        "weight_bytes: 1000, stash_bytes: 200, output_bytes: 400}}\n";
    staged m;
    make(&m, text, (int32_t[]){0, 1}, 2);
    assert_int_equal(128, m.layout[0]->block_bytes[SMP_BLOCK_INPUT]);
    assert_int_equal(256, m.layout[1]->block_bytes[SMP_BLOCK_INPUT]);
    assert_int_equal(2, m.flow->n_transfer);
    assert_int_equal(400, m.flow->transfer[1].bytes);
    /* Split, with a weight: kept for W, as the received gradient is. */
    smp_layout *other;
    lay_out(m.graph, m.flow, 0, true, NULL, &other);
    assert_int_equal(128, other->block_bytes[SMP_BLOCK_WEIGHT]);
    assert_int_equal(0, other->block_bytes[SMP_BLOCK_INPUT]);
    assert_true(other->border[other->call[0].dout[0].index].in_weight);
    smp_layout_destroy(other);
    /* Recomputed: in the work area during the backward. */
    lay_out(m.graph, m.flow, 1, false, all_ops(), &other);
    assert_int_equal(0, other->block_bytes[SMP_BLOCK_INPUT]);
    assert_true(other->backward_work_bytes >= 256);
    smp_layout_destroy(other);
    drop(&m);
}

/* Stage 0 holds a and b, whose outputs other stages read. b's gradient reads y, a's weight gradient
 * the model input: y is computed again, so x is, in the work area; the borders are left alone. */
static void test_layout_recompute(void **state)
{
    (void)state;
    staged m;
    make_mode(&m, fan_out, (int32_t[]){0, 0, 1, 1, 2, 2}, 3, RECOMPUTE);
    const smp_layout *l = m.layout[0];
    for (int k = 0; k < SMP_N_BLOCK; k++)
        assert_int_equal(0, l->block_bytes[k]);
    assert_int_equal(5, l->n_instr);
    expect_instr(l, 0, SMP_INSTR_RECOMPUTE, 0);
    expect_instr(l, 1, SMP_INSTR_RECOMPUTE, 1);
    expect_instr(l, 2, SMP_INSTR_BACKWARD, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(SMP_SPACE_BORDER, l->call[i].out[0].space);
        assert_false(l->border[l->call[i].out[0].index].in_backward);
        assert_int_equal(SMP_SPACE_WORK, l->redo[i].out[0].space);
    }
    assert_int_equal(l->redo[0].out[0].offset, l->redo[1].in[0].offset);
    assert_int_equal(l->redo[1].out[0].offset, l->call[1].backward_out[0].offset);
    /* The last stage: e again from what it received, for the loss's gradient; the loss never. */
    const smp_layout *last = m.layout[2];
    expect_instr(last, 0, SMP_INSTR_RECOMPUTE, 0);
    expect_instr(last, 1, SMP_INSTR_BACKWARD, 1);
    assert_int_equal(SMP_SPACE_BORDER, last->redo[0].in[0].space);
    assert_true(last->border[last->redo[0].in[0].index].in_backward);
    drop(&m);
}

/* One stage, c alone is made again: its input x, which no gradient reads, is stashed for that. */
static void test_layout_recompute_one_op(void **state)
{
    (void)state;
    enum { A, B, C, D };
    bool mask[6] = {0};
    staged m, whole;
    make(&whole, fan_out, (int32_t[6]){0}, 1);
    make(&m, fan_out, (int32_t[6]){0}, 1);
    smp_layout_destroy(m.layout[0]);
    mask[C] = true;
    lay_out(m.graph, m.flow, 0, false, mask, &m.layout[0]);
    const smp_layout *l = m.layout[0];
    expect_instr(l, 0, SMP_INSTR_RECOMPUTE, C);
    expect_instr(l, 1, SMP_INSTR_BACKWARD, 5);
    assert_int_equal(whole.layout[0]->n_instr + 1, l->n_instr);
    assert_int_equal(SMP_SPACE_WORK, whole.layout[0]->call[A].out[0].space);
    assert_int_equal(SMP_SPACE_STASH, l->call[A].out[0].space);
    assert_int_equal(SMP_SPACE_STASH, l->call[B].out[0].space);
    assert_int_equal(SMP_SPACE_WORK, l->call[C].out[0].space);
    assert_true(same_place(l->call[A].out[0], l->redo[C].in[0]));
    assert_true(same_place(l->redo[C].out[0], l->call[C].backward_out[0]));
    /* a too: x is made from the model's input, and stashed no more. */
    mask[A] = true;
    smp_layout *both;
    lay_out(m.graph, m.flow, 0, false, mask, &both);
    expect_instr(both, 0, SMP_INSTR_RECOMPUTE, A);
    expect_instr(both, 1, SMP_INSTR_RECOMPUTE, C);
    assert_int_equal(l->block_bytes[SMP_BLOCK_INPUT] - 64, both->block_bytes[SMP_BLOCK_INPUT]);
    smp_layout_destroy(both);
    drop(&m);
    drop(&whole);
}

/* One stage: a has the only weight. W reads the model input and a's output gradient, which is
 * folded in a block that lives until then; the rest of the stash dies at I. */
static void test_layout_split(void **state)
{
    (void)state;
    staged m, whole;
    int32_t stage[6] = {0};
    make(&whole, fan_out, stage, 1);
    make_mode(&m, fan_out, stage, 1, SPLIT);
    const smp_layout *l = m.layout[0];
    assert_int_equal(5, l->n_instr); /* a passes no gradient on */
    expect_instr(l, 0, SMP_INSTR_INPUT, 5);
    expect_instr(l, 3, SMP_INSTR_INPUT, 1);
    assert_int_equal(1, l->n_weight_instr);
    assert_int_equal(SMP_INSTR_WEIGHT, l->weight_instr[0].kind);
    assert_int_equal(0, l->weight_instr[0].call);
    assert_int_equal(SMP_SPACE_INPUT, l->weight[0].in[0].space);
    assert_int_equal(SMP_SPACE_STASH, l->call[0].dout[0].space);
    assert_int_equal(SMP_BLOCK_GRAD, l->call[0].dout[0].index);
    assert_int_equal(2 * 4 * 4 + 32, l->block_bytes[SMP_BLOCK_GRAD]);
    assert_int_equal(0, l->block_bytes[SMP_BLOCK_WEIGHT]);
    assert_int_equal(whole.layout[0]->block_bytes[SMP_BLOCK_INPUT],
                     l->block_bytes[SMP_BLOCK_INPUT]);
    drop(&m);
    drop(&whole);
}

static bool is_among(smp_ref place, const smp_ref *list, int32_t n)
{
    return list && n > 0 && (same_place(place, *list) || is_among(place, list + 1, n - 1));
}

/* Something after instruction k reads what it has computed again. */
static bool is_read(const smp_graph *g, const smp_layout *l, int32_t k)
{
    const smp_layout_redo *made = &l->redo[l->instr[k].call];
    const smp_op *maker = &g->op[l->call[l->instr[k].call].op];
    for (int32_t i = 0; i < l->n_call; i++) {
        const smp_layout_call *call = &l->call[i];
        int32_t n_in = g->op[call->op].n_in, n_out = g->op[call->op].n_out;
        bool found = (made->aux.space && same_place(made->aux, call->backward_aux)) ||
                     (l->weight && made->aux.space && same_place(made->aux, l->weight[i].aux));
        for (int32_t o = 0; o < maker->n_out; o++)
            found |= is_among(made->out[o], call->backward_out, n_out) ||
                     is_among(made->out[o], call->backward_in, n_in) ||
                     is_among(made->out[o], l->redo[i].in, n_in) ||
                     (l->weight && is_among(made->out[o], l->weight[i].in, n_in));
        if (found)
            return true;
    }
    return false;
}

static int count_kind(const smp_layout *l, smp_instr_kind kind)
{
    int n = 0;
    for (int32_t k = 0; k < l->n_instr; k++)
        n += l->instr[k].kind == kind;
    return n;
}

/* What a layout that only measures says is what the full one says. */
static void check_measure(const smp_graph *g, const smp_flow *flow, const bool *recompute,
                          const smp_layout *full)
{
    static smp_memo memo; /* of all layouts */
    smp_layout *bare, *again;
    assert_int_equal(SMP_OK, smp_layout_measure(g, flow, full->stage, full->split, recompute, NULL,
                                                NULL, &bare));
    for (int i = 0; i < 2; i++) {
        const size_t n = memo.n;
        assert_int_equal(SMP_OK, smp_layout_measure(g, flow, full->stage, full->split, recompute,
                                                    NULL, &memo, &again));
        assert_true(i == 0 || memo.n == n);
        assert_int_equal(full->forward_work_bytes, again->forward_work_bytes);
        assert_int_equal(full->backward_work_bytes, again->backward_work_bytes);
        assert_int_equal(full->weight_work_bytes, again->weight_work_bytes);
        smp_layout_destroy(again);
    }
    assert_int_equal(full->stage, bare->stage);
    assert_int_equal(full->split, bare->split);
    assert_int_equal(0, bare->n_call + bare->n_instr + bare->n_weight_instr);
    assert_memory_equal(full->block_bytes, bare->block_bytes, sizeof full->block_bytes);
    assert_int_equal(full->forward_work_bytes, bare->forward_work_bytes);
    assert_int_equal(full->backward_work_bytes, bare->backward_work_bytes);
    assert_int_equal(full->weight_work_bytes, bare->weight_work_bytes);
    assert_int_equal(full->n_border, bare->n_border);
    for (int32_t b = 0; b < full->n_border; b++) {
        const smp_border *one = &full->border[b], *other = &bare->border[b];
        assert_int_equal(one->kind, other->kind);
        assert_int_equal(one->tensor, other->tensor);
        assert_int_equal(one->transfer, other->transfer);
        assert_int_equal(one->bytes, other->bytes);
        assert_int_equal(one->in_backward, other->in_backward);
        assert_int_equal(one->in_weight, other->in_weight);
        assert_int_equal(
            b, smp_layout_border(bare, one->kind,
                                 one->kind == SMP_BORDER_OUT ? one->tensor : one->transfer));
    }
    smp_layout_destroy(bare);
}

static void check_modes(const smp_graph *g, const smp_flow *flow, int stage)
{
    smp_layout *made[4];
    for (unsigned mode = 0; mode < 4; mode++) {
        bool split = mode & SPLIT, recompute = mode & RECOMPUTE;
        const bool *mask = recompute ? all_ops() : NULL;
        lay_out(g, flow, stage, split, mask, &made[mode]);
        const smp_layout *l = made[mode];
        assert_int_equal(split, l->split);
        check_measure(g, flow, mask, l);
        assert_int_equal(split ? 0 : count_kind(l, SMP_INSTR_WEIGHT),
                         count_kind(l, split ? SMP_INSTR_BACKWARD : SMP_INSTR_INPUT));
        assert_int_equal(count_kind(made[0], SMP_INSTR_ADD), count_kind(l, SMP_INSTR_ADD));
        assert_int_equal(count_kind(made[0], SMP_INSTR_COPY), count_kind(l, SMP_INSTR_COPY));
        int weights = 0;
        for (int32_t i = 0; i < l->n_call; i++)
            weights += flow->backward[l->call[i].op] && g->op[l->call[i].op].n_param > 0;
        assert_int_equal(split ? weights : 0, l->n_weight_instr);
        for (int k = 0; k < SMP_N_BLOCK; k++)
            if (k == SMP_BLOCK_GRAD ? !split : recompute)
                assert_int_equal(0, l->block_bytes[k]);
        if (!recompute)
            assert_int_equal(made[0]->block_bytes[SMP_BLOCK_INPUT],
                             l->block_bytes[SMP_BLOCK_INPUT] + l->block_bytes[SMP_BLOCK_WEIGHT]);
        for (int32_t k = 0; k < l->n_instr; k++) {
            if (l->instr[k].kind != SMP_INSTR_RECOMPUTE)
                continue;
            assert_true(recompute);
            smp_space space = l->redo[l->instr[k].call].out[0].space;
            assert_true(space == SMP_SPACE_WORK || space == SMP_SPACE_STASH);
            assert_true(is_read(g, l, k));
        }
    }
    for (unsigned mode = 0; mode < 4; mode++)
        smp_layout_destroy(made[mode]);
}

static void test_layout_modes_of_random_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        fixture_random random = {seed};
        fixture_graph f;
        fixture_graph_make(&f, seed, 2 + (int32_t)fixture_below(&random, 25), true,
                           1 + (int)(seed % 2) * 2);
        int n_stage = 1 + (int)fixture_below(&random, 4);
        int32_t stage[32];
        smp_flow *flow;
        fixture_stages(&f.graph, &random, n_stage, stage);
        assert_int_equal(SMP_OK, smp_flow_build(&f.graph, stage, n_stage, 3, &flow));
        for (int s = 0; s < n_stage; s++)
            check_modes(&f.graph, flow, s);
        smp_flow_destroy(flow);
        fixture_graph_free(&f);
    }
}

/* In bf16 what lies between ops takes half, and additions say so. */
static void test_layout_bf16(void **state)
{
    (void)state;
    static const smp_target bf16 = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    const int32_t stage[] = {0, 0, 1, 1, 2, 2};
    staged m;
    make(&m, fan_out, stage, 3);
    smp_flow *flow;
    assert_int_equal(SMP_OK, smp_graph_set_target(m.graph, bf16));
    assert_int_equal(SMP_OK, smp_flow_build(m.graph, stage, 3, 2, &flow));
    assert_int_equal(m.flow->n_transfer, flow->n_transfer);
    for (int32_t t = 0; t < flow->n_transfer; t++)
        assert_int_equal(m.flow->transfer[t].bytes, 2 * flow->transfer[t].bytes);
    for (int s = 0; s < 3; s++) {
        const smp_layout *full = m.layout[s];
        smp_layout *half;
        lay_out(m.graph, flow, s, false, NULL, &half);
        assert_int_equal(full->n_border, half->n_border);
        for (int32_t b = 0; b < full->n_border; b++)
            assert_int_equal(full->border[b].bytes, 2 * half->border[b].bytes);
        assert_int_equal(full->n_instr, half->n_instr);
        for (int32_t i = 0; i < full->n_instr; i++) {
            bool sums = full->instr[i].elements > 0;
            assert_int_equal(full->instr[i].elements, half->instr[i].elements);
            assert_int_equal(SMP_F32, full->instr[i].dtype);
            assert_int_equal(sums ? SMP_BF16 : SMP_F32, half->instr[i].dtype);
        }
        smp_layout_destroy(half);
    }
    smp_flow_destroy(flow);
    drop(&m);
}

/* The split of a chunk follows from its program. */
static void test_layout_is_split(void **state)
{
    (void)state;
    smp_program program;
    assert_int_equal(SMP_OK, smp_program_parse("F0.0 F0.1 B0.1 I0.0 W0.0 R.1 R.0 O", 0,
                                               (smp_where){"program", 1, 1}, &program));
    assert_true(smp_layout_is_split(&program, 0));
    assert_false(smp_layout_is_split(&program, 1));
    smp_program_free(&program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_fold_in_one_stage),
        cmocka_unit_test(test_layout_relay),
        cmocka_unit_test(test_layout_borders),
        cmocka_unit_test(test_layout_same_tensor_twice),
        cmocka_unit_test(test_layout_inference_reuses_work),
        cmocka_unit_test(test_layout_opaque),
        cmocka_unit_test(test_layout_recompute),
        cmocka_unit_test(test_layout_recompute_one_op),
        cmocka_unit_test(test_layout_split),
        cmocka_unit_test(test_layout_modes_of_random_graphs),
        cmocka_unit_test(test_layout_bf16),
        cmocka_unit_test(test_layout_is_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
