/* The verifier: accepts what lowering makes, rejects every kind of hand-broken plan and says
 * where; and what it accepts does finish under the executor's rules, where receives are posted and
 * sends waited for as the memory plan says and no message is buffered. */
#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"

enum { MAX_OPS = 80 };

static const char *const good[2] = {
    "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
    "<F0.0 F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O"};

static void make_good(made_plan *made)
{
    made_plan_stages(made, "interleaved", 2, 1, 3, true, made_chain);
    for (int rank = 0; rank < 2; rank++)
        made_plan_write(made, rank, good[rank]);
}

/* The plan with one program replaced must be refused with these words. */
static void rejects(int rank, const char *program, const char *words)
{
    made_plan made;
    make_good(&made);
    made_plan_write(&made, rank, program);
    smp_status status = smp_verify_programs(&made.plan, made.flow);
    if (status != SMP_ERR_INPUT || !strstr(smp_last_error(), words))
        fail_msg("status %d, got '%s', expected '%s'", status, smp_last_error(), words);
    made_plan_free(&made);
}

static void test_verify_accepts(void **state)
{
    (void)state;
    made_plan made;
    make_good(&made);
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    /* Split backwards are as good, and may be mixed with whole ones. */
    made_plan_write(&made, 1,
                    "<F0.0 F0.0 I0.0 <F1.0 >B0.0 W0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 I2.0 >B2.0 W2.0 "
                    "R.0 O");
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made_plan_free(&made);
}

static void test_verify_swapped(void **state)
{
    (void)state;
    rejects(0, "F0.0 >F0.0 >F1.0 F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "rank 0, action 3 (>F1.0): what it sends is not there yet: expected before it F1.0");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 B0.0 <B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "rank 0, action 5 (B0.0): its input is not there yet: expected before it <B0.0");
    rejects(1, "<F0.0 F0.0 B0.0 <F1.0 >B0.0 B1.0 F1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "rank 1, action 6 (B1.0): expected before it F1.0");
    rejects(1, "<F0.0 F0.0 <F1.0 F1.0 B1.0 B0.0 >B0.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "in micro-batch order: expected B0.0");
    rejects(1, "<F0.0 F0.0 W0.0 I0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "rank 1, action 3 (W0.0): expected before it I0.0");
}

static void test_verify_missing(void **state)
{
    (void)state;
    rejects(1, "F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "rank 1, action 1 (F0.0): its input is not there yet: expected before it <F0.0");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "rank 0, after the last action (13): >F2.0 is missing");
    rejects(1, "<F0.0 F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 R.0 O",
            ">B2.0 is missing");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 R.0 O",
            "the chunk's backwards are not done: expected before it B2.0");
    rejects(1, "<F0.0 F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 I2.0 >B2.0 R.0 O",
            "the chunk's backwards are not done");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 O",
            "action 13 (O): expected before it R.0");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0",
            "O is missing");
    rejects(0, "F0.0 >F0.0 O", "too few");
}

static void test_verify_superfluous(void **state)
{
    (void)state;
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "rank 0, action 5 (>F1.0): it stands here a second time");
    rejects(0, "F0.0 F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "action 2 (F0.0): it stands here a second time");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 >B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "nothing that it makes goes to another rank");
    rejects(0, "<F0.0 F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 O",
            "nothing that it needs comes from another rank");
    rejects(1, "<F0.0 F0.0 B0.0 I0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "a backward is either whole (B) or split (I and W)");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 R.0 O",
            "action 14 (R.0): it stands here a second time");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.0 F3.0 O",
            "the plan does not have such a micro-batch");
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 <B2.0 B2.0 R.1 R.0 O",
            "the rank does not hold such a chunk");
}

static void test_verify_reduce_and_optimize(void **state)
{
    (void)state;
    rejects(0, "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 R.0 <B2.0 B2.0 O",
            "rank 0, action 11 (R.0): the chunk's backwards are not done: expected before it B2.0");
    rejects(1, "<F0.0 F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 R.0 O >B2.0",
            "rank 1, action 13 (O): it must be the last action");
}

/* Each rank sends before it receives: with no buffer in between both wait. */
static void test_verify_deadlock(void **state)
{
    (void)state;
    rejects(1, "<F0.0 F0.0 B0.0 >B0.0 <F1.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 >B2.0 R.0 O",
            "the programs deadlock: rank 0 at action 4 >F1.0 waits until rank 1 reaches action 5 "
            "<F1.0; rank 1 at action 4 >B0.0 waits until rank 0 reaches action 5 <B0.0");
    /* Rank 1 wants micro-batch 2 before it gives back the gradient that rank 0 wants first. */
    rejects(1, "<F0.0 F0.0 <F1.0 F1.0 <F2.0 F2.0 B0.0 >B0.0 B1.0 >B1.0 B2.0 >B2.0 R.0 O",
            "the programs deadlock: rank 0 at action 5 <B0.0 waits until rank 1 reaches");
}

static bool first_and_last(int reader, int producer)
{
    return producer == reader - 1 || (reader == 3 && producer == 0);
}

/* A circle of four chunks on two ranks: what jumps is not waited for at once, but it must be
 * received before the sender's backward. */
static void test_verify_jumps(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "simple", 2, 2, 2, true, first_and_last);
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    assert_program(&made.program[0],
                   "F0.0 >F0.0 F1.0 <F0.1 >F1.0 F0.1 >F0.1 <F1.1 F1.1 >F1.1 <B0.1 B0.1 >B0.1 "
                   "<B1.1 B1.1 <B0.0 >B1.1 R.1 B0.0 <B1.0 B1.0 R.0 O");
    made_plan_free(&made);
}

/* Nobody sends the first stage a gradient: its backward waits for nothing but the receivers of what
 * jumps, o3 on the other rank, and o1 if that reads it, too. */
static void made_frozen(made_plan *made, const char *o1_reads)
{
    char text[512];
    int32_t stage_of_op[4] = {0, 1, 2, 3};
    made_plan_stages(made, "interleaved", 2, 2, 1, true, made_chain);
    smp_flow_destroy(made->flow);
    smp_graph_destroy(made->graph);
    snprintf(text, sizeof text,
             "smp: 1\nname: made\ninputs:\n  t: {dtype: float32, shape: [4]}\nops:\n"
             "  - {op: relu, name: o0, in: t, out: x0}\n"
             "  - {op: opaque, name: o1, in: %s, out: x1, cost: {forward_us: 1}}\n"
             "  - {op: opaque, name: o2, in: x1, out: x2, cost: {forward_us: 1}}\n"
             "  - {op: opaque, name: o3, in: [x0, x2], out: x3, cost: {forward_us: 1}}\n",
             o1_reads);
    if (smp_graph_parse("made.yaml", text, strlen(text), &made->graph) != SMP_OK ||
        smp_flow_build(made->graph, stage_of_op, 4, 1, &made->flow) != SMP_OK)
        fail_msg("%s", smp_last_error());
}

/* A first backward that comes early, whole or split, waits until rank 1 receives what jumped to o3;
 * before that rank 1 sends what rank 0 receives after that backward. */
static void test_verify_jump_deadlock(void **state)
{
    (void)state;
    static const char *const reads[] = {"x0", "t"}, *const receives[] = {"<F0.0 ", ""};
    static const char *const early[] = {"", "B0.0 ", "I0.0 "}, *const late[] = {"B0.0", "", "W0.0"};
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 3; k++) {
            made_plan made;
            char program[256];
            made_frozen(&made, reads[r]);
            snprintf(program, sizeof program,
                     "F0.0 >F0.0 %s<F0.1 F0.1 >F0.1 <B0.1 B0.1 >B0.1 R.1 %s R.0 O", early[k],
                     late[k]);
            made_plan_write(&made, 0, program);
            snprintf(program, sizeof program,
                     "%sF0.0 >F0.0 <F0.1 F0.1 B0.1 >B0.1 R.1 <B0.0 B0.0 R.0 O", receives[r]);
            made_plan_write(&made, 1, program);
            smp_status status = smp_verify_programs(&made.plan, made.flow);
            assert_int_equal(status, k == 0 ? SMP_OK : SMP_ERR_INPUT);
            if (k > 0)
                assert_non_null(
                    strstr(smp_last_error(), "the programs deadlock: rank 0 at action 3"));
            made_plan_free(&made);
        }
}

static void test_verify_stages(void **state)
{
    (void)state;
    made_plan made;
    make_good(&made);
    made.stage[0].rank = 1;
    made.stage[1].rank = 0;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "stage 0 lies on rank 1, expected rank 0"));
    made.stage[0].rank = 7;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.stage[0].rank = -1;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.stage[0].rank = 0;
    made.stage[1].rank = 1;
    made.plan.schedule = "interlaced";
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.plan.schedule = "simple"; /* the name of an order that the programs do not have: fine */
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made.plan.schedule = "searched"; /* places stages at will, one on each rank here */
    made.stage[0].rank = 1;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "rank 1 holds more than 1 stages"));
    made.stage[1].rank = 0;
    made_plan_write(&made, 0, good[1]);
    made_plan_write(&made, 1, good[0]);
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made.stage[0].rank = 0;
    made.stage[1].rank = 1;
    made_plan_write(&made, 0, good[0]);
    made_plan_write(&made, 1, good[1]);
    made.plan.chunks = 2;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.plan.chunks = 1;
    made.plan.microbatches = 2000000000;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.plan.microbatches = 2;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.plan.microbatches = 3;
    made.plan.training = false;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "an inference plan has forwards only"));
    made.plan.program = NULL;
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    made.plan.program = made.program;
    made_plan_free(&made);
}

static void edit(smp_program *p, int64_t at, int kind, smp_action saved)
{
    if (kind == 0) { /* remove */
        memmove(&p->action[at], &p->action[at + 1], (size_t)(p->n - at - 1) * sizeof saved);
        p->n--;
    } else if (kind == 1) { /* duplicate */
        assert_int_equal(smp_program_push(p, SMP_ACTION_F, 0, 0), SMP_OK);
        memmove(&p->action[at + 1], &p->action[at], (size_t)(p->n - at - 1) * sizeof saved);
    } else { /* to another kind, micro-batch or chunk */
        if (kind == 2)
            p->action[at].kind = (smp_action_kind)((saved.kind + 1) % (SMP_ACTION_OPTIMIZE + 1));
        if (kind == 3)
            p->action[at].microbatch++;
        if (kind == 4)
            p->action[at].chunk++;
        if (kind == 5)
            p->action[at].chunk = -5;
        if (kind == 6)
            p->action[at].microbatch = -5;
    }
}

/* No action may be missing, there twice, or of another kind, micro-batch or chunk. */
static void test_verify_single_edits(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "interleaved", 2, 2, 3, true, first_and_last);
    for (int rank = 0; rank < 2; rank++)
        for (int64_t at = 0; at < made.program[rank].n; at++)
            for (int kind = 0; kind <= 6; kind++) {
                smp_text text = {0};
                smp_program_format(&made.program[rank], &text);
                smp_action saved = made.program[rank].action[at];
                bool unused = (saved.kind >= SMP_ACTION_REDUCE && (kind == 3 || kind == 6)) ||
                              (saved.kind == SMP_ACTION_OPTIMIZE && kind >= 3);
                edit(&made.program[rank], at, kind, saved);
                smp_status status = smp_verify_programs(&made.plan, made.flow);
                if (status != (unused ? SMP_OK : SMP_ERR_INPUT))
                    fail_msg("rank %d, action %d, edit %d: status %d", rank, (int)at, kind, status);
                made_plan_write(&made, rank, text.data);
                smp_text_free(&text);
            }
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made_plan_free(&made);
}

/* The programs of all ranks under the executor's rules. */
typedef struct execution {
    const smp_flow *flow;
    const smp_program *program;
    const int *stage_rank;
    smp_memory_rank **memory; /* [ranks] */
    int chunks, microbatches, ranks;
    int64_t at[8];
    bool *posted, *sent;      /* [n_transfer * microbatches] */
    int *posted_as, *sent_as; /* when, as numbers */
    int clock;
} execution;

static int stage_at(const execution *e, int rank, int chunk)
{
    int stage = 0;
    while (e->stage_rank[stage] != rank || chunk-- > 0)
        stage++;
    return stage;
}

static bool messages_done(const execution *e, const smp_memory_message *list, int64_t begin,
                          int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        if (!e->posted[list[i].transfer * e->microbatches + list[i].microbatch])
            return false;
    return true;
}

static bool inputs_sent(const execution *e, int rank, const smp_action *a)
{
    int stage = stage_at(e, rank, a->chunk);
    smp_transfer_kind kind = a->kind == SMP_ACTION_F ? SMP_TRANSFER_F : SMP_TRANSFER_B;
    for (int32_t i = e->flow->in_begin[stage]; i < e->flow->in_begin[stage + 1]; i++) {
        const smp_transfer *t = &e->flow->transfer[e->flow->in_list[i]];
        if (t->kind == kind && e->stage_rank[t->from_stage] != rank &&
            !e->sent[e->flow->in_list[i] * e->microbatches + a->microbatch])
            return false;
    }
    return true;
}

static void start_sends(execution *e, int rank, const smp_action *a)
{
    int stage = stage_at(e, rank, a->chunk);
    smp_transfer_kind kind = a->kind == SMP_ACTION_SEND_F ? SMP_TRANSFER_F : SMP_TRANSFER_B;
    for (int32_t i = e->flow->out_begin[stage]; i < e->flow->out_begin[stage + 1]; i++)
        if (e->flow->transfer[e->flow->out_list[i]].kind == kind) {
            e->sent[e->flow->out_list[i] * e->microbatches + a->microbatch] = true;
            e->sent_as[e->flow->out_list[i] * e->microbatches + a->microbatch] = e->clock++;
        }
}

/* One rank as far as it gets; a send is complete once its receive is posted. */
static bool execute(execution *e, int rank)
{
    const smp_memory_rank *m = e->memory[rank];
    const smp_program *p = &e->program[rank];
    bool moved = false;
    for (; e->at[rank] < p->n; e->at[rank]++, moved = true) {
        int64_t i = e->at[rank];
        const smp_action *a = &p->action[i];
        if (!messages_done(e, m->wait, m->wait_begin[i], m->wait_begin[i + 1]))
            break;
        for (int64_t k = m->post_begin[i]; k < m->post_begin[i + 1]; k++) {
            bool *posted =
                &e->posted[m->post[k].transfer * e->microbatches + m->post[k].microbatch];
            moved |= !*posted;
            if (!*posted)
                e->posted_as[posted - e->posted] = e->clock++;
            *posted = true;
        }
        if (smp_action_is_compute(a->kind) && a->kind != SMP_ACTION_W && !inputs_sent(e, rank, a))
            break;
        if (a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_SEND_B)
            start_sends(e, rank, a);
    }
    return moved;
}

/* A transport that matches the messages of a channel by their order alone, as NCCL does, would
 * do. */
typedef struct queued {
    int channel, sent_as, posted_as;
} queued;

static int by_channel(const void *a, const void *b)
{
    const queued *x = a, *y = b;
    return x->channel != y->channel ? x->channel - y->channel : x->sent_as - y->sent_as;
}

static void check_queues(const execution *e, uint64_t seed)
{
    queued *list = calloc((size_t)(e->flow->n_transfer * e->microbatches) + 1, sizeof *list);
    int n = 0;
    assert_non_null(list);
    for (int32_t i = 0; i < e->flow->n_transfer; i++) {
        const smp_transfer *t = &e->flow->transfer[i];
        int from = e->stage_rank[t->from_stage], to = e->stage_rank[t->to_stage];
        bool direct = t->to_stage == t->from_stage + (t->kind == SMP_TRANSFER_F ? 1 : -1);
        for (int m = 0; from != to && m < e->microbatches; m++)
            list[n++] =
                (queued){direct ? from * 8 + to : 64 + i, e->sent_as[i * e->microbatches + m],
                         e->posted_as[i * e->microbatches + m]};
    }
    qsort(list, (size_t)n, sizeof *list, by_channel);
    for (int i = 1; i < n; i++)
        if (list[i].channel == list[i - 1].channel && list[i].posted_as < list[i - 1].posted_as)
            fail_msg("seed %llu: channel %d is out of order", (unsigned long long)seed,
                     list[i].channel);
    free(list);
}

static smp_memory_rank *plan_memory(const smp_graph *graph, const execution *e, int rank,
                                    bool training)
{
    smp_layout *layout[4] = {NULL};
    int stage_of_chunk[4];
    for (int c = 0; c < e->chunks; c++) {
        bool split = smp_layout_is_split(&e->program[rank], c);
        stage_of_chunk[c] = stage_at(e, rank, c);
        if (smp_layout_build(graph, e->flow, stage_of_chunk[c], split, NULL, NULL, &layout[c]))
            fail_msg("%s", smp_last_error());
    }
    smp_memory_input input = {.graph = graph,
                              .flow = e->flow,
                              .program = &e->program[rank],
                              .stage_of_chunk = stage_of_chunk,
                              .stage_rank = e->stage_rank,
                              .layout = (const smp_layout *const *)layout,
                              .rank = rank,
                              .chunks = e->chunks,
                              .microbatches = e->microbatches,
                              .ddp = 1,
                              .sharding = {.shard = 1},
                              .blocks = 1,
                              .optimizer_states = training ? 2 : 0};
    smp_memory_rank *memory = NULL;
    if (smp_memory_plan(&input, &memory))
        fail_msg("%s", smp_last_error());
    for (int c = 0; c < e->chunks; c++)
        smp_layout_destroy(layout[c]);
    return memory;
}

static void check_execution(uint64_t seed)
{
    fixture_random random = {seed};
    int p = 2 + (int)fixture_below(&random, 4), v = 1 + (int)fixture_below(&random, 3);
    int m = 1 + (int)fixture_below(&random, 8), n_stage = p * v, stage_rank[15];
    smp_schedule_shape shape = {p, v, m, fixture_chance(&random, 80), 0, 0, {.shard = 1}, {0}};
    const smp_schedule_kind *kind = fixture_schedule(&random, &shape);
    fixture_graph f;
    fixture_graph_make(&f, seed, 10 + (int32_t)fixture_below(&random, 40), shape.training,
                       1 + (int)(seed % 2) * 2);
    int32_t stage[MAX_OPS];
    fixture_stages(&f.graph, &random, n_stage, stage);
    for (int s = 0; s < n_stage; s++)
        stage_rank[s] = smp_schedule_stage_rank(kind, &shape, s);
    smp_flow *flow;
    smp_program program[8] = {{0}};
    smp_memory_rank *memory[8];
    if (smp_flow_build(&f.graph, stage, n_stage, 1, &flow) ||
        smp_lower(kind, &shape, flow, program))
        fail_msg("%s", smp_last_error());
    size_t messages = (size_t)flow->n_transfer * (size_t)m;
    execution e = {.flow = flow,
                   .program = program,
                   .stage_rank = stage_rank,
                   .memory = memory,
                   .chunks = v,
                   .microbatches = m,
                   .ranks = p,
                   .posted = calloc(messages + 1, sizeof(bool)),
                   .sent = calloc(messages + 1, sizeof(bool)),
                   .posted_as = calloc(messages + 1, sizeof(int)),
                   .sent_as = calloc(messages + 1, sizeof(int))};
    for (int r = 0; r < p; r++)
        memory[r] = plan_memory(&f.graph, &e, r, shape.training);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++)
            moved |= execute(&e, r);
    }
    for (int r = 0; r < p; r++) {
        if (e.at[r] < program[r].n)
            fail_msg("seed %llu: rank %d of %d stops at %d of %d", (unsigned long long)seed, r, p,
                     (int)e.at[r], (int)program[r].n);
        assert_true(messages_done(&e, memory[r]->wait, memory[r]->wait_begin[program[r].n],
                                  memory[r]->wait_begin[program[r].n + 1]));
        smp_memory_destroy(memory[r]);
        smp_program_free(&program[r]);
    }
    check_queues(&e, seed);
    free(e.posted);
    free(e.sent);
    free(e.posted_as);
    free(e.sent_as);
    smp_flow_destroy(flow);
    fixture_graph_free(&f);
}

static void test_verify_means_the_executor_finishes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++)
        check_execution(seed);
}

static void test_verify_plan_and_peaks(void **state)
{
    (void)state;
    made_plan made;
    int64_t peak[2];
    int stage_rank[4] = {0, 1, 0, 1};
    made_plan_create(&made, "interleaved", 2, 2, 3, true, made_chain);
    execution e = {.flow = made.flow,
                   .program = made.program,
                   .stage_rank = stage_rank,
                   .chunks = 2,
                   .microbatches = 3,
                   .ranks = 2};
    for (int r = 0; r < 2; r++) {
        smp_memory_rank *memory = plan_memory(made.graph, &e, r, true);
        peak[r] = memory->arena_bytes;
        smp_memory_destroy(memory);
    }
    assert_int_equal(smp_verify(&made.plan, made.graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "peak_bytes"));
    made.plan.predicted.peak_bytes = peak;
    if (smp_verify(&made.plan, made.graph))
        fail_msg("%s", smp_last_error());
    peak[1]++;
    assert_int_equal(smp_verify(&made.plan, made.graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "peak_bytes of rank 1"));
    peak[1]--;
    made.plan.fingerprint++;
    assert_int_equal(smp_verify(&made.plan, made.graph), SMP_ERR_INPUT);
    made.plan.fingerprint--;
    made.program[1].n--;
    assert_int_equal(smp_verify(&made.plan, made.graph), SMP_ERR_INPUT);
    made.program[1].n++;
    made.name[1] = "o0";
    assert_int_equal(smp_verify(&made.plan, made.graph), SMP_ERR_INPUT);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify_accepts),
        cmocka_unit_test(test_verify_swapped),
        cmocka_unit_test(test_verify_missing),
        cmocka_unit_test(test_verify_superfluous),
        cmocka_unit_test(test_verify_reduce_and_optimize),
        cmocka_unit_test(test_verify_deadlock),
        cmocka_unit_test(test_verify_jumps),
        cmocka_unit_test(test_verify_jump_deadlock),
        cmocka_unit_test(test_verify_stages),
        cmocka_unit_test(test_verify_single_edits),
        cmocka_unit_test(test_verify_means_the_executor_finishes),
        cmocka_unit_test(test_verify_plan_and_peaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
