/* Every operator that has CUDA kernels: outputs against the double-precision references (or the
 * CPU, where there is none), gradients against finite differences of them and, element by element,
 * against the CPU's kernels; in every precision, over the random models of the CPU's tests and
 * large ones. And the promises of graph/model/op.h: what is overwritten and accumulated, what may
 * be left out, bits that depend neither on addresses nor on how many blocks a launch has (nor on
 * the order of threads and blocks, which the emulator changes from launch to launch). Runs on the
 * emulator and on a GPU. */
#include "tests/case_count.h"
#include "tests/cuda/op_shortcuts.h"
#include "tests/cuda/test_cuda_ops_cases.h"

enum { ROUNDS = 16, DIFFERENCES = 4 };

#ifdef SMP_EMULATED
enum { IS_EMULATED = 1 };
#else
enum { IS_EMULATED = 0 };
#endif

/* One model in one precision: values, gradients and the CPU's idea of them in `host`. */
typedef struct comparison {
    const op_case *of;
    const model_text *model;
    smp_graph *graph; /* its images lie as its target would have it, until they are laid out */
    smp_precision precision;
    op_run host;
    doubles expected;
    double tolerance;
} comparison;

static const smp_precision PRECISIONS[] = {SMP_PRECISION_FP32, SMP_PRECISION_BF16,
                                           SMP_PRECISION_FP16, SMP_PRECISION_TF32};
enum { N_PRECISION = sizeof PRECISIONS / sizeof *PRECISIONS };

static void fail_value(const comparison *c, const char *what, int64_t i, double got, double want)
{
    fail_msg("in %s: %s[%lld] is %.9g, expected %.9g\n%s", smp_precision_name(c->precision), what,
             (long long)i, got, want, c->model->yaml);
}

/* Against what the CPU's kernel left in `want`; `offset`: of an accumulator; errors are relative to
 * the largest value, or `scale` if that is larger. */
static void compare(const comparison *c, const char *what, const void *got, smp_dtype dtype,
                    const buffer *want, double offset, double scale)
{
    int64_t n = (int64_t)want->bytes / 4;
    double bound =
        (c->tolerance + c->of->tolerance) * fmax(scale, largest(want->data, (size_t)n, offset));
    for (int64_t i = 0; i < n; i++) {
        float x = value_of(got, dtype, i), y = ((float *)want->data)[i];
        bool same =
            memcmp(&x,
                   &(float){smp_dtype_is_half(dtype) ? half_value(dtype, half_bits(dtype, y)) : y},
                   4) == 0;
        if (c->of->exact ? !same : !(fabs((double)x - (double)y) <= bound))
            fail_value(c, what, i, (double)x, (double)y);
    }
}

/* Against a central difference, in some places. */
static void compare_differences(comparison *c, const char *what, double *values, const void *got,
                                smp_dtype dtype, int64_t n, double offset, double scale,
                                uint64_t *rng)
{
    const double tolerance = c->tolerance + (c->of->reference ? 1e-7 : c->of->tolerance);
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs((double)value_of(got, dtype, i) - offset));
    for (int k = 0; k < DIFFERENCES; k++) {
        int64_t i = random_int(rng, 0, n - 1);
        double is = (double)value_of(got, dtype, i) - offset;
        double want = central_difference(&c->host, c->of, &c->expected, &values[i]);
        if (!(fabs(is - want) <= tolerance * scale))
            fail_value(c, what, i, is, want);
    }
}

static void comparison_open(comparison *c, const op_case *of, smp_precision precision,
                            const model_text *m, uint64_t *rng)
{
    *c = (comparison){.of = of, .model = m, .precision = precision};
    c->tolerance = device_tolerance(of, precision);
    c->graph = device_graph(m->yaml, precision);
    op_run *host = &c->host;
    op_run_open(host, m->yaml, "op", m->batch, 0);
    assert_ptr_equal(host->op->kind, of->kind);
    fill(host, m, rng);
    for (int i = 0; i < host->op->n_in; i++)
        round_all(c->graph->tensor[host->op->in[i]].dtype, &host->in[i]);
    for (int i = 0; i < host->op->n_param; i++)
        round_all(smp_precision_dtype(precision), &host->param[i]);
    round_all(c->graph->tensor[host->op->out].dtype, &host->dout);
    c->expected = doubles_make(host);
    reference_loss(host, of, &c->expected);
}

static void comparison_close(comparison *c)
{
    doubles_free(&c->host, &c->expected);
    op_run_close(&c->host);
    smp_graph_destroy(c->graph);
}

static const smp_op *op_of(const comparison *c)
{
    return &c->graph->op[smp_graph_find_op(c->graph, "op")];
}

/* The CPU's results, from an output as the next op and backward would see it. */
static void forward_host(comparison *c)
{
    assert_int_equal(op_run_forward(&c->host), SMP_OK);
    round_all(c->graph->tensor[c->host.op->out].dtype, &c->host.out);
}

static void run_host(comparison *c)
{
    forward_host(c);
    op_run_backward_input(&c->host, ~0u);
    op_run_backward_weight(&c->host);
}

static device_results run_device(const comparison *c, int shift, uint32_t wanted)
{
    device_run run;
    device_run_open(&run, c->graph, "op", c->model->batch, shift);
    device_run_put(&run, &c->host);
    device_forward(&run, &c->host);
    device_backward_input(&run, &c->host, wanted);
    device_backward_weight(&run, &c->host);
    device_results results = device_results_get(&run);
    device_run_close(&run);
    return results;
}

static void check_output(const comparison *c, const void *got)
{
    const buffer *out = &c->host.out;
    const smp_tensor *tensor = &c->graph->tensor[c->host.op->out];
    int64_t n = (int64_t)out->bytes / 4;
    double scale = 1;
    if (tensor->dtype == SMP_I32) {
        assert_memory_equal(got, out->data, out->bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(c->expected.out[i]));
    for (int64_t i = 0; i < n; i++) {
        double x = (double)value_of(got, tensor->dtype, i);
        if (!(fabs(x - c->expected.out[i]) <= c->tolerance * scale))
            fail_value(c, "out", i, x, c->expected.out[i]);
    }
    if (c->of->exact)
        compare(c, "out", got, tensor->dtype, out, 0, 1);
}

static void check_gradients(comparison *c, const device_results *got, bool differences,
                            uint64_t *rng)
{
    const op_run *host = &c->host;
    char what[32];
    for (int i = 0; i < host->op->n_in; i++) {
        if (!smp_op_kind_passes_gradients(host->op->kind) || !got->din[i])
            continue;
        smp_dtype dtype = c->graph->tensor[host->op->in[i]].dtype;
        snprintf(what, sizeof what, "gradient of input %d", i);
        reference_call reference = reference_of(host, &c->expected);
        double scale =
            c->of->gradient_scale ? c->of->gradient_scale(&reference, host->dout.data, i) : 1;
        compare(c, what, got->din[i], dtype, &host->din[i], 0, scale);
        if (differences)
            compare_differences(c, what, c->expected.in[i], got->din[i], dtype,
                                (int64_t)host->din[i].bytes / 4, 0, scale, rng);
    }
    for (int i = 0; i < host->op->n_param; i++) {
        snprintf(what, sizeof what, "gradient of weight %d", i);
        compare(c, what, got->dparam[i], SMP_F32, &host->dparam[i], FIRST_ACCUMULATOR, 1);
        if (differences && !op_run_is_running(host, i))
            compare_differences(c, what, c->expected.param[i], got->dparam[i], SMP_F32,
                                (int64_t)host->dparam[i].bytes / 4, FIRST_ACCUMULATOR, 1, rng);
    }
}

static void same_bytes(const comparison *c, const char *what, const void *a, const void *b,
                       int64_t bytes)
{
    if (a && memcmp(a, b, (size_t)bytes) != 0)
        fail_msg("in %s: %s depends on buffers or blocks\n%s", smp_precision_name(c->precision),
                 what, c->model->yaml);
}

/* Other addresses, another size of launches, one input gradient left out (NaN stays): equal
 * bits. */
static void check_again(const comparison *c, const device_results *first, int processors, int shift,
                        int skipped)
{
    const int own = cuda.multiprocessors;
    const op_run *host = &c->host;
    cuda.multiprocessors = processors;
    device_results r = run_device(c, shift, skipped < 0 ? ~0u : ~(1u << skipped));
    cuda.multiprocessors = own;
    int64_t out_bytes = 0;
    for (int32_t k = 0; k < host->op->n_out; k++)
        out_bytes += smp_tensor_bytes(c->graph, host->op->out + k, host->batch);
    same_bytes(c, "out", first->out, r.out, out_bytes);
    for (int i = 0; i < host->op->n_in; i++) {
        smp_dtype dtype = c->graph->tensor[host->op->in[i]].dtype;
        if (i != skipped)
            same_bytes(c, "input gradient", first->din[i], r.din[i],
                       smp_tensor_bytes(c->graph, host->op->in[i], host->batch));
        else if (r.din[i])
            assert_true(isnan(value_of(r.din[i], dtype, 0)));
    }
    for (int i = 0; i < host->op->n_param; i++)
        same_bytes(c, "weight gradient", first->dparam[i], r.dparam[i],
                   (int64_t)host->dparam[i].bytes);
    device_results_free(&r);
}

/* Which images lie channels last, where the kind allows it. */
typedef enum laid { AS_IT_IS, ALL_LAST, INPUTS_LAST, OUTPUTS_LAST, N_LAID } laid;

/* False: the model has no images that may lie so. */
static bool check_model(const op_case *of, smp_precision precision, laid laid, const model_text *m,
                        uint64_t rng, bool differences)
{
    comparison c;
    comparison_open(&c, of, precision, m, &rng);
    if (laid != AS_IT_IS &&
        !device_graph_lay_out(c.graph, op_of(&c), laid != OUTPUTS_LAST, laid != INPUTS_LAST)) {
        comparison_close(&c);
        return false;
    }
    device_results got = run_device(&c, 0, ~0u);
    check_again(&c, &got, 1, 1, -1);
    check_shortcuts(c.graph, &c.host, got.din[0]);
    int n_in = c.host.op->n_in;
    check_again(&c, &got, 7, 0, n_in > 0 ? (int)(rng % (uint64_t)n_in) : -1);
    run_host(&c); /* now: the device starts from the host's accumulators */
    check_output(&c, got.out);
    check_gradients(&c, &got, differences, &rng);
    device_results_free(&got);
    comparison_close(&c);
    return true;
}

/* TF32 changes nothing but products. On the emulator the precisions take turns from case to case,
 * unless the run is a long one. */
static bool is_worth_it(const op_case *c, size_t p, size_t i)
{
    return (PRECISIONS[p] != SMP_PRECISION_TF32 || c->multiplies) && is_turn(i, p, N_PRECISION);
}

static void test_cuda_ops_are_complete(void **state)
{
    (void)state;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        const smp_op_kernels *kernels = smp_op_cuda_kernels(*kind), *cpu = &(*kind)->cpu;
        const op_case c = op_case_of((*kind)->name);
        print_message("%s%s\n", (*kind)->name,
                      !kernels   ? " (no kernels)"
                      : !c.large ? " (no large cases)"
                                 : "");
        assert_int_equal(kernels != NULL, smp_op_kind_runs(*kind, SMP_BACKEND_CUDA));
        if (!kernels)
            continue;
        assert_non_null(kernels->forward);
        assert_true(!kernels->backward_input == !cpu->backward_input);
        assert_true(!kernels->backward_weight == !cpu->backward_weight);
        assert_true(!kernels->forward_fused == !(*kind)->fuses);
    }
}

static void test_cuda_ops_match_reference_and_differences(void **state)
{
    const op_case *c = *state;
    for (size_t p = 0; p < N_PRECISION; p++)
        for (int round = 0; round < ROUNDS; round++) {
            model_text m;
            uint64_t rng;
            if (!is_worth_it(c, p, (size_t)round))
                continue;
            op_case_model(c, round, &m, &rng);
            check_model(c, PRECISIONS[p], AS_IT_IS, &m, rng, true);
        }
}

static void test_cuda_ops_match_cpu_on_large_tensors(void **state)
{
    const op_case *c = *state;
    for (const large_case *l = c->large; l && l->inputs; l++)
        for (size_t p = 0; p < N_PRECISION; p++) {
            model_text m;
            uint64_t rng;
            if (!is_worth_it(c, p, (size_t)(l - c->large)))
                continue;
            large_case_model(c, l, &m, &rng);
            if (PRECISIONS[p] == SMP_PRECISION_FP16) /* 65504 is the largest number */
                m.magnitude = fmin(m.magnitude, 16);
            check_model(c, PRECISIONS[p], AS_IT_IS, &m, rng, false);
        }
}

/* The models of the two tests above that have images, as [H, W, C]: the same values, which the host
 * has as [C, H, W]. */
static void test_cuda_ops_channels_last(void **state)
{
    const op_case *c = *state;
    model_text m;
    uint64_t rng;
    int n = 0;
    if (!c->kind->layout)
        return;
    for (int round = 0; round < ROUNDS; round++)
        for (int way = ALL_LAST; way < N_LAID; way++) {
            op_case_model(c, round, &m, &rng);
            n += check_model(c, PRECISIONS[n % 2], way, &m, rng, false);
        }
    for (const large_case *l = c->large; l && l->inputs; l++)
        for (size_t p = 0; p < N_PRECISION; p++) {
            large_case_model(c, l, &m, &rng);
            m.magnitude = fmin(m.magnitude, 16); /* in fp16 65504 is the largest number */
            if (is_worth_it(c, p, (size_t)(l - c->large)))
                n += check_model(c, PRECISIONS[p], ALL_LAST, &m, rng, false);
        }
    assert_true(n > 0);
}

/* Ops that may follow another and be fused with it; each reads y, the last one another input, too,
 * which only silu's has the shape of. */
static const char *const FOLLOWERS[] = {
    "op: gelu, in: y",     "op: gelu, approximate: erf, in: y",
    "op: relu, in: y",     "op: tanh, in: y",
    "op: softmax, in: y",  "op: layernorm, in: y",
    "op: rmsnorm, in: y",  "op: dropout, p: 0.5, in: y",
    "op: mul, in: [y, a]",
};

/* Two ops as one call: both outputs, and what is saved, are those of two calls. */
static bool check_pair(const op_case *of, smp_precision precision, model_text m, uint64_t rng,
                       const char *follower)
{
    comparison c;
    op_run second;
    device_run first, next;
    if ((strstr(follower, "a]") && of->kind != smp_op_kind_find("silu")) ||
        strstr(m.yaml, "shape: []")) /* a scalar has no rows */
        return false;
    model_write(&m, "  - {%s, name: next, out: z}\n", follower);
    comparison_open(&c, of, precision, &m, &rng);
    op_run_open(&second, m.yaml, "next", m.batch, 0);
    fill(&second, &m, &rng);
    device_run_open(&first, c.graph, "op", m.batch, 0);
    device_run_open(&next, c.graph, "next", m.batch, 1);
    bool is_pair = smp_op_fused(c.graph, (int32_t)(first.op - c.graph->op));
    if (is_pair) {
        device_arrays arrays, next_arrays;
        run_host(&c);
        memcpy(second.in[0].data, c.host.out.data, second.in[0].bytes);
        device_run_put(&first, &c.host);
        device_run_put(&next, &second);
        smp_op_call call = device_forward_call(&first, &c.host, &arrays);
        smp_op_call after = device_forward_call(&next, &second, &next_arrays);
        next_arrays.in[0] = first.out.data;
        device_wait(first.kernels->forward_fused(&call, &after));
        device_results got = device_results_get(&first), then = device_results_get(&next);
        check_output(&c, got.out);
        assert_int_equal(op_run_forward(&second), SMP_OK);
        op_case its = op_case_of(next.op->kind->name);
        its.exact = false; /* the first is not */
        c.tolerance = fmax(c.tolerance, device_tolerance(&its, precision));
        c.of = &its;
        compare(&c, "second output", then.out, c.graph->tensor[next.op->out].dtype, &second.out, 0,
                1);
        device_results_free(&got);
        device_results_free(&then);
    }
    device_run_close(&first);
    device_run_close(&next);
    op_run_close(&second);
    comparison_close(&c);
    return is_pair;
}

/* As this device would, and as its predecessor: ops may be fused where a library is fast at it. */
static int check_pairs(const op_case *c, size_t i, const model_text *m, uint64_t rng)
{
    const int capability = cuda.capability;
    int pairs = 0;
    for (int as = 80; as <= capability || as <= IS_EMULATED * 90; as += 10) {
        cuda.capability = as;
        for (size_t p = 0; p < N_PRECISION; p++)
            for (size_t f = 0; f < sizeof FOLLOWERS / sizeof *FOLLOWERS; f++)
                if (is_turn(i, p + f, N_PRECISION))
                    pairs += check_pair(c, PRECISIONS[p], *m, rng, FOLLOWERS[f]);
    }
    cuda.capability = capability;
    return pairs;
}

static void test_cuda_ops_pair(void **state)
{
    const op_case *c = *state;
    model_text m;
    uint64_t rng;
    int pairs = 0;
    if (!smp_op_cuda_kernels(c->kind)->forward_fused || !c->make)
        return;
    for (int round = 0; round < ROUNDS; round++) {
        op_case_model(c, round, &m, &rng);
        pairs += check_pairs(c, (size_t)round, &m, rng);
    }
    for (const large_case *l = c->large; l && l->inputs; l++) {
        large_case_model(c, l, &m, &rng);
        pairs += check_pairs(c, (size_t)(l - c->large), &m, rng);
    }
    assert_true(pairs > 0);
}

/* A second call adds the same gradient again. */
static void test_cuda_ops_accumulate_weight_gradients(void **state)
{
    model_text m;
    uint64_t rng;
    comparison c;
    device_run run;
    op_case_model(*state, 1, &m, &rng);
    comparison_open(&c, *state, SMP_PRECISION_FP32, &m, &rng);
    device_run_open(&run, c.graph, "op", m.batch, 0);
    device_run_put(&run, &c.host);
    device_forward(&run, &c.host);
    device_backward_weight(&run, &c.host);
    device_results once = device_results_get(&run);
    device_backward_weight(&run, &c.host);
    device_results twice = device_results_get(&run);
    for (int p = 0; p < run.op->n_param; p++)
        for (int64_t e = 0; e < run.dparam[p].bytes / 4; e++) {
            float gradient = ((float *)once.dparam[p])[e] - FIRST_ACCUMULATOR;
            float sum = ((float *)twice.dparam[p])[e] - FIRST_ACCUMULATOR;
            assert_true(fabsf(sum - 2 * gradient) <= 1e-5f * (1 + fabsf(gradient)));
        }
    device_results_free(&once);
    device_results_free(&twice);
    device_run_close(&run);
    comparison_close(&c);
}

/* Dropout drops nothing then, batchnorm knows its running statistics; the others do not care. */
static void test_cuda_ops_evaluate(void **state)
{
    for (int round = 0; round < 4; round++)
        for (size_t p = 0; p < N_PRECISION; p++) {
            model_text m;
            uint64_t rng;
            comparison c;
            device_run run;
            if (!is_turn((size_t)round, p, N_PRECISION))
                continue;
            op_case_model(*state, round, &m, &rng);
            comparison_open(&c, *state, PRECISIONS[p], &m, &rng);
            c.host.step.training = false;
            if (round == 2) /* an image, of most */
                device_graph_lay_out(c.graph, op_of(&c), true, true);
            reference_loss(&c.host, *state, &c.expected);
            forward_host(&c);
            device_run_open(&run, c.graph, "op", m.batch, 0);
            device_run_put(&run, &c.host);
            device_forward(&run, &c.host);
            device_results got = device_results_get(&run);
            check_output(&c, got.out);
            device_results_free(&got);
            device_run_close(&run);
            comparison_close(&c);
        }
}

/* The gradients against the CPU's, and none of the padding. */
static void check_padded_gradients(const comparison *c, const device_results *got)
{
    for (int i = 0; i < c->host.op->n_in; i++) {
        smp_dtype dtype = c->graph->tensor[c->host.op->in[i]].dtype;
        const buffer *din = &c->host.din[i];
        int64_t n, all = (int64_t)din->bytes / 4;
        if (all == 0)
            continue;
        compare(c, "gradient", got->din[i], dtype, din, 0, 1e-3);
        op_run_padding(&c->host, din, &n);
        for (int64_t e = all - n; e < all; e++)
            assert_true(value_of(got->din[i], dtype, e) == 0);
    }
    for (int i = 0; i < c->host.op->n_param; i++)
        compare(c, "weight gradient", got->dparam[i], SMP_F32, &c->host.dparam[i],
                FIRST_ACCUMULATOR, 1);
}

/* Operators that reduce a micro-batch to one value, that is, losses, and those that mix samples. */
static void test_cuda_ops_leave_padding_out(void **state)
{
    enum { BATCH = 5 };
    const op_case *of = *state;
    for (int round = 0; round < 8; round++) {
        model_text m;
        uint64_t rng;
        comparison c;
        op_case_model(of, round, &m, &rng);
        m.batch = BATCH;
        comparison_open(&c, of, round % 2 ? SMP_PRECISION_BF16 : SMP_PRECISION_FP32, &m, &rng);
        const smp_tensor *out = &c.graph->tensor[c.host.op->out];
        bool looks = !out->batched || of->mixes_samples;
        c.host.padding = looks ? 1 + 2 * (round / 2 % 3) : 0;
        if (looks) {
            if (round == 6) /* an image */
                device_graph_lay_out(c.graph, op_of(&c), true, true);
            op_run_poison_padding(&c.host);
            device_results got = run_device(&c, 0, ~0u);
            run_host(&c);
            buffer counted = c.host.out;
            if (out->batched)
                counted.bytes = counted.bytes / BATCH * (size_t)(BATCH - c.host.padding);
            compare(&c, "out", got.out, out->dtype, &counted, 0, 1e-3);
            check_padded_gradients(&c, &got);
            device_results_free(&got);
        }
        comparison_close(&c);
        if (!looks)
            return;
    }
}

/* Indices that no checked data holds: NaN where they are read, no gradient, nothing out of
 * bounds. */
static void test_cuda_ops_embedding_survives_bad_indices(void **state)
{
    (void)state;
    model_text m;
    uint64_t rng;
    comparison c;
    device_run run;
    const op_case embedding = op_case_of("embedding");
    const large_case some = {1, 2, "a: int32 [12]", "rows: 300, features: 4"};
    large_case_model(&embedding, &some, &m, &rng);
    comparison_open(&c, &embedding, SMP_PRECISION_FP32, &m, &rng);
    const int32_t index[12] = {5, -1, 5, 300, 5, INT32_MAX, INT32_MIN, 5 + 65536, 5, 0, 299, 0};
    memcpy(c.host.in[0].data, index, sizeof index);
    device_run_open(&run, c.graph, "op", 1, 0);
    device_run_put(&run, &c.host);
    device_forward(&run, &c.host);
    device_backward_weight(&run, &c.host);
    device_results got = device_results_get(&run);
    const float *dout = c.host.dout.data;
    for (int i = 0; i < 12; i++)
        for (int f = 0; f < 4; f++) {
            bool good = index[i] >= 0 && index[i] < 300;
            float want = good ? ((float *)c.host.param[0].data)[index[i] * 4 + f] : NAN;
            float is = ((float *)got.out)[i * 4 + f];
            assert_true(good ? is == want : isnan(is));
        }
    for (int row = 0; row < 300; row++)
        for (int f = 0; f < 4; f++) {
            float want = FIRST_ACCUMULATOR;
            for (int i = 0; i < 12; i++)
                want += index[i] == row ? dout[i * 4 + f] : 0;
            assert_true(((float *)got.dparam[0])[row * 4 + f] == want);
        }
    device_results_free(&got);
    device_run_close(&run);
    comparison_close(&c);
}

/* Rows of small whole numbers, so that the largest stands in several places, and how many are hits:
 * the first of them is the target of every fourth row, the second one of the next, then a target is
 * ignored, then one is just somewhere; behind the target of row 0 stands a NaN, if there is one. */
static void make_hits(op_run *run, int64_t rows, int64_t classes, bool nan,
                      int64_t want[SMP_OP_HITS])
{
    float *x = run->in[0].data;
    int32_t *target = run->in[1].data;
    want[0] = want[1] = 0;
    for (int64_t r = 0; r < rows; r++, x += classes) {
        int64_t first = 0, second = -1, before = 0;
        for (int64_t c = 0; c < classes; c++) {
            x[c] = (float)((7 * c + 3 * r) % 11 % 4);
            second = x[c] > x[first] ? -1 : x[c] == x[first] && c > 0 && second < 0 ? c : second;
            first = x[c] > x[first] ? c : first;
        }
        const int64_t of_kind[] = {first, second, -1, (13 * r) % classes};
        const int64_t t = target[r] = (int32_t)of_kind[r % 4];
        x[classes - 1] = r == 0 && nan ? NAN : x[classes - 1];
        for (int64_t c = 0; c < classes && t >= 0; c++)
            before += isnan(x[c]) || x[c] > x[t] || (x[c] == x[t] && c < t);
        want[0] += t >= 0 && before == 0;
        want[1] += t >= 0 && before < SMP_TOP;
    }
}

/* The hits of a forward call are those wanted. */
static void check_hits(const comparison *c, int64_t batch, const int64_t want[SMP_OP_HITS])
{
    device_run run;
    device_arrays arrays;
    device_run_open(&run, c->graph, "op", batch, 0);
    device_run_put(&run, &c->host);
    device_buffer hits = device_buffer_make(SMP_OP_HITS * sizeof *want, 0);
    smp_op_call call = device_forward_call(&run, &c->host, &arrays);
    call.hits = hits.data;
    device_wait(run.kernels->forward(&call));
    int64_t *got = device_get(&hits);
    assert_int_equal(got[0], want[0]);
    assert_int_equal(got[1], want[1]);
    assert_true(want[1] > want[0]);
    free(got);
    device_buffer_free(&hits);
    device_run_close(&run);
}

/* As an argmax counts, in rows of a warp and of a block. */
static void test_cuda_ops_count_hits(void **state)
{
    (void)state;
    static const int classes[] = {24, 61, 5003};
    const op_case of = op_case_of("cross_entropy");
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
            char inputs[64];
            model_text m;
            uint64_t rng;
            comparison c;
            int64_t want[SMP_OP_HITS];
            snprintf(inputs, sizeof inputs, "a: float32 [30, %d]; b: int32 [30]", classes[i]);
            const large_case some = {2, 2, inputs, "in: [a, b]"};
            large_case_model(&of, &some, &m, &rng);
            comparison_open(&c, &of, is_bf16 ? SMP_PRECISION_BF16 : SMP_PRECISION_FP32, &m, &rng);
            make_hits(&c.host, 60, classes[i], true, want);
            check_hits(&c, m.batch, want);
            comparison_close(&c);
        }
}

/* The weight is the identity: logits are the input. */
static void test_cuda_ops_count_hits_in_chunks(void **state)
{
    (void)state;
    static const large_case some = {2, 2, "a: float32 [45, 24]; b: int32 [45]",
                                    "in: [a, b], features: 24, bias: false, chunk: 64"};
    const op_case of = op_case_of("linear_cross_entropy");
    for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
        model_text m;
        uint64_t rng;
        comparison c;
        int64_t want[SMP_OP_HITS];
        large_case_model(&of, &some, &m, &rng);
        comparison_open(&c, &of, is_bf16 ? SMP_PRECISION_BF16 : SMP_PRECISION_FP32, &m, &rng);
        make_hits(&c.host, 90, 24, false, want);
        for (int i = 0; i < 24 * 24; i++)
            ((float *)c.host.param[0].data)[i] = i % 25 == 0;
        check_hits(&c, m.batch, want);
        comparison_close(&c);
    }
}

static int open_with_properties(void **state)
{
    int major = 0, minor = 0;
    if (open_device(state) != 0)
        return -1;
    cuda_ok(cudaDeviceGetAttribute(&cuda.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    cuda.capability = 10 * major + minor;
    return 0;
}

int main(void)
{
    static op_tests t;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_ops_are_complete),
        cmocka_unit_test(test_cuda_ops_embedding_survives_bad_indices),
        cmocka_unit_test(test_cuda_ops_count_hits),
        cmocka_unit_test(test_cuda_ops_count_hits_in_chunks),
    };
    if (!there_is_a_device())
        return SKIPPED;
    cmocka_set_test_filter(getenv("SMP_TEST_FILTER")); /* "*linear*"; NULL: all */
    cmocka_set_skip_filter(getenv("SMP_TEST_SKIP"));   /* likewise; NULL: none */
    op_tests_add(&t, SMP_BACKEND_CUDA, "values and gradients",
                 test_cuda_ops_match_reference_and_differences);
    op_tests_add(&t, SMP_BACKEND_CUDA, "large tensors", test_cuda_ops_match_cpu_on_large_tensors);
    op_tests_add(&t, SMP_BACKEND_CUDA, "channels last", test_cuda_ops_channels_last);
    op_tests_add(&t, SMP_BACKEND_CUDA, "evaluates", test_cuda_ops_evaluate);
    op_tests_add(&t, SMP_BACKEND_CUDA, "leaves padding out", test_cuda_ops_leave_padding_out);
    op_tests_add(&t, SMP_BACKEND_CUDA, "fused", test_cuda_ops_pair);
    op_tests_add(&t, SMP_BACKEND_CUDA, "weight gradients add up",
                 test_cuda_ops_accumulate_weight_gradients);
    return cmocka_run_group_tests(tests, open_with_properties, close_device) |
           op_tests_run("operators", &t, open_with_properties, close_device);
}
