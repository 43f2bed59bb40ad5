/* Every operator of the registry, and that of examples/plugin/, against a naive double-precision
 * reference over random shapes, or, where it has none (case_<op>.c), against itself on its sample:
 * values, gradients by central finite differences, and the promises of graph/model/op.h: what is
 * overwritten, what is accumulated, what may be left out, and bits that do not depend on
 * buffers. */
#include "graph/ops/custom_op.h"
#include "tests/graph/ops/op_values.h"

enum { ROUNDS = 64, DIFFERENCES = 16 };

static void check_forward(op_run *run, const op_case *c, doubles *d)
{
    const float *out = run->out.data;
    size_t n = run->out.bytes / 4;
    assert_int_equal(op_run_forward(run), SMP_OK);
    reference_loss(run, c, d);
    double scale = fmax(1, largest(out, n, 0));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)out[i] - d->out[i]) <= c->tolerance * scale))
            fail_msg("out[%zu] is %.9g, expected %.9g", i, (double)out[i], d->out[i]);
}

/* Compares some elements of a gradient with central differences. `values` are the doubles that the
 * reference reads. */
static void check_gradient(const op_run *run, const op_case *c, doubles *d, double *values,
                           const buffer *gradient, double offset, uint64_t *rng, const char *what)
{
    const float *got = gradient->data;
    int64_t n = (int64_t)gradient->bytes / 4;
    double scale = fmax(1, largest(got, (size_t)n, offset));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(got[i]))
            fail_msg("%s[%lld] is %g", what, (long long)i, (double)got[i]);
    for (int k = 0; k < DIFFERENCES; k++) {
        int64_t i = random_int(rng, 0, n - 1);
        double want = central_difference(run, c, d, &values[i]);
        if (!(fabs((double)got[i] - offset - want) <= (c->tolerance + 1e-7) * scale))
            fail_msg("gradient of %s[%lld] is %.9g, expected %.9g", what, (long long)i,
                     (double)got[i] - offset, want);
    }
}

/* Of a running statistic: what backward_weight added to its accumulator. */
static void check_running(const op_run *run, const op_case *c, const doubles *d, int slot)
{
    const reference_call call = reference_of(run, d);
    const float *got = run->dparam[slot].data;
    for (size_t i = 0; c->running && i < run->dparam[slot].bytes / 4; i++) {
        double want = c->running(&call, slot, (int64_t)i);
        if (!(fabs((double)got[i] - FIRST_ACCUMULATOR - want) <=
              c->tolerance * fmax(1, fabs(want))))
            fail_msg("change of weight %d[%zu] is %.9g, expected %.9g", slot, i,
                     (double)got[i] - FIRST_ACCUMULATOR, want);
    }
}

static void check_gradients(op_run *run, const op_case *c, doubles *d, uint64_t *rng)
{
    char what[32];
    op_run_backward_input(run, ~0u);
    op_run_backward_weight(run);
    for (int i = 0; i < run->op->n_in; i++) {
        snprintf(what, sizeof what, "input %d", i);
        if (run->din[i].data)
            check_gradient(run, c, d, d->in[i], &run->din[i], 0, rng, what);
    }
    for (int i = 0; i < run->op->n_param; i++) {
        snprintf(what, sizeof what, "weight %d", i);
        if (op_run_is_running(run, i))
            check_running(run, c, d, i);
        else
            check_gradient(run, c, d, d->param[i], &run->dparam[i], FIRST_ACCUMULATOR, rng, what);
    }
}

/* What is written where nothing was yet: as if it had been added to zeroes. */
static void check_fresh(const op_run *run, const model_text *m)
{
    op_run twice[2];
    for (int fresh = 0; run->op->kind->cpu.writes_fresh && fresh <= 1; fresh++) {
        op_run_open(&twice[fresh], m->yaml, "op", m->batch, 0);
        op_run_copy_values(&twice[fresh], run);
        for (int i = 0; i < run->op->n_param; i++)
            memset(twice[fresh].dparam[i].data, fresh ? 0xff : 0, run->dparam[i].bytes);
        assert_int_equal(op_run_forward(&twice[fresh]), SMP_OK);
        op_run_weight_gradient(&twice[fresh], fresh);
    }
    for (int i = 0; run->op->kind->cpu.writes_fresh && i < run->op->n_param; i++)
        for (size_t e = 0; e < run->dparam[i].bytes / 4; e++)
            assert_true(((float *)twice[0].dparam[i].data)[e] ==
                        ((float *)twice[1].dparam[i].data)[e]);
    for (int k = 0; run->op->kind->cpu.writes_fresh && k <= 1; k++)
        op_run_close(&twice[k]);
}

/* The same model in other buffers, with one input gradient at a time left out: the same bits. */
static void check_other_buffers(const op_run *run, const model_text *m)
{
    op_run other;
    op_run_open(&other, m->yaml, "op", m->batch, 3);
    op_run_copy_values(&other, run);
    for (int i = 0; i < run->op->n_param; i++)
        for (size_t e = 0; e < other.dparam[i].bytes / 4; e++)
            ((float *)other.dparam[i].data)[e] = FIRST_ACCUMULATOR;
    assert_int_equal(op_run_forward(&other), SMP_OK);
    assert_same_bits(&other.out, &run->out);
    op_run_backward_weight(&other);
    for (int i = 0; i < run->op->n_param; i++)
        assert_same_bits(&other.dparam[i], &run->dparam[i]);
    for (int skipped = -1; skipped < run->op->n_in; skipped++) {
        op_run_backward_input(&other, skipped < 0 ? ~0u : ~(1u << skipped));
        for (int i = 0; i < run->op->n_in; i++) {
            if (i != skipped)
                assert_same_bits(&other.din[i], &run->din[i]);
            else if (other.din[i].data)
                assert_true(isnan(((float *)other.din[i].data)[0]));
        }
    }
    op_run_close(&other);
}

/* Of matrix products the very number: they decide what a step takes. What else there is, is bound
 * by memory, and its numbers are round: within a third. */
static void check_flops(double got, double counted, bool matrix, const char *what)
{
    if (!(fabs(got - counted) <= (matrix ? 0 : counted / 3)))
        fail_msg("%s: %.9g flops, counted %.9g", what, got, counted);
}

static void check_counted_flops(const op_run *run, const op_case *c, const smp_op_work *work)
{
    const reference_call call = {.graph = run->graph, .op = run->op, .batch = run->batch};
    reference_flops counted = {0};
    if (c->flops)
        counted = c->flops(&call);
    check_flops(work->forward_flops, counted.forward, work->kind != SMP_OP_PLAIN, "forward");
    check_flops(work->backward_input_flops, counted.backward_input, work->kind != SMP_OP_PLAIN,
                "backward of inputs");
    check_flops(work->backward_weight_flops, counted.backward_weight, work->kind != SMP_OP_PLAIN,
                "backward of weights");
}

static void check_work(const op_run *run, const op_case *c)
{
    const smp_op_kernels *cpu = &run->op->kind->cpu;
    smp_op_work work;
    smp_op_work_get(run->graph, run->op, run->batch, &work);
    assert_true(work.forward_bytes > 0 && work.forward_flops >= 0);
    assert_true(cpu->backward_input
                    ? work.backward_input_bytes > 0 && work.backward_input_flops >= 0
                    : work.backward_input_bytes == 0);
    assert_true(run->op->n_param > 0
                    ? work.backward_weight_bytes > 0 && work.backward_weight_flops > 0
                    : work.backward_weight_bytes == 0 && work.backward_weight_flops == 0);
    if (c->reference)
        check_counted_flops(run, c, &work);
}

/* One round's model, its values filled in. */
static void open_round(const op_case *c, int round, op_run *run, model_text *m, uint64_t *rng)
{
    op_case_model(c, round, m, rng);
    op_run_open(run, m->yaml, "op", m->batch, 0);
    assert_ptr_equal(run->op->kind, c->kind);
    fill(run, m, rng);
}

static void test_ops_match_reference_and_differences(void **state)
{
    const op_case *c = *state;
    for (int round = 0; round < ROUNDS; round++) {
        model_text m;
        uint64_t rng;
        op_run run;
        open_round(c, round, &run, &m, &rng);
        doubles d = doubles_make(&run);
        run.step.training = false; /* of an evaluation */
        check_forward(&run, c, &d);
        run.step.training = true;
        check_forward(&run, c, &d);
        check_gradients(&run, c, &d, &rng);
        check_other_buffers(&run, &m);
        check_fresh(&run, &m);
        check_work(&run, c);
        doubles_free(&run, &d);
        op_run_close(&run);
    }
}

/* A second call adds the same gradient again. */
static void test_ops_accumulate_weight_gradients(void **state)
{
    model_text m;
    uint64_t rng;
    op_run once, twice;
    open_round(*state, 1, &once, &m, &rng);
    op_run_open(&twice, m.yaml, "op", m.batch, 1);
    op_run_copy_values(&twice, &once);
    assert_int_equal(op_run_forward(&once), SMP_OK);
    assert_int_equal(op_run_forward(&twice), SMP_OK);
    op_run_backward_weight(&once);
    op_run_backward_weight(&twice);
    op_run_backward_weight(&twice);
    for (int p = 0; p < once.op->n_param; p++)
        for (size_t e = 0; e < once.dparam[p].bytes / 4; e++) {
            float gradient = ((float *)once.dparam[p].data)[e] - FIRST_ACCUMULATOR;
            float sum = ((float *)twice.dparam[p].data)[e] - FIRST_ACCUMULATOR;
            assert_true(fabsf(sum - 2 * gradient) <= 1e-5f * (1 + fabsf(gradient)));
        }
    op_run_close(&once);
    op_run_close(&twice);
}

/* A padded micro-batch gives what its samples alone give, and no gradient to the padding. */
static void check_padding(op_run *padded, const model_text *m)
{
    op_run alone;
    op_run_open(&alone, m->yaml, "op", padded->batch - padded->padding, 0);
    for (int i = 0; i < alone.op->n_in; i++)
        memcpy(alone.in[i].data, padded->in[i].data, alone.in[i].bytes);
    memcpy(alone.dout.data, padded->dout.data, alone.dout.bytes);
    for (int i = 0; i < alone.op->n_param; i++) {
        memcpy(alone.param[i].data, padded->param[i].data, alone.param[i].bytes);
        for (size_t e = 0; e < alone.dparam[i].bytes / 4; e++)
            ((float *)alone.dparam[i].data)[e] = FIRST_ACCUMULATOR;
    }
    alone.step.following = padded->step.following;
    assert_int_equal(op_run_forward(&alone), SMP_OK);
    op_run_backward_input(&alone, ~0u);
    op_run_backward_weight(&alone);
    assert_memory_equal(padded->out.data, alone.out.data, alone.out.bytes);
    for (int i = 0; i < alone.op->n_param; i++)
        assert_same_bits(&padded->dparam[i], &alone.dparam[i]);
    for (int i = 0; i < alone.op->n_in; i++)
        if (alone.din[i].data)
            assert_memory_equal(padded->din[i].data, alone.din[i].data, alone.din[i].bytes);
    op_run_close(&alone);
}

/* Nothing but padding: a loss is 0, no accumulator changes. */
static void check_all_padding(const op_run *run)
{
    if (!run->graph->tensor[run->op->out].batched)
        assert_true(*(float *)run->out.data == 0);
    for (int i = 0; i < run->op->n_param; i++)
        for (size_t e = 0; e < run->dparam[i].bytes / 4; e++)
            assert_true(((float *)run->dparam[i].data)[e] == FIRST_ACCUMULATOR);
}

/* Operators that reduce a micro-batch to one value, that is, losses, and those that mix samples. */
static void test_ops_leave_padding_out(void **state)
{
    enum { BATCH = 4 };
    const op_case *c = *state;
    for (int round = 0; round < 4 * BATCH; round++) {
        model_text m;
        uint64_t rng;
        op_run run;
        op_case_model(c, round, &m, &rng);
        op_run_open(&run, m.yaml, "op", BATCH, 0);
        if (run.graph->tensor[run.op->out].batched && !c->mixes_samples) {
            op_run_close(&run);
            skip();
        }
        fill(&run, &m, &rng);
        run.padding = 1 + round / 4;
        op_run_poison_padding(&run);
        assert_int_equal(op_run_forward(&run), SMP_OK);
        op_run_backward_input(&run, ~0u);
        op_run_backward_weight(&run);
        if (run.padding < BATCH)
            check_padding(&run, &m);
        else
            check_all_padding(&run);
        for (int i = 0; i < run.op->n_in; i++) {
            int64_t n;
            const float *padding = op_run_padding(&run, &run.din[i], &n);
            for (int64_t e = 0; e < n; e++)
                assert_true(padding[e] == 0);
        }
        op_run_close(&run);
    }
}

static bool same_bits(const buffer *a, const float *b)
{
    return a->bytes == 0 || memcmp(a->data, b, a->bytes) == 0;
}

/* Whether backward gives other results once the values in `b`, which `needs` asks for, are NaN. */
static bool is_used(op_run *run, buffer *b, bool by_input_grad)
{
    bool used = false;
    const buffer *results = by_input_grad ? run->din : run->dparam;
    int n_results = by_input_grad ? run->op->n_in : run->op->n_param;
    float *saved = malloc(b->bytes);
    float *before[SMP_OP_MAX_IN] = {0};
    assert_non_null(saved);
    memcpy(saved, b->data, b->bytes);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < run->op->n_param; i++)
            memset(run->dparam[i].data, 0, run->dparam[i].bytes);
        if (by_input_grad)
            op_run_backward_input(run, ~0u);
        else
            op_run_backward_weight(run);
        for (int i = 0; pass == 0 && i < n_results; i++) {
            before[i] = malloc(results[i].bytes + 1);
            assert_non_null(before[i]);
            if (results[i].bytes > 0)
                memcpy(before[i], results[i].data, results[i].bytes);
        }
        if (pass == 0)
            buffer_poison(b);
    }
    for (int i = 0; i < n_results; i++) {
        used |= !same_bits(&results[i], before[i]);
        free(before[i]);
    }
    memcpy(b->data, saved, b->bytes);
    free(saved);
    return used;
}

static bool all_used(op_run *run)
{
    bool used = true;
    for (int i = 0; i < run->op->n_in; i++) {
        bool is_float = op_run_in_is_float(run, i);
        if (is_float && run->needs.input_grad_in >> i & 1)
            used &= is_used(run, &run->in[i], true);
        if (is_float && run->needs.weight_grad_in >> i & 1)
            used &= is_used(run, &run->in[i], false);
    }
    if (run->needs.input_grad_out)
        used &= is_used(run, &run->out, true);
    if (run->needs.input_grad_aux)
        used &= is_used(run, &run->aux, true);
    if (run->needs.weight_grad_aux)
        used &= is_used(run, &run->aux, false);
    return used;
}

/* What `needs` asks to keep for backward costs memory: each float value of it must matter, but for
 * a round or two whose values leave no gradient (a small relu without positive output, a single
 * target that is ignored). */
static void test_ops_need_nothing_in_vain(void **state)
{
    int vain = 0;
    for (int round = 0; round < 8; round++) {
        model_text m;
        uint64_t rng;
        op_run run;
        op_case_model(*state, round, &m, &rng);
        m.magnitude = 2;
        op_run_open(&run, m.yaml, "op", m.batch, 0);
        fill(&run, &m, &rng);
        assert_int_equal(op_run_forward(&run), SMP_OK);
        vain += !all_used(&run) && run.in[0].bytes > 64;
        if (vain > 2)
            fail_msg("round %d: backward does not read all it needs\n%s", round, m.yaml);
        op_run_close(&run);
    }
}

/* Every kind is complete, and its sample a model whose last op is of it. */
static void test_ops_are_described(void **state)
{
    (void)state;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        const op_case c = op_case_of((*kind)->name);
        smp_graph *graph = NULL;
        model_text m;
        uint64_t rng;
        print_message("%s%s\n", (*kind)->name,
                      c.reference || !(*kind)->cpu.forward ? ""
                                                           : " (no reference: its own values)");
        assert_ptr_equal(smp_op_kind_find((*kind)->name), *kind);
        assert_true((*kind)->summary && (*kind)->sample && (*kind)->attrs && (*kind)->infer);
        assert_true((*kind)->cpu.forward ||
                    (!(*kind)->cpu.backward_input && !(*kind)->cpu.backward_weight));
        op_case_begin(&c, 0, &m, &rng);
        model_write(&m, "%s", (*kind)->sample);
        if (smp_graph_parse("sample", m.yaml, strlen(m.yaml), &graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_ptr_equal(graph->op[graph->n_op - 1].kind, *kind);
        assert_string_equal(graph->op[graph->n_op - 1].name, "op");
        smp_graph_destroy(graph);
    }
    assert_null(smp_op_kind_find("convolution"));
}

int main(void)
{
    static op_tests tests;
    static const char *const plugin = SMP_TEST_PLUGIN;
    const struct CMUnitTest described[] = {cmocka_unit_test(test_ops_are_described)};
    int failed = cmocka_run_group_tests(described, NULL, NULL);
    if (smp_plugins_load(&plugin, 1) != SMP_OK) {
        fprintf(stderr, "%s\n", smp_last_error());
        return 1;
    }
    op_tests_add(&tests, SMP_BACKEND_CPU, "values and gradients",
                 test_ops_match_reference_and_differences);
    op_tests_add(&tests, SMP_BACKEND_CPU, "weight gradients add up",
                 test_ops_accumulate_weight_gradients);
    op_tests_add(&tests, SMP_BACKEND_CPU, "leaves padding out", test_ops_leave_padding_out);
    op_tests_add(&tests, SMP_BACKEND_CPU, "needs nothing in vain", test_ops_need_nothing_in_vain);
    return failed | op_tests_run("operators", &tests, NULL, NULL);
}
