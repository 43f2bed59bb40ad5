/* Whose values decide what counts in the loss: found in the time and on the stack that the model's
 * size allows, whatever lies between the inputs and the targets of the loss. One rank. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/inputs/loss_share.h"
#include "exec/inputs/step_inputs.h"
#include "graph/base/text.h"

enum { PATIENCE_S = 60, STACK_BYTES = 512 << 10 };

static const char inputs_text[] = "smp: 1\n"
                                  "name: targets\n"
                                  "inputs:\n"
                                  "  logits: {dtype: float32, shape: [4, 6]}\n"
                                  "  other: {dtype: int32, shape: [4]}\n"
                                  "  t0: {dtype: int32, shape: [2]}\n"
                                  "ops:\n";

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

/* Ends the program if that takes longer, or more stack, than a walk over the model can. */
static smp_status build(smp *s)
{
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    little = before;
    little.rlim_cur = STACK_BYTES;
    assert_int_equal(setrlimit(RLIMIT_STACK, &little), 0);
    alarm(PATIENCE_S);
    smp_status status = smp__loss_share_build(s);
    alarm(0);
    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
    return status;
}

/* Of a model of these ops, the last of which makes the targets, finds out who counts. */
static smp_status find(smp_text *ops, const char *targets, double counted[3])
{
    smp s = {.comm = &(smp_comm){.ddp_size = 1},
             .plan = &(smp_plan){.gradient_blocks = 1},
             .work = &(smp__work){.microbatches = 1, .batch = 1},
             .given = &(smp__given){0},
             .device = smp_devices()[0]};
    smp_text model = {0};
    smp_text_append(&model,
                    "%s%s  - {op: linear, name: head, in: logits, out: y, features: 6}\n"
                    "  - {op: cross_entropy, name: loss, in: [y, %s], out: loss}\nloss: loss\n",
                    inputs_text, ops->data, targets);
    smp_text_free(ops);
    must(smp_graph_parse("targets.yaml", model.data, model.length, &s.graph));
    smp_text_free(&model);
    s.work->stage_of_op = calloc((size_t)s.graph->n_op, sizeof *s.work->stage_of_op);
    s.work->stage_rank = calloc(1, sizeof *s.work->stage_rank);
    must(smp__inputs_build(&s));
    smp_status status = build(&s);
    for (int i = 0; status == SMP_OK && i < 3; i++) {
        counted[i] = s.given->input[i].counted;
        assert_int_equal(s.given->input[i].counts_here, counted[i] > 0);
    }
    free(s.given->rows);
    free(s.given->input);
    free(s.work->stage_rank);
    free(s.work->stage_of_op);
    smp_graph_destroy(s.graph);
    return status;
}

/* Each pair doubles the ways from the targets to the input. */
static void test_loss_share_rejoining_pairs(void **state)
{
    enum { PAIRS = 60 };
    (void)state;
    smp_text ops = {0};
    for (int i = 0; i < PAIRS; i++) {
        for (int k = 0; k < 2; k++)
            smp_text_append(&ops,
                            "  - {op: opaque, name: side%d_%d, in: t%d, out: s%d_%d, shape: [2], "
                            "dtype: int32, cost: {forward_us: 1}}\n",
                            i, k, i, i, k);
        smp_text_append(&ops,
                        "  - {op: opaque, name: join%d, in: [s%d_0, s%d_1], out: t%d, shape: [%d], "
                        "dtype: int32, cost: {forward_us: 1}}\n",
                        i, i, i, i + 1, i + 1 < PAIRS ? 2 : 4);
    }
    double counted[3];
    must(find(&ops, "t60", counted));
    assert_true(counted[0] == 0 && counted[1] == 0 && counted[2] == (double)(1LL << PAIRS));
}

static void test_loss_share_long_chain(void **state)
{
    enum { LENGTH = 20000 };
    (void)state;
    smp_text ops = {0};
    for (int i = 0; i < LENGTH; i++)
        smp_text_append(&ops, "  - {op: flatten, name: f%d, in: t%d, out: t%d}\n", i, i, i + 1);
    smp_text_append(&ops, "  - {op: concat, name: twice, in: [t%d, t%d], out: targets}\n", LENGTH,
                    LENGTH);
    double counted[3];
    must(find(&ops, "targets", counted));
    assert_true(counted[0] == 0 && counted[1] == 0 && counted[2] == 2);
}

/* Outputs that are targets as often as each other are, together, the input. */
static void test_loss_share_outputs_of_one_op(void **state)
{
    (void)state;
    double counted[3];
    smp_text ops = {0};
    smp_text_append(&ops, "  - {op: split, name: parts, in: other, out: [a, b]}\n"
                          "  - {op: concat, name: turned, in: [b, a], out: targets}\n");
    must(find(&ops, "targets", counted));
    assert_true(counted[0] == 0 && counted[1] == 1 && counted[2] == 0);
    smp_text_append(&ops, "  - {op: split, name: parts, in: other, out: [a, b]}\n"
                          "  - {op: concat, name: twice, in: [a, a], out: targets}\n");
    assert_int_equal(find(&ops, "targets", counted), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "op 'parts' (split) leaves out some of the targets"));
}

/* A target of the input that the loss never sees must not be counted. */
static void test_loss_share_refuses_part_of_an_input(void **state)
{
    (void)state;
    smp_text ops = {0};
    smp_text_append(&ops, "  - {op: slice, name: first, in: other, out: half, end: 2}\n"
                          "  - {op: concat, name: both, in: [half, t0], out: targets}\n");
    double counted[3];
    assert_int_equal(find(&ops, "targets", counted), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "op 'first' (slice) leaves out some of the targets"));

    /* Beside the targets it may. */
    smp_text_append(&ops, "  - {op: slice, name: first, in: t0, out: half, end: 1}\n");
    must(find(&ops, "other", counted));
    assert_true(counted[0] == 0 && counted[1] == 1 && counted[2] == 0);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_share_rejoining_pairs),
        cmocka_unit_test(test_loss_share_long_chain),
        cmocka_unit_test(test_loss_share_outputs_of_one_op),
        cmocka_unit_test(test_loss_share_refuses_part_of_an_input),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
