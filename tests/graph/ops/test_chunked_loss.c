/* What linear_cross_entropy has to do alike whatever its chunks: hits, the rows that errors name,
 * and the bits of linear and cross_entropy where one chunk is all rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "tests/graph/ops/op_harness.h"

enum { ROWS = 75, BATCH = 2, CLASSES = 7, IN = 5 };

#define INPUTS                                                                                     \
    "smp: 1\nname: t\ninputs:\n  x: {dtype: float32, shape: [75, 5]}\n"                            \
    "  t: {dtype: int32, shape: [75]}\n"
#define JOINED(attrs)                                                                              \
    INPUTS "ops:\n  - {op: linear_cross_entropy, name: op, in: [x, t], out: l, features: 7" attrs  \
           "}\nloss: l\n"
#define APART                                                                                      \
    INPUTS                                                                                         \
    "ops:\n  - {op: linear, name: head, in: x, out: y, features: 7}\n"                             \
    "  - {op: cross_entropy, name: op, in: [y, t], out: l, label_smoothing: 0.1}\nloss: l\n"

/* Whole numbers: logits are exact, and often equal. */
static void fill_values(op_run *run, bool whole)
{
    for (int i = 0; i < BATCH * ROWS * IN; i++)
        ((float *)run->in[0].data)[i] = whole ? (float)(i * 7 % 3) : (float)(i * 7 % 31) / 9;
    for (int i = 0; i < BATCH * ROWS; i++)
        ((int32_t *)run->in[1].data)[i] = i % 8 == 7 ? -1 : i * 5 % CLASSES;
    for (int i = 0; i < CLASSES * IN; i++)
        ((float *)run->param[0].data)[i] = whole ? (float)(i % 4 - 1) : (float)(i % 17) / 7 - 1;
    for (int i = 0; i < CLASSES; i++)
        ((float *)run->param[1].data)[i] = (float)(i % 2);
    *(float *)run->dout.data = 1;
}

static smp_status count_hits(op_run *run, int64_t hits[SMP_OP_HITS])
{
    op_arrays arrays = {0};
    for (int i = 0; i < run->op->n_in; i++)
        arrays.in[i] = run->in[i].data;
    smp_op_call call = op_run_call(run, &arrays);
    op_run_outs(run, ~0u, &arrays, &call);
    call.aux = run->aux.data;
    call.hits = hits;
    return run->op->kind->cpu.forward(&call);
}

/* Rows with fewer than `top` classes before their target's. */
static int64_t naive_hits(const op_run *run, int top)
{
    const float *x = run->in[0].data, *w = run->param[0].data, *bias = run->param[1].data;
    const int32_t *target = run->in[1].data;
    int64_t hits = 0;
    for (int r = 0; r < BATCH * ROWS; r++) {
        float logit[CLASSES];
        int before = 0;
        for (int c = 0; c < CLASSES; c++) {
            logit[c] = bias[c];
            for (int k = 0; k < IN; k++)
                logit[c] += x[r * IN + k] * w[c * IN + k];
        }
        for (int c = 0; c < CLASSES && target[r] >= 0; c++)
            before +=
                logit[c] > logit[target[r]] || (logit[c] == logit[target[r]] && c < target[r]);
        hits += target[r] >= 0 && before < top;
    }
    return hits;
}

static void test_chunked_loss_counts_hits(void **state)
{
    (void)state;
    static const char *const models[] = {JOINED(""), JOINED(", chunk: 64"), JOINED(", chunk: 128")};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        op_run run;
        int64_t hits[SMP_OP_HITS] = {-1, -1};
        op_run_open(&run, models[i], "op", BATCH, 0);
        fill_values(&run, true);
        assert_int_equal(count_hits(&run, hits), SMP_OK);
        assert_int_equal(hits[0], naive_hits(&run, 1));
        assert_int_equal(hits[1], naive_hits(&run, SMP_TOP));
        assert_true(hits[1] > hits[0] && hits[0] > 0);
        op_run_close(&run);
    }
}

/* By its place in the micro-batch. */
static void test_chunked_loss_names_row(void **state)
{
    (void)state;
    op_run run;
    op_run_open(&run, JOINED(", chunk: 64"), "op", BATCH, 0);
    fill_values(&run, true);
    ((int32_t *)run.in[1].data)[130] = CLASSES;
    assert_int_equal(op_run_forward(&run), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "(linear_cross_entropy): target 7 at position 130 "));
    op_run_close(&run);
}

static void test_chunked_loss_refuses_chunk(void **state)
{
    (void)state;
    static const char model[] = JOINED(", chunk: 65");
    smp_graph *graph = NULL;
    assert_int_equal(smp_graph_parse("m.yaml", model, strlen(model), &graph), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "chunk: got 65 rows, expected a multiple of 64"));
}

/* The head and the loss by themselves: the loss, gradients of x, weight and bias. */
static void run_apart(const op_run *joined, float *loss, float *dx, op_run *head)
{
    op_run last;
    op_run_open(head, APART, "head", BATCH, 0);
    op_run_open(&last, APART, "op", BATCH, 0);
    memcpy(head->in[0].data, joined->in[0].data, head->in[0].bytes);
    for (int k = 0; k < 2; k++) {
        memcpy(head->param[k].data, joined->param[k].data, head->param[k].bytes);
        memset(head->dparam[k].data, 0, head->dparam[k].bytes);
    }
    assert_int_equal(op_run_forward(head), SMP_OK);
    memcpy(last.in[0].data, head->out.data, head->out.bytes);
    memcpy(last.in[1].data, joined->in[1].data, joined->in[1].bytes);
    *(float *)last.dout.data = 1;
    assert_int_equal(op_run_forward(&last), SMP_OK);
    *loss = *(float *)last.out.data;
    op_run_backward_input(&last, 1);
    memcpy(head->dout.data, last.din[0].data, head->dout.bytes);
    op_run_backward_weight(head);
    op_run_backward_input(head, 1);
    memcpy(dx, head->din[0].data, head->din[0].bytes);
    op_run_close(&last);
}

static void test_chunked_loss_has_bits_of_both(void **state)
{
    (void)state;
    op_run joined, head;
    float loss, dx[BATCH * ROWS * IN];
    op_run_open(&joined, JOINED(", label_smoothing: 0.1"), "op", BATCH, 0);
    fill_values(&joined, false);
    for (int k = 0; k < 2; k++)
        memset(joined.dparam[k].data, 0, joined.dparam[k].bytes);
    run_apart(&joined, &loss, dx, &head);
    assert_int_equal(op_run_forward(&joined), SMP_OK);
    op_run_backward_weight(&joined);
    op_run_backward_input(&joined, 1);
    assert_memory_equal(joined.out.data, &loss, sizeof loss);
    assert_memory_equal(joined.din[0].data, dx, sizeof dx);
    for (int k = 0; k < 2; k++)
        assert_same_bits(&joined.dparam[k], &head.dparam[k]);
    op_run_close(&head);
    op_run_close(&joined);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunked_loss_counts_hits),
        cmocka_unit_test(test_chunked_loss_names_row),
        cmocka_unit_test(test_chunked_loss_refuses_chunk),
        cmocka_unit_test(test_chunked_loss_has_bits_of_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
