/* load_balance: what it adds to a gradient is that of its loss, against finite differences in
 * double, without padding. */
#include "tests/graph/ops/op_harness.h"

enum { TOKENS = 5, EXPERTS = 4, TOP_K = 2, BATCH = 3 };

static int64_t rank_of(const double *logits, int64_t expert)
{
    int64_t rank = 0;
    for (int64_t e = 0; e < EXPERTS; e++)
        rank += logits[e] > logits[expert] || (logits[e] == logits[expert] && e < expert);
    return rank;
}

/* The loss of a sample, with the choices of `chosen`. */
static double loss_of(const double *logits, const double *chosen)
{
    double loss = 0;
    for (int64_t e = 0; e < EXPERTS; e++) {
        double f = 0, p = 0;
        for (int64_t t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int64_t i = 0; i < EXPERTS; i++)
                sum += exp(logits[t * EXPERTS + i]);
            p += exp(logits[t * EXPERTS + e]) / sum / TOKENS;
            f += rank_of(chosen + t * EXPERTS, e) < TOP_K ? 1.0 / (TOKENS * TOP_K) : 0;
        }
        loss += EXPERTS * f * p;
    }
    return loss;
}

static void open_run(op_run *run, double coefficient)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml,
             "smp: 1\ninputs: {x: {dtype: float32, shape: [%d, %d]}}\nops:\n"
             "  - {op: load_balance, name: op, in: x, out: y, top_k: %d, coefficient: %g}\n",
             TOKENS, EXPERTS, TOP_K, coefficient);
    op_run_open(run, yaml, "op", BATCH, 0);
}

static void test_gradient(void **state)
{
    (void)state;
    enum { N = TOKENS * EXPERTS };
    op_run run;
    uint64_t rng = 4;
    open_run(&run, 0.5);
    run.padding = 1;
    float *x = run.in[0].data, *dout = run.dout.data, *din = run.din[0].data;
    for (int i = 0; i < BATCH * N; i++) {
        x[i] = (float)(4 * random_unit(&rng) - 2);
        dout[i] = i < (BATCH - 1) * N ? (float)random_unit(&rng) : 0;
    }
    assert_int_equal(op_run_forward(&run), SMP_OK);
    assert_memory_equal(run.out.data, x, run.out.bytes);
    op_run_backward_input(&run, 1);
    for (int b = 0; b < BATCH; b++) {
        double at[N], moved[N];
        for (int i = 0; i < N; i++)
            at[i] = moved[i] = (double)x[b * N + i];
        for (int i = 0; i < N; i++) {
            const double step = 1e-5;
            moved[i] = at[i] + step;
            double up = loss_of(moved, at);
            moved[i] = at[i] - step;
            double slope = (up - loss_of(moved, at)) / (2 * step);
            moved[i] = at[i];
            double wanted =
                (double)dout[b * N + i] + (b < BATCH - 1 ? 0.5 * slope / (BATCH - 1) : 0);
            assert_true(fabs((double)din[b * N + i] - wanted) < 1e-6);
        }
    }
    op_run_close(&run);
}

/* Where all logits are equal, those that are chosen nevertheless are to become less. */
static void test_equal_logits(void **state)
{
    (void)state;
    op_run run;
    open_run(&run, 1);
    float *x = run.in[0].data, *din = run.din[0].data;
    memset(run.dout.data, 0, run.dout.bytes);
    for (int i = 0; i < BATCH * TOKENS * EXPERTS; i++)
        x[i] = 1;
    op_run_backward_input(&run, 1);
    for (int t = 0; t < BATCH * TOKENS; t++) /* of equals the first are chosen: less of these */
        for (int e = 0; e < EXPERTS; e++)
            assert_true(e < TOP_K ? din[t * EXPERTS + e] > 0 : din[t * EXPERTS + e] < 0);
    op_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_equal_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
