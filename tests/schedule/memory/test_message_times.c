/* When receives are posted and sends waited for, against the words of schedule/memory/memory.h:
 * random programs, each message once, at the place that a slow reader of the program finds. Also
 * what the planner says of programs that do not fit their layouts. */
#include "tests/schedule/fixture.h"

#include "schedule/lower/crossing.h"
#include "tests/split_program.h"

enum { MAX_STAGES = 12, MAX_MESSAGES = 4000 };

typedef struct job {
    fixture_graph made;
    smp_flow *flow;
    int pipeline, chunks, microbatches;
    int stage_rank[MAX_STAGES];
    smp_program program[MAX_STAGES];
    smp_layout *layout[MAX_STAGES];
} job;

static void open_job(job *j, uint64_t seed)
{
    fixture_random random = {seed * 31};
    bool training = seed % 3 > 0;
    int32_t stage[40];
    *j = (job){.pipeline = 1 + (int)fixture_below(&random, 4),
               .chunks = 1 + (int)fixture_below(&random, 3),
               .microbatches = 1 + (int)fixture_below(&random, 4)};
    fixture_graph_make(&j->made, seed, 10 + (int32_t)fixture_below(&random, 25), training,
                       1 + (int)(seed % 2) * 2);
    int n_stage = j->pipeline * j->chunks;
    for (int s = 0; s < n_stage; s++)
        j->stage_rank[s] = s % j->pipeline;
    fixture_stages(&j->made.graph, &random, n_stage, stage);
    assert_int_equal(SMP_OK, smp_flow_build(&j->made.graph, stage, n_stage, 1, &j->flow));
    fixture_programs(j->flow, &random, j->pipeline, j->chunks, j->microbatches, training,
                     j->stage_rank, j->program);
    for (int r = 0; r < j->pipeline && training && seed % 2; r++)
        assert_int_equal(SMP_OK, split_program(&random.state, j->chunks, j->microbatches, 60, 20,
                                               30, &j->program[r]));
    for (int s = 0; s < n_stage; s++) {
        bool split = smp_layout_is_split(&j->program[s % j->pipeline], s / j->pipeline);
        assert_int_equal(
            SMP_OK, smp_layout_build(&j->made.graph, j->flow, s, split, NULL, NULL, &j->layout[s]));
    }
}

static void close_job(job *j)
{
    for (int s = 0; s < j->pipeline * j->chunks; s++)
        smp_layout_destroy(j->layout[s]);
    for (int r = 0; r < j->pipeline; r++)
        smp_program_free(&j->program[r]);
    smp_flow_destroy(j->flow);
    fixture_graph_free(&j->made);
}

static smp_status plan_rank(job *j, int rank, smp_memory_rank **memory)
{
    smp_memory_input input = {.graph = &j->made.graph,
                              .flow = j->flow,
                              .program = &j->program[rank],
                              .stage_rank = j->stage_rank,
                              .rank = rank,
                              .chunks = j->chunks,
                              .microbatches = j->microbatches,
                              .ddp = 1,
                              .blocks = 1,
                              .sharding = {.shard = 1},
                              .optimizer_states = 1};
    return fixture_memory(input, j->pipeline, j->layout, memory);
}

/* Before the last compute action that stands before the receive. */
static int64_t post_of(const smp_program *program, int64_t receive)
{
    while (receive > 0 && !smp_action_is_compute(program->action[receive].kind))
        receive--;
    return receive;
}

static int64_t optimizer_of(const smp_program *program)
{
    int64_t i = 0;
    while (i < program->n && program->action[i].kind != SMP_ACTION_OPTIMIZE)
        i++;
    return i;
}

/* Direct: before the second compute action after the send, at the latest before O. Jumping:
 * activations before their backward, others before O. Without O at the end. */
static int64_t wait_of(const smp_program *program, int64_t send, bool direct)
{
    const smp_action *sent = &program->action[send];
    int64_t last = optimizer_of(program);
    for (int64_t i = send + 1, seen = 0; i < last; i++) {
        const smp_action *a = &program->action[i];
        seen += smp_action_is_compute(a->kind);
        bool own = a->chunk == sent->chunk && a->microbatch == sent->microbatch;
        bool back = a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I;
        if (direct ? seen == 2 : sent->kind == SMP_ACTION_SEND_F && own && back)
            return i;
    }
    return last;
}

typedef struct expected {
    int64_t position, action;
    smp_memory_message message;
} expected;

/* What the program sends to other ranks, or receives from them, in the order of its actions. */
static int expect(const job *j, int rank, bool sends, expected *list)
{
    const smp_program *program = &j->program[rank];
    int n = 0;
    for (int64_t i = 0; i < program->n; i++) {
        smp_action a = program->action[i];
        bool forward = a.kind == (sends ? SMP_ACTION_SEND_F : SMP_ACTION_RECV_F);
        if (!forward && a.kind != (sends ? SMP_ACTION_SEND_B : SMP_ACTION_RECV_B))
            continue;
        int stage = a.chunk * j->pipeline + rank;
        for (int32_t k = 0; k < j->flow->n_transfer; k++) {
            const smp_transfer *t = &j->flow->transfer[k];
            if ((t->kind == SMP_TRANSFER_F) != forward ||
                (sends ? t->from_stage : t->to_stage) != stage ||
                j->stage_rank[t->from_stage] == j->stage_rank[t->to_stage])
                continue;
            assert_true(n < MAX_MESSAGES);
            bool direct = t->to_stage - t->from_stage == (forward ? 1 : -1);
            list[n++] = (expected){
                sends ? wait_of(program, i, direct) : post_of(program, i), i, {k, a.microbatch}};
        }
    }
    return n;
}

/* Every expected message stands where it is expected, in the order of actions, and nothing else. */
static void compare(const expected *list, int n, int64_t positions, const int64_t *begin,
                    const smp_memory_message *message)
{
    assert_int_equal(begin[0], 0);
    assert_int_equal(begin[positions], n);
    for (int64_t p = 0; p < positions; p++) {
        int64_t before = -1;
        for (int64_t i = begin[p]; i < begin[p + 1]; i++) {
            int k = 0;
            while (k < n && (list[k].message.transfer != message[i].transfer ||
                             list[k].message.microbatch != message[i].microbatch))
                k++;
            assert_true(k < n);
            assert_int_equal(list[k].position, p);
            assert_true(list[k].action >= before);
            before = list[k].action;
            for (int64_t other = 0; other < i; other++)
                assert_true(message[other].transfer != message[i].transfer ||
                            message[other].microbatch != message[i].microbatch);
        }
    }
}

static void test_memory_messages_have_their_times(void **state)
{
    (void)state;
    static expected list[MAX_MESSAGES];
    int messages = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        job j;
        open_job(&j, seed);
        for (int r = 0; r < j.pipeline; r++) {
            smp_memory_rank *memory;
            int64_t n = j.program[r].n;
            assert_int_equal(SMP_OK, plan_rank(&j, r, &memory));
            int sent = expect(&j, r, true, list);
            compare(list, sent, n + 1, memory->wait_begin, memory->wait);
            int received = expect(&j, r, false, list);
            compare(list, received, n, memory->post_begin, memory->post);
            messages += sent + received;
            smp_memory_destroy(memory);
        }
        close_job(&j);
    }
    assert_in_range(messages, 10000, 1000000);
}

/* A program whose backwards are split, with layouts for whole ones; actions of nobody. */
static void test_memory_refuses_programs_that_do_not_fit(void **state)
{
    (void)state;
    job j;
    smp_memory_rank *memory = NULL;
    open_job(&j, 4);
    smp_action *action = j.program[0].action;
    int64_t b = 0;
    while (action[b].kind != SMP_ACTION_B)
        b++;
    smp_action whole = action[b];
    action[b].kind = SMP_ACTION_I;
    assert_int_equal(SMP_ERR_FAILED, plan_rank(&j, 0, &memory));
    assert_non_null(strstr(smp_last_error(), "splits the backward of chunk"));
    const int32_t wrong[][2] = {{-1, 0}, {j.chunks, 0}, {0, -1}, {0, j.microbatches}};
    for (int i = 0; i < 4; i++) {
        action[b] = whole;
        action[b].chunk = wrong[i][0];
        action[b].microbatch = wrong[i][1];
        assert_int_equal(SMP_ERR_INPUT, plan_rank(&j, 0, &memory));
        assert_non_null(strstr(smp_last_error(), "is for micro-batch"));
    }
    assert_null(memory);
    action[b] = whole;
    close_job(&j);
}

/* Each action that the flow needs is missed where it is not there. */
static void test_memory_names_what_a_program_lacks(void **state)
{
    (void)state;
    static const struct {
        smp_action_kind kind;
        const char *word;
    } kinds[] = {{SMP_ACTION_F, " F"},
                 {SMP_ACTION_RECV_F, " <F"},
                 {SMP_ACTION_RECV_B, " <B"},
                 {SMP_ACTION_SEND_F, " >F"},
                 {SMP_ACTION_SEND_B, " >B"}};
    int tried[5] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        job j;
        open_job(&j, seed);
        for (int i = 0; i < 5 * j.pipeline; i++) {
            int rank = i / 5, k = i % 5;
            smp_memory_rank *memory = NULL;
            smp_program *program = &j.program[rank];
            int64_t at = program->n - 1;
            while (at >= 0 && program->action[at].kind != kinds[k].kind)
                at--;
            if (at < 0)
                continue;
            smp_action there = program->action[at];
            char lacks[64];
            snprintf(lacks, sizeof lacks, "lacks%s%d.%d", kinds[k].word, (int)there.microbatch,
                     (int)there.chunk);
            program->action[at].kind = SMP_ACTION_REDUCE;
            assert_int_equal(SMP_ERR_INPUT, plan_rank(&j, rank, &memory));
            if (!strstr(smp_last_error(), lacks))
                fail_msg("'%s' does not say '%s'", smp_last_error(), lacks);
            program->action[at] = there;
            tried[k]++;
        }
        close_job(&j);
    }
    for (int k = 0; k < 5; k++)
        assert_true(tried[k] > 10);
}

/* What is not made has no place: in inference no block but what forwards leave. */
static void test_memory_gives_no_place_to_what_is_not_made(void **state)
{
    (void)state;
    for (uint64_t seed = 3; seed <= 60; seed += 3) {
        job j;
        open_job(&j, seed);
        for (int r = 0; r < j.pipeline; r++) {
            smp_memory_rank *memory;
            assert_int_equal(SMP_OK, plan_rank(&j, r, &memory));
            for (int i = 0; i < SMP_N_BLOCK * j.chunks * j.microbatches; i++) {
                int k = i / (j.chunks * j.microbatches), at = i % (j.chunks * j.microbatches);
                const smp_layout *layout = j.layout[at / j.microbatches * j.pipeline + r];
                if (layout->block_bytes[k] == 0 || k == SMP_N_BLOCK - 1)
                    assert_int_equal(memory->stash[k][at], -1);
                else
                    assert_true(memory->stash[k][at] >= memory->fixed_bytes);
            }
            smp_memory_destroy(memory);
        }
        close_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_messages_have_their_times),
        cmocka_unit_test(test_memory_refuses_programs_that_do_not_fit),
        cmocka_unit_test(test_memory_names_what_a_program_lacks),
        cmocka_unit_test(test_memory_gives_no_place_to_what_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
