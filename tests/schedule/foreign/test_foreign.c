/* Schedules of others: what each dialect reads as, what is found wrong, who waits for whom; and on
 * schedules with actions exchanged at random the verdict of a second way of proving it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/foreign/foreign_judge.h"
#include "tests/case_count.h"

static smp_foreign *read_text(const char *text)
{
    smp_foreign *foreign = NULL;
    if (smp_foreign_parse("s.csv", text, 0, 0, &foreign) != SMP_OK)
        fail_msg("%s: %s", smp_last_error(), text);
    return foreign;
}

static int count(const smp_foreign *foreign, smp_foreign_kind kind)
{
    int n = 0;
    for (int r = 0; r < foreign->n_rank; r++)
        for (int32_t i = 0; i < foreign->rank[r].n; i++)
            n += foreign->rank[r].action[i].kind == kind;
    return n;
}

/* Judged, without the planner. */
static smp_foreign_verdict prove(const smp_foreign *foreign)
{
    smp_foreign_verdict verdict;
    assert_int_equal(smp_foreign_prove(foreign, NULL, &verdict), SMP_OK);
    return verdict;
}

static void expect_legal(const char *text, double step, int live0)
{
    smp_foreign *foreign = read_text(text);
    smp_foreign_verdict v = prove(foreign);
    if (!v.legal)
        fail_msg("%s: %s", text, v.findings.item[0].message);
    assert_float_equal(v.run.step_us / SMP__FOREIGN_UNIT_US, step, 1e-9);
    assert_int_equal(v.run.rank[0].live, live0);
    for (int r = 0; r < foreign->n_rank; r++) {
        const smp_foreign_load *load = &v.run.rank[r];
        assert_float_equal(load->idle_us, load->warmup_us + load->wait_us + load->drain_us, 1e-6);
        assert_float_equal(load->idle_us + load->busy_us, v.run.step_us, 1e-6);
    }
    smp_foreign_verdict_free(&v);
    smp_foreign_destroy(foreign);
}

static void expect_finding(const char *text, const char *kind, const char *message)
{
    smp_foreign *foreign = read_text(text);
    smp_foreign_verdict v = prove(foreign);
    if (v.legal || strcmp(v.findings.item[0].kind, kind) != 0 ||
        !strstr(v.findings.item[0].message, message))
        fail_msg("%s: got '%s', expected '%s'", text,
                 v.legal ? "nothing" : v.findings.item[0].message, message);
    smp_foreign_verdict_free(&v);
    smp_foreign_destroy(foreign);
}

#define COMMS_0 "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"
#define COMMS_1 "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"

static void test_foreign_dialects(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int f, b, i, w, n_rank, n_stage, m;
        bool communicates;
    } cases[] = {
        {"0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n", 4, 4, 0, 0, 2, 2, 2, false},
        {"0F0,0I0,0W0", 1, 0, 1, 1, 1, 1, 1, false},
        {"0F0,0B0,0W0\n", 1, 0, 1, 1, 1, 1, 1, false},            /* B beside W alone */
        {"0F0,0F1,0BW0,0B1,0W1\r\n", 2, 1, 1, 1, 1, 1, 2, false}, /* BW is both */
        {"0F0,0F1,0B0,0I1,0W1\n", 2, 1, 1, 1, 1, 1, 2, false},    /* of today: B is both */
        {COMMS_0 "\n" COMMS_1 "\n", 4, 4, 0, 0, 2, 2, 2, true},
        {"0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n", 1, 1, 0, 0, 1, 1, 1, false},
        {"0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", 2, 2, 0, 0, 1, 1, 2, false},
        {"\"0F0\", 0B0 ,,\n", 1, 1, 0, 0, 1, 1, 1, false},
        {"0F0\n1F0\n", 2, 0, 0, 0, 2, 2, 1, false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        smp_foreign *foreign = read_text(cases[k].text);
        assert_string_equal(foreign->format, "torch-csv");
        assert_int_equal(count(foreign, SMP_FOREIGN_F), cases[k].f);
        assert_int_equal(count(foreign, SMP_FOREIGN_B), cases[k].b);
        assert_int_equal(count(foreign, SMP_FOREIGN_I), cases[k].i);
        assert_int_equal(count(foreign, SMP_FOREIGN_W), cases[k].w);
        assert_int_equal(foreign->n_rank, cases[k].n_rank);
        assert_int_equal(foreign->n_stage, cases[k].n_stage);
        assert_int_equal(foreign->microbatches, cases[k].m);
        assert_int_equal(foreign->communicates, cases[k].communicates);
        smp_foreign_destroy(foreign);
    }
}

static void expect_layers(const char *text, int ranks, const char *format, int n_rank,
                          const char *layers)
{
    smp_foreign *foreign = NULL;
    smp_text got = {0};
    if (smp_foreign_parse("l", text, ranks, 6, &foreign) != SMP_OK)
        fail_msg("%s: %s", smp_last_error(), text);
    assert_string_equal(foreign->format, format);
    assert_int_equal(foreign->n_rank, n_rank);
    assert_int_equal(foreign->microbatches, 6);
    for (int s = 0; s < foreign->n_stage; s++)
        smp_text_append(&got, "%d ", (int)foreign->layers[s]);
    assert_string_equal(got.data, layers);
    smp_foreign_verdict v = prove(foreign);
    assert_true(v.legal);
    smp_foreign_verdict_free(&v);
    smp_text_free(&got);
    smp_foreign_destroy(foreign);
}

static void test_foreign_layouts(void **state)
{
    (void)state;
    expect_layers("Et*3|(tt|)*4,m|L", 0, "megatron-layout", 7, "3 2 2 2 2 1 0 ");
    expect_layers("Ett|tt|tt|ttL\n", 2, "megatron-layout", 2, "2 2 2 2 ");
    expect_layers("E,t*2|((t|)*2,t|)*1L", 0, "megatron-layout", 5, "2 1 1 1 0 ");
    expect_layers("[0, 3, 5, 9]\n", 0, "deepspeed-parts", 3, "3 2 4 ");
    smp_foreign *foreign = NULL; /* short, and its order would be long to make */
    assert_int_equal(smp_foreign_parse("l", "E(tt|)*57482L", 0, 4, &foreign), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "57483 ranks and 4 micro-batches, too many"));
}

static void test_foreign_steps(void **state)
{
    (void)state;
    expect_legal("0F0,0B0\n", 3, 1);
    expect_legal("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n", 9, 2);
    expect_legal(COMMS_0 "\n" COMMS_1 "\n", 9, 2);
    expect_legal("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n", 8, 2);
    /* F1 begins with B0, whose gradient comes later than F1's own input. */
    expect_legal("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n", 12, 2);
}

static void test_foreign_findings(void **state)
{
    (void)state;
    expect_finding("0F0,0B0,0F0\n", "action", "rank 0: 0F0 stands there twice");
    expect_finding("0F0,0F1,0B0\n", "missing", "0B1 is missing");
    expect_finding("0F0,0I0,0B1,0F1\n", "missing", "0W0 is missing");
    expect_finding("0F0,2B0,0B0,2F0\n", "missing", "1F0 is missing");
    expect_finding("0F0,1F0,0B0\n1B0\n", "action", "lies on another rank");
    expect_finding("0F0,0B0,0SEND_F7\n", "action", "of a micro-batch that nobody computes");
    expect_finding("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "missing",
                   "1RECV_F0 is missing");
    expect_finding("0UNSHARD,0F0,0RESHARD,0B0\n", "action", "0B0 computes with weights");
    expect_finding("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n", "order",
                   "1F1 is not in the order of micro-batches");
    expect_finding("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", "action", "0B1 adds to gradients");
    expect_finding("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1RECV_F0,1F0,1F1\n", "order",
                   "rank 1 takes 1RECV_F1 where rank 0 has sent 0SEND_F0");
}

static void test_foreign_deadlocks(void **state)
{
    (void)state;
    expect_finding("0B0,0F0\n", "deadlock", "rank 0 stands at 0B0 (cell 1) and waits for 0F0");
    expect_finding("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock",
                   "rank 0 stands at 0B0 (cell 2) and waits for 1B0 (cell 3 of rank 1); rank 1 "
                   "stands at 1F1 (cell 2) and waits for 0F1 (cell 3 of rank 0)");
    expect_finding("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                   "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
                   "deadlock", "rank 1 stands at 1F1 (cell 4) and waits for 0SEND_F1");
    /* Both begin at once, and one of them cannot. */
    expect_finding("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n", "deadlock", "0B0");
}

static void test_foreign_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"hello\n", "s.csv:1:1: expected a schedule"},
        {"0F0,0X1\n", "s.csv:1:5: got '0X1', expected an action"},
        {"0F0\n0F\n", "s.csv:2:3: got ''"},
        {"0F0 0B0\n", "s.csv:1:5: got '0B0'"},
        {"0F0,(0F1;0B0)X\n", "s.csv:1:13: expected ')OVERLAP_F_B'"},
        {"0F99999999\n", "above"},
        {"70000F0\n", "got stage 70000"},
        {"[0, 5, 5]\n", "without layers"},
        {"[1, 5]\n", "expected 0"},
        {"[0, 5\n", "expected boundaries"},
        {"Et|(t|", "expected ')'"},
        {"EEt", "got 2 embeddings"},
        {"Et*99999999|L", "at most a million"},
        {"Et|(((t*999)*999)*999)|L", "at most a million"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_foreign *foreign = NULL;
        assert_int_equal(smp_foreign_parse("s.csv", cases[i].text, 0, 0, &foreign), SMP_ERR_INPUT);
        if (!strstr(smp_last_error(), cases[i].message))
            fail_msg("got '%s', expected '%s'", smp_last_error(), cases[i].message);
    }
}

/* Compute actions of all ranks as a graph of what has to be before what; a schedule ends if that
 * has no cycle: nodes without predecessors are taken away until none is left. */
static bool ends(const smp_foreign *foreign)
{
    int n = 0, taken = 0;
    smp_foreign_action all[512];
    int before[512];
    bool gone[512] = {false};
    for (int r = 0; r < foreign->n_rank; r++) {
        for (int32_t i = 0; i < foreign->rank[r].n; i++, n++) {
            all[n] = foreign->rank[r].action[i];
            before[n] = i > 0 ? n - 1 : -1;
        }
    }
    for (bool progress = true; progress;) {
        progress = false;
        for (int a = 0; a < n; a++) {
            bool free = !gone[a] && (before[a] < 0 || gone[before[a]]);
            for (int b = 0; b < n && free; b++) {
                const bool same = all[b].microbatch == all[a].microbatch;
                const int up = all[b].stage - all[a].stage;
                const bool f = all[a].kind == SMP_FOREIGN_F;
                const bool needs = same && ((f && all[b].kind == SMP_FOREIGN_F && up == -1) ||
                                            (!f && all[b].kind == SMP_FOREIGN_F && up == 0) ||
                                            (!f && all[b].kind == SMP_FOREIGN_B && up == 1));
                free = !needs || gone[b];
            }
            gone[a] |= free;
            taken += free;
            progress |= free;
        }
    }
    return taken == n;
}

/* 1F1B of p ranks and v chunks with a few actions of a rank exchanged. */
static void shuffle(smp_text *text, unsigned *seed)
{
    const int p = 2 + (int)(rand_r(seed) % 3), v = 1 + (int)(rand_r(seed) % 2);
    const int m = p * (1 + (int)(rand_r(seed) % 2));
    const smp_schedule_kind *kind = smp_schedule_find("interleaved");
    const smp_schedule_shape shape = {
        .pipeline = p, .chunks = v, .microbatches = m, .training = true};
    for (int r = 0; r < p; r++) {
        smp_program order = {0};
        assert_int_equal(kind->order(&shape, r, &order), SMP_OK);
        for (int k = (int)(rand_r(seed) % 2); k > 0; k--) {
            int64_t i = rand_r(seed) % (order.n - 1), far = 1 + rand_r(seed) % 3;
            int64_t j = i + far < order.n ? i + far : order.n - 1;
            smp_action kept = order.action[i];
            order.action[i] = order.action[j];
            order.action[j] = kept;
        }
        for (int64_t i = 0; i < order.n; i++)
            smp_text_append(text, "%s%d%s%d", i > 0 ? "," : "", (int)order.action[i].chunk * p + r,
                            order.action[i].kind == SMP_ACTION_F ? "F" : "B",
                            (int)order.action[i].microbatch);
        smp_text_append(text, "\n");
        smp_program_free(&order);
    }
}

static void test_foreign_against_graph(void **state)
{
    (void)state;
    int n_end = 0, n_stuck = 0;
    unsigned seed = 3;
    for (int i = 0; i < case_count(2000); i++) {
        smp_text text = {0};
        shuffle(&text, &seed);
        smp_foreign *foreign = read_text(text.data);
        smp_foreign_verdict v = prove(foreign);
        const bool losses = v.findings.n > 0 && strcmp(v.findings.item[0].kind, "order") == 0;
        assert_true(v.complete || losses);
        if (!losses && v.legal != ends(foreign))
            fail_msg("case %d: %s:\n%s", i, v.legal ? "taken" : v.findings.item[0].message,
                     text.data);
        n_end += v.legal;
        n_stuck += !v.legal && !losses;
        smp_foreign_verdict_free(&v);
        smp_foreign_destroy(foreign);
        smp_text_free(&text);
    }
    assert_true(n_end > 100 && n_stuck > 100);
}

/* On equal stages the planner is at least as good as a rule, and its own rule is as good. */
static void test_foreign_comparison(void **state)
{
    (void)state;
    smp_foreign *foreign = read_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    smp_foreign_verdict v;
    assert_int_equal(smp_foreign_judge(foreign, NULL, 0, &v), SMP_OK);
    assert_non_null(v.best);
    assert_true(v.best_step <= 1.0001 * v.run.step_us);
    assert_float_equal(v.best_step / SMP__FOREIGN_UNIT_US, 7, 0.01); /* split backwards */
    smp_foreign_verdict_free(&v);
    smp_foreign_destroy(foreign);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign_dialects),      cmocka_unit_test(test_foreign_layouts),
        cmocka_unit_test(test_foreign_steps),         cmocka_unit_test(test_foreign_findings),
        cmocka_unit_test(test_foreign_deadlocks),     cmocka_unit_test(test_foreign_refuses),
        cmocka_unit_test(test_foreign_against_graph), cmocka_unit_test(test_foreign_comparison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
