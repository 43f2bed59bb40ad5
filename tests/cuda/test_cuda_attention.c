/* Attention on a GPU against sums in double: widths, lengths that fill no tile, packed or separate
 * inputs, causal or not, every precision, large scores; queries of one of several devices, windows;
 * equal bits in every run and place; gradients that nobody wants; what is refused. With cuDNN: its
 * forward and its backward against ours. */
#include "tests/case_count.h"
#include "tests/cuda/device_array.h"

#include <stdio.h>

#include "graph/math/attention.h"
#include "graph/ops/ops.h"
#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"

enum { GUARD = 16 }; /* values behind an output that must stay as they were */

typedef struct setup {
    int64_t batch, queries, keys, heads, width;
    bool causal, packed;
    float magnitude; /* of q and k */
    smp_precision precision;
    int64_t group; /* heads to a key head */
} setup;

/* The queries of one of several devices; positions that one sees. 0: all. */
typedef struct share {
    int64_t devices, device, window;
} share;

typedef struct run {
    setup is;
    share of;
    smp_graph *graph;
    const smp_op *op;
    const smp_op_kernels *kernels;
    smp__attention at;
    smp_op_needs needs;
    void *state;
    array in[3], din[3], out, dout, aux, workspace;
} run;

/* Its last op is the attention, whose q, k and v all take gradients. */
static smp_graph *make_graph(const setup *is, share of)
{
    char text[1024], more[64] = "";
    const long long t = is->queries, k = is->keys, d = is->heads * is->width;
    const long long kv_heads = is->heads / is->group;
    const long long e = kv_heads * is->width;
    if (of.devices > 0)
        snprintf(more, sizeof more, ", devices: %lld", (long long)of.devices);
    if (of.window > 0)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", window: %lld",
                 (long long)of.window);
    if (is->packed)
        snprintf(text, sizeof text,
                 "smp: 1\nname: t\ninputs:\n  x: {dtype: float32, shape: [%lld, %lld]}\nops:\n"
                 "  - {op: linear, name: p, in: x, out: y, features: %lld}\n"
                 "  - {op: attention, name: op, in: y, out: z, heads: %lld, causal: %s}\n",
                 t, 3 * d, 3 * d, (long long)is->heads, is->causal ? "true" : "false");
    else
        snprintf(
            text, sizeof text,
            "smp: 1\nname: t\ninputs:\n  q: {dtype: float32, shape: [%lld, %lld]}\n"
            "  k: {dtype: float32, shape: [%lld, %lld]}\n"
            "  v: {dtype: float32, shape: [%lld, %lld]}\nops:\n"
            "  - {op: linear, name: pq, in: q, out: q, features: %lld}\n"
            "  - {op: linear, name: pk, in: k, out: k, features: %lld}\n"
            "  - {op: linear, name: pv, in: v, out: v, features: %lld}\n"
            "  - {op: attention, name: op, in: [q, k, v], out: z, heads: %lld, kv_heads: %lld, "
            "causal: %s%s}\n",
            t, d, k, e, k, e, d, e, e, (long long)is->heads, kv_heads,
            is->causal ? "true" : "false", more);
    smp_graph *graph = NULL;
    check(smp_graph_parse("m.yaml", text, strlen(text), &graph));
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, is->precision}));
    graph->device = (int32_t)of.device;
    return graph;
}

static const smp_op *attention_of(const smp_graph *graph)
{
    return &graph->op[graph->n_op - 1];
}

static run open_share(const setup *is, share of, int shift)
{
    run r = {.is = *is, .of = of, .graph = make_graph(is, of)};
    r.op = attention_of(r.graph);
    r.kernels = smp_op_cuda_kernels(r.op->kind);
    assert_non_null(r.kernels);
    r.at = smp__attention_of(r.graph, r.op);
    smp_op_needs_get(r.graph, r.op, is->batch, &r.needs);
    assert_int_equal(r.needs.aux_bytes, is->heads * is->queries * 4);
    if (products.workspace_bytes > 0 && r.needs.measured_workspace_bytes > r.needs.workspace_bytes)
        r.needs.workspace_bytes = r.needs.measured_workspace_bytes;
    const smp_dtype type = smp_precision_dtype(is->precision);
    for (int i = 0; i < r.op->n_in; i++) {
        const int64_t n = is->batch * smp__in(r.graph, r.op, i)->elements;
        r.in[i] = make(type, n, (uint64_t)(i + 1), shift);
        if (is->packed || i < 2)
            for (int64_t e = 0; e < n; e++)
                if (!is->packed || e % (3 * r.at.d) < 2 * r.at.d)
                    r.in[i].host[e] *= is->magnitude;
        to_device(&r.in[i]); /* the magnitude is a power of two */
        r.din[i] = make(type, n + GUARD, 0, 2 * shift);
    }
    const int64_t n = is->batch * is->queries * r.at.d;
    r.out = make(type, n + GUARD, 0, 3 * shift);
    r.dout = make(type, n, 9, shift);
    r.aux = make(SMP_F32, is->batch * r.needs.aux_bytes / 4 + GUARD, 0, shift);
    r.workspace = make(SMP_F32, r.needs.workspace_bytes / 4 + GUARD, 0, 2 * shift);
    cuda.precision = is->precision;
    check(r.kernels->prepare(r.graph, r.op, is->batch, &cuda, &r.state));
    return r;
}

static run open_run(const setup *is, int shift)
{
    return open_share(is, (share){0}, shift);
}

static void close_run(run *r)
{
    for (int i = 0; i < r->op->n_in; i++) {
        drop(&r->in[i]);
        drop(&r->din[i]);
    }
    drop(&r->out);
    drop(&r->dout);
    drop(&r->aux);
    drop(&r->workspace);
    r->kernels->release(r->state);
    smp_graph_destroy(r->graph);
}

static void read_back(array *x)
{
    from_device(x);
    for (int64_t i = x->n - GUARD; i < x->n; i++)
        if (!isnan(x->host[i]))
            fail_msg("value %lld of %lld was written to", (long long)i, (long long)(x->n - GUARD));
}

/* wanted: bit i: the gradient of input i. */
static void run_all(run *r, unsigned wanted)
{
    const void *in[3] = {r->in[0].data, r->in[1].data, r->in[2].data};
    void *out[] = {r->out.data};
    const float *dout[] = {r->dout.data};
    float *din[3] = {0};
    smp_op_call call = {.graph = r->graph, .op = r->op, .batch = r->is.batch, .state = r->state};
    for (int i = 0; i < r->op->n_in; i++)
        din[i] = wanted >> i & 1 ? r->din[i].data : NULL;
    call.device = &cuda;
    call.in = in;
    call.out = out;
    call.aux = r->aux.data;
    check(r->kernels->forward(&call));
    call.workspace = r->workspace.data;
    call.dout = dout;
    call.din = din;
    check(r->kernels->backward_input(&call));
    read_back(&r->out);
    read_back(&r->aux);
    read_back(&r->workspace);
    for (int i = 0; i < r->op->n_in; i++)
        read_back(&r->din[i]);
}

/* What the results should be, in double, laid out as the tensors are. */
typedef struct reference {
    double *out, *lse, *din[3], *score;
    double top; /* largest score */
} reference;

static double *zeroes(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}

static void reference_row(const run *r, reference *ref, int64_t b, int64_t h, int64_t t)
{
    const smp__attention *at = &r->at;
    const int64_t position = r->of.device * at->queries + t, w = at->width;
    const int64_t seen = at->causal ? position + 1 : at->keys;
    const int64_t first =
        r->of.window > 0 && r->of.window <= position ? position + 1 - r->of.window : 0;
    int64_t place[3], begin[3];
    for (int i = 0; i < 3; i++)
        begin[i] = b * smp__in(r->graph, r->op, at->input[i])->elements + at->offset[i] +
                   smp__attention_head(at, i, h) * w;
    const float *q = r->in[at->input[0]].host, *k = r->in[at->input[1]].host;
    const float *v = r->in[at->input[2]].host, *dout = r->dout.host;
    const int64_t row = (b * at->queries + t) * at->d + h * w;
    double *p = ref->score, top = -INFINITY, sum = 0, delta = 0;
    place[0] = begin[0] + t * at->stride[0];
    for (int64_t j = first; j < seen; j++) {
        p[j] = 0;
        for (int64_t x = 0; x < w; x++)
            p[j] += (double)q[place[0] + x] * (double)k[begin[1] + j * at->stride[1] + x];
        p[j] /= sqrt((double)w);
        top = fmax(top, p[j]);
        ref->top = fmax(ref->top, fabs(p[j]));
    }
    for (int64_t j = first; j < seen; j++)
        sum += p[j] = exp(p[j] - top);
    ref->lse[(b * at->heads + h) * at->queries + t] = top + log(sum);
    for (int64_t j = first; j < seen; j++) {
        p[j] /= sum;
        for (int64_t x = 0; x < w; x++)
            ref->out[row + x] += p[j] * (double)v[begin[2] + j * at->stride[2] + x];
    }
    for (int64_t x = 0; x < w; x++)
        delta += (double)dout[row + x] * ref->out[row + x];
    for (int64_t j = first; j < seen; j++) {
        double dp = 0;
        place[1] = begin[1] + j * at->stride[1];
        place[2] = begin[2] + j * at->stride[2];
        for (int64_t x = 0; x < w; x++)
            dp += (double)dout[row + x] * (double)v[place[2] + x];
        const double ds = p[j] * (dp - delta) / sqrt((double)w);
        for (int64_t x = 0; x < w; x++) {
            ref->din[at->input[0]][place[0] + x] += ds * (double)k[place[1] + x];
            ref->din[at->input[1]][place[1] + x] += ds * (double)q[place[0] + x];
            ref->din[at->input[2]][place[2] + x] += p[j] * (double)dout[row + x];
        }
    }
}

static reference make_reference(const run *r)
{
    reference ref = {.out = zeroes(r->out.n), .lse = zeroes(r->aux.n), .score = zeroes(r->at.keys)};
    for (int i = 0; i < r->op->n_in; i++)
        ref.din[i] = zeroes(r->din[i].n);
    for (int64_t b = 0; b < r->is.batch; b++)
        for (int64_t h = 0; h < r->at.heads; h++)
            for (int64_t t = 0; t < r->at.queries; t++)
                reference_row(r, &ref, b, h, t);
    return ref;
}

static void drop_reference(reference *ref)
{
    free(ref->out);
    free(ref->lse);
    free(ref->score);
    for (int i = 0; i < 3; i++)
        free(ref->din[i]);
}

/* Within `bound` of the largest value (gradients may cancel to nothing). Columns begin .. end-1 of
 * rows of `columns`. */
static void check_part(const run *r, const char *name, const float *got, const double *want,
                       int64_t n, int64_t columns, int64_t begin, int64_t end, double bound)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (i % columns >= begin && i % columns < end)
            largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (i % columns >= begin && i % columns < end &&
            !(fabs((double)got[i] - want[i]) <= bound * (largest + 0.02)))
            fail_msg(
                "%s[%lld, %lld]: got %.9g, expected %.9g, largest %.3g; B %d Tq %d Tk %d heads %d "
                "width %d causal %d packed %d magnitude %g %s",
                name, (long long)(i / columns), (long long)(i % columns), (double)got[i], want[i],
                largest, (int)r->is.batch, (int)r->is.queries, (int)r->is.keys, (int)r->is.heads,
                (int)r->is.width, r->is.causal, r->is.packed, (double)r->is.magnitude,
                smp_precision_name(r->is.precision));
}

/* `lost`: what gradients of queries may be off by besides, where they are sums of keys that nearly
 * cancel. */
static void check_run(const run *r, const reference *ref, double lost)
{
    static const char *const name[] = {"dq", "dk", "dv"};
    const bool half = smp_precision_is_half(r->is.precision);
    /* An error of the scores is a relative one of the probabilities. */
    const double bound = r->is.precision == SMP_PRECISION_FP16 ? 2e-3
                         : half                                ? 1e-2
                                                               : 1e-5 + 5e-7 * ref->top;
    const int64_t d = r->at.d;
    check_part(r, "out", r->out.host, ref->out, r->out.n - GUARD, d, 0, d, bound);
    check_part(r, "lse", r->aux.host, ref->lse, r->aux.n - GUARD, 1, 0, 1, half ? 1e-4 : 1e-5);
    for (int i = 0; i < 3; i++) {
        const int slot = r->at.input[i];
        const int64_t columns = i == SMP__Q ? d : r->at.kv_heads * r->at.width;
        check_part(r, name[i], r->din[slot].host, ref->din[slot], r->din[slot].n - GUARD,
                   r->at.stride[i], r->at.offset[i], r->at.offset[i] + columns,
                   2 * bound * (i == SMP__Q ? lost : 1));
    }
}

static void check_share(const setup *is, share of)
{
    run r = open_share(is, of, 0);
    reference ref = make_reference(&r);
    run_all(&r, 7);
    check_run(&r, &ref, 1);
    drop_reference(&ref);
    close_run(&r);
}

static void check_setup(const setup *is)
{
    check_share(is, (share){0});
}

static const smp_precision precisions[] = {SMP_PRECISION_FP32, SMP_PRECISION_BF16,
                                           SMP_PRECISION_FP16};
enum { N_PRECISION = sizeof precisions / sizeof *precisions };

static void test_cuda_attention_matches_reference(void **state)
{
    (void)state;
    /* every width that has a kernel of its own, just full and not quite; rows that are no packs */
    static const int widths[] = {1,  3,   8,   20,  32,  40,  64,  72,
                                 96, 100, 112, 120, 128, 136, 200, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int p = 0; p < N_PRECISION; p++)
            for (int causal = 0; causal < 2; causal++) {
                if (!is_turn(i, (size_t)(2 * p + causal), 2 * N_PRECISION))
                    continue;
                const uint64_t mix = smp_random_mix(i * 4 + (uint64_t)(2 * p + causal));
                const int64_t most = is_brief_emulation() ? 80 : 150;
                setup is = {1 + (int64_t)(mix % 2),
                            1 + (int64_t)((mix >> 8) % (uint64_t)most),
                            0,
                            1 + (int64_t)(mix >> 16) % 2,
                            widths[i],
                            causal,
                            mix >> 24 & 1,
                            1,
                            precisions[p],
                            1};
                is.keys = is.causal || is.packed ? is.queries
                                                 : 1 + (int64_t)((mix >> 32) % (uint64_t)most);
                check_setup(&is);
            }
}

static void test_cuda_attention_handles_every_length(void **state)
{
    (void)state;
    static const int lengths[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 193, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int p = 0; p < N_PRECISION; p++) {
            if (!is_turn(i, (size_t)p, N_PRECISION))
                continue;
            setup is = {1, lengths[i], lengths[i], 1, 16, true, true, 1, precisions[p], 1};
            check_setup(&is);
            is.causal = is.packed = false;
            is.keys = lengths[(i * 7 + 3) % (sizeof lengths / sizeof *lengths)];
            check_setup(&is);
        }
}

static void test_cuda_attention_shares_key_heads(void **state)
{
    (void)state;
    static const struct {
        int64_t heads, group, width, queries, keys;
        bool causal;
    } cases[] = {
        {4, 2, 16, 33, 70, false},  {4, 4, 24, 150, 150, true}, {6, 3, 72, 65, 65, true},
        {2, 2, 136, 70, 20, false}, {3, 3, 5, 130, 130, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 0; p < N_PRECISION; p++) {
            if (!is_turn(i, (size_t)p, N_PRECISION))
                continue;
            setup is = {is_brief_emulation() ? 1 : 2,
                        cases[i].queries,
                        cases[i].keys,
                        cases[i].heads,
                        cases[i].width,
                        cases[i].causal,
                        false,
                        1,
                        precisions[p],
                        cases[i].group};
            check_setup(&is);
        }
}

/* Of the first device, one in between and the last one; with a window, keys that nobody here sees
 * stand on both sides. */
static void test_cuda_attention_knows_its_positions(void **state)
{
    (void)state;
    static const struct {
        int64_t devices, queries, width, window, group;
    } cases[] = {
        {2, 33, 16, 0, 1},   {2, 150, 32, 0, 2},  {4, 70, 72, 0, 1}, {3, 64, 136, 0, 1},
        {3, 40, 256, 0, 1},  {3, 130, 16, 50, 1}, {4, 33, 64, 5, 1}, {2, 140, 128, 200, 2},
        {5, 20, 200, 64, 1}, {3, 96, 32, 96, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 0; p < N_PRECISION; p++)
            for (int which = 0; which < 3; which++) {
                if (!is_turn(i, (size_t)p, N_PRECISION) || !is_turn(i / 3, (size_t)which, 3))
                    continue;
                const int64_t devices = cases[i].devices, rows = cases[i].queries;
                const int64_t queries = is_brief_emulation() && rows > 100 ? rows / 2 : rows;
                setup is = {1, queries,       queries * devices, 2, cases[i].width, true, false,
                            1, precisions[p], cases[i].group};
                check_share(&is, (share){devices, which * (devices - 1) / 2, cases[i].window});
                is.causal = false;
                if (which == 2)
                    check_share(&is, (share){devices, devices - 1, 0});
            }
}

/* Where a block has no more shared memory than every GPU has, other kernels compute. */
static void test_cuda_attention_fits_every_gpu(void **state)
{
    (void)state;
    static const setup cases[] = {
        {1, 65, 65, 1, 64, true, false, 1, SMP_PRECISION_FP32, 1},
        {1, 130, 130, 2, 72, true, true, 1, SMP_PRECISION_FP32, 1},
        {1, 33, 70, 2, 96, false, false, 1, SMP_PRECISION_FP32, 2},
        {1, 150, 97, 1, 128, false, false, 1, SMP_PRECISION_FP32, 1},
        {1, 70, 70, 2, 136, true, false, 1, SMP_PRECISION_FP32, 2},
        {2, 49, 49, 1, 256, true, true, 1, SMP_PRECISION_FP32, 1},
    };
    const int all = cuda.shared_bytes;
    cuda.shared_bytes = SMP_CUDA_SHARED_LEAST;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 0; p < N_PRECISION; p++) {
            if (!is_turn(i, (size_t)p, N_PRECISION))
                continue;
            setup is = cases[i];
            is.precision = precisions[p];
            check_setup(&is);
        }
    cuda.shared_bytes = all;
}

static void test_cuda_attention_stands_large_scores(void **state)
{
    (void)state;
    for (int p = 0; p < N_PRECISION; p++)
        for (int causal = 0; causal < 2; causal++) {
            if (!is_turn((size_t)p, (size_t)causal, 2))
                continue;
            setup is = {1, 70, 70, 2, 64, causal, true, 16, precisions[p], 1};
            check_setup(&is); /* scores of some hundreds */
            is.magnitude = 0x1p-40f;
            check_setup(&is); /* all alike */
        }
}

/* Scores near `score`, so that the logarithms of their sums are, too. */
static void lower_scores(run *r, float score)
{
    const float side = sqrtf(-score / sqrtf((float)r->is.width));
    for (int i = 0; i < 2; i++) {
        for (int64_t e = 0; e < r->in[i].n; e++) {
            const float x = (i == 0 ? side : -side) * (1 + r->in[i].host[e] / 16);
            r->in[i].host[e] = half_value(r->in[i].type, half_bits(r->in[i].type, x));
        }
        to_device(&r->in[i]);
    }
}

/* Of rows behind the last key scores are 0, and the exponential of that less such a logarithm is
 * infinite in the type of the activations: they add nothing to dQ. */
static void test_cuda_attention_stands_low_scores(void **state)
{
    (void)state;
    static const int widths[] = {32, 64, 96, 112, 128, 256}, keys[] = {1, 70};
    for (int i = 0; i < 6 * 2 * 2; i++) {
        if (!is_turn((size_t)i / 4, (size_t)i % 4, 4))
            continue;
        const smp_precision type = i % 2 ? SMP_PRECISION_FP16 : SMP_PRECISION_BF16;
        const setup is = {1, 33, keys[i / 2 % 2], 1, widths[i / 4], false, false, 1, type, 1};
        run r = open_run(&is, 0);
        lower_scores(&r, i % 2 ? -20 : -100);
        reference ref = make_reference(&r);
        run_all(&r, 7);
        check_run(&r, &ref, 8);
        drop_reference(&ref);
        close_run(&r);
    }
}

static void test_cuda_attention_gives_the_same_bits(void **state)
{
    (void)state;
    for (int p = 0; p < N_PRECISION; p++) {
        /* more tiles of keys than two: dQ is a sum over them */
        const setup is = {1, 270,           270, is_brief_emulation() ? 1 : 2, 24, true, true,
                          2, precisions[p], 1};
        run first = open_run(&is, 0);
        run_all(&first, 7);
        for (int again = 1; again < 3; again++) {
            run r = open_run(&is, again);
            run_all(&r, 7);
            assert_memory_equal(r.out.host, first.out.host, (size_t)r.out.n * sizeof(float));
            assert_memory_equal(r.aux.host, first.aux.host, (size_t)r.aux.n * sizeof(float));
            assert_memory_equal(r.din[0].host, first.din[0].host,
                                (size_t)r.din[0].n * sizeof(float));
            close_run(&r);
        }
        close_run(&first);
    }
}

static void test_cuda_attention_leaves_unwanted_gradients(void **state)
{
    (void)state;
    for (int p = 0; p < N_PRECISION; p++)
        for (unsigned wanted = 0; wanted < 7; wanted++) {
            const setup is = {1, 40, 50, 2, 16, false, false, 1, precisions[p], 1};
            run all = open_run(&is, 0), r = open_run(&is, 0);
            run_all(&all, 7);
            run_all(&r, wanted);
            for (int i = 0; i < 3; i++)
                for (int64_t e = 0; e < r.din[i].n - GUARD; e++)
                    if (wanted >> i & 1)
                        assert_memory_equal(&r.din[i].host[e], &all.din[i].host[e], sizeof(float));
                    else
                        assert_true(isnan(r.din[i].host[e]));
            close_run(&r);
            close_run(&all);
        }
}

static void expect_refusal(const setup *is, const char *part)
{
    smp_graph *graph = make_graph(is, (share){0});
    const smp_op_kernels *kernels = smp_op_cuda_kernels(attention_of(graph)->kind);
    void *kept = NULL;
    smp_status status = kernels->prepare(graph, attention_of(graph), is->batch, &cuda, &kept);
    assert_int_not_equal(status, SMP_OK);
    assert_non_null(strstr(smp_last_error(), part));
    smp_graph_destroy(graph);
}

static void test_cuda_attention_says_what_it_cannot_do(void **state)
{
    (void)state;
    setup is = {1, 8, 8, 1, 257, true, true, 1, SMP_PRECISION_BF16, 1};
    expect_refusal(&is, "expected at most 256");
    is.width = 16;
    setenv("SMP_ATTENTION", "other", 1);
    expect_refusal(&is, "expected tiled or cudnn");
    is.precision = SMP_PRECISION_FP32;
    setenv("SMP_ATTENTION", "cudnn", 1);
    expect_refusal(&is, "cuDNN has no");
    setenv("SMP_ATTENTION", "tiled", 1);
}

static void test_cuda_attention_agrees_with_cudnn(void **state)
{
    static const int widths[] = {64, 80, 128};
    (void)state;
    if (!cuda.dnn)
        skip();
    for (int causal = 0; causal < 2; causal++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const int64_t part = is_brief_emulation() ? 4 : 1;
            const setup is = {2,    300 / part, 300 / part,         3, widths[i], causal,
                              true, 2,          SMP_PRECISION_BF16, 1};
            const setup grouped = {2,     200 / part, 200 / part,         4, widths[i], causal > 0,
                                   false, 2,          SMP_PRECISION_FP16, 2};
            setenv("SMP_ATTENTION", "cudnn", 1);
            check_setup(&is);
            check_setup(&grouped);
            setenv("SMP_ATTENTION", "tiled", 1);
            check_setup(&is);
        }
}

/* Where calls have its workspace, and near sums in double; ours where a gradient is not wanted. */
static void check_backward_by_cudnn(const setup *is, int shift)
{
    run r = open_run(is, shift), again = open_run(is, shift + 1);
    const smp_gemm *product = products.product[products.n - 1];
    const int64_t runs = product->runs;
    reference ref = make_reference(&r);
    assert_non_null(strstr(product->name, "attention backward"));
    assert_null(strstr(product->algorithm[product->chosen], SMP__ATTENTION_TILED));
    run_all(&r, 7);
    check_run(&r, &ref, 1);
    run_all(&again, 7);
    assert_int_equal(product->runs, runs + 2);
    for (int i = 0; i < r.op->n_in; i++)
        assert_memory_equal(r.din[i].host, again.din[i].host,
                            (size_t)(r.din[i].n - GUARD) * sizeof(float));
    if (!is->packed)
        run_all(&again, 3);
    assert_int_equal(product->runs, runs + 2);
    drop_reference(&ref);
    close_run(&again);
    close_run(&r);
}

static void test_cuda_attention_backward_by_cudnn(void **state)
{
    static const int widths[] = {64, 80, 128};
    (void)state;
    if (!cuda.dnn)
        skip();
    products.workspace_bytes = INT64_MAX;
    setenv("SMP_ATTENTION", "cudnn", 1);
    for (int causal = 0; causal < 2; causal++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const int64_t part = is_brief_emulation() ? 4 : 1;
            const setup is = {2,    290 / part, 290 / part,         3, widths[i], causal,
                              true, 2,          SMP_PRECISION_BF16, 1};
            const setup grouped = {2,     190 / part, 190 / part,         4, widths[i], causal > 0,
                                   false, 2,          SMP_PRECISION_FP16, 2};
            check_backward_by_cudnn(&is, 0);
            check_backward_by_cudnn(&grouped, 1);
        }
    products.workspace_bytes = 0;
    setenv("SMP_ATTENTION", "tiled", 1);
}

/* cuDNN is not told of a cap. */
static void test_cuda_attention_caps_scores_itself(void **state)
{
    (void)state;
    const setup is = {1, 16, 16, 2, 16, true, true, 1, SMP_PRECISION_BF16, 1};
    run r = open_run(&is, 0);
    assert_true(smp__dnn_attention_suits(&cuda, &r.at, 1));
    r.at.softcap = 30;
    assert_false(smp__dnn_attention_suits(&cuda, &r.at, 1));
    close_run(&r);
}

/* What cuDNN compiles is compiled once for all operators that compute the same. */
static void test_cuda_attention_has_one_choice_for_a_shape(void **state)
{
    (void)state;
    const setup is = {2, 24, 24, 2, 16, true, true, 1, SMP_PRECISION_BF16, 1};
    setup other = is;
    other.causal = false;
    unsetenv("SMP_ATTENTION");
    const int before = choices.n;
    run first = open_run(&is, 0), second = open_run(&is, 0);
    assert_int_equal(choices.n, before + 1);
    run third = open_run(&other, 0);
    assert_int_equal(choices.n, before + 2);
    close_run(&first);
    close_run(&second);
    close_run(&third);
    setenv("SMP_ATTENTION", "tiled", 1);
}

static int open_all(void **state)
{
    setenv("SMP_ATTENTION", "tiled", 1);
    setenv("SMP_EMULATE_DNN", "right", 0);
    return open_device(state) == 0 && smp__dnn_open(&cuda.dnn, cuda.stream) == SMP_OK ? 0 : -1;
}

static int close_all(void **state)
{
    smp__choices_free(&choices); /* cuDNN's plans */
    smp__dnn_close(cuda.dnn);
    return close_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_attention_matches_reference),
        cmocka_unit_test(test_cuda_attention_handles_every_length),
        cmocka_unit_test(test_cuda_attention_shares_key_heads),
        cmocka_unit_test(test_cuda_attention_knows_its_positions),
        cmocka_unit_test(test_cuda_attention_fits_every_gpu),
        cmocka_unit_test(test_cuda_attention_stands_large_scores),
        cmocka_unit_test(test_cuda_attention_stands_low_scores),
        cmocka_unit_test(test_cuda_attention_gives_the_same_bits),
        cmocka_unit_test(test_cuda_attention_leaves_unwanted_gradients),
        cmocka_unit_test(test_cuda_attention_says_what_it_cannot_do),
        cmocka_unit_test(test_cuda_attention_has_one_choice_for_a_shape),
        cmocka_unit_test(test_cuda_attention_caps_scores_itself),
        cmocka_unit_test(test_cuda_attention_agrees_with_cudnn),
        cmocka_unit_test(test_cuda_attention_backward_by_cudnn),
    };
    if (!there_is_a_device())
        return SKIPPED;
    cmocka_set_test_filter(getenv("SMP_TEST_FILTER")); /* "*cudnn*"; NULL: all */
    return cmocka_run_group_tests_name("cuda_attention", tests, open_all, close_all);
}
