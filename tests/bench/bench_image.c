/* Operators on images on one thread, what stands between a network's convolutions: milliseconds of
 * forward and backward, the best of several runs in time of the thread. image_torch.py prints the
 * same of PyTorch. Usage: bench_image [batch [repeats]]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/base/random.h"
#include "graph/model/op.h"

enum { BATCH = 8, REPEATS = 20 };

typedef struct layer {
    const char *op, *attrs;
    int64_t channels, size;
} layer;

static const layer LAYERS[] = {
    {"batchnorm", "", 64, 56},
    {"batchnorm", "", 256, 14},
    {"groupnorm", ", groups: 32", 64, 56},
    {"groupnorm", ", groups: 32", 256, 14},
    {"relu", "", 64, 56},
    {"relu", "", 256, 14},
    {"add", "", 64, 56},
    {"add", "", 256, 14},
    {"max_pool", ", kernel: 3, stride: 2, padding: 1", 64, 112},
    {"max_pool", ", kernel: 2", 64, 112},
    {"avg_pool", ", kernel: 3, stride: 2, padding: 1", 64, 112},
    {"avg_pool", ", kernel: 2", 64, 112},
    {"avg_pool", ", kernel: 3, stride: 1, padding: 1", 64, 56},
    {"global_avg_pool", "", 512, 7},
};

static void check(smp_status status)
{
    if (status == SMP_OK)
        return;
    fprintf(stderr, "bench_image: %s\n", smp_last_error());
    exit(1);
}

static float *make(int64_t n)
{
    float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 64) / 64 * 64);
    if (!x)
        check(smp_fail_memory((size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)(smp_random_mix((uint64_t)i) >> 11) * 0x1p-52 - 1);
    return x;
}

typedef struct call_arrays {
    const void *in[2];
    float *din[2], *dparam[SMP_OP_MAX_PARAM];
    const float *param[SMP_OP_MAX_PARAM];
    const float *dout;
    void *out, *state;
} call_arrays;

/* A model of one operator; `in` is its first input twice where it takes two. */
static smp_graph *parse(const layer *l)
{
    char text[256];
    const int n =
        snprintf(text, sizeof text,
                 "smp: 1\nname: image\ninputs:\n  a: {dtype: float32, shape: [%d, %d, %d]}\n"
                 "ops:\n  - {op: %s, name: op, in: %s, out: y%s}\n",
                 (int)l->channels, (int)l->size, (int)l->size, l->op,
                 strcmp(l->op, "add") == 0 ? "[a, a]" : "a", l->attrs);
    smp_graph *graph = NULL;
    check(smp_graph_parse(l->op, text, (size_t)n, &graph));
    return graph;
}

static smp_op_call prepare(const smp_graph *graph, int64_t batch, call_arrays *a)
{
    const smp_op *op = &graph->op[0];
    smp_op_needs needs;
    smp_op_needs_get(graph, op, batch, &needs);
    const int64_t n_out = smp_tensor_bytes(graph, op->out, batch) / 4;
    for (int i = 0; i < op->n_in; i++) {
        a->in[i] = make(smp_tensor_bytes(graph, op->in[i], batch) / 4);
        a->din[i] = make(smp_tensor_bytes(graph, op->in[i], batch) / 4);
    }
    for (int i = 0; i < op->n_param; i++) {
        a->param[i] = make(graph->param[op->param[i]].elements);
        a->dparam[i] = make(graph->param[op->param[i]].elements);
    }
    a->out = make(n_out);
    a->dout = make(n_out);
    if (op->kind->cpu.prepare)
        check(op->kind->cpu.prepare(graph, op, batch, NULL, &a->state));
    return (smp_op_call){.graph = graph,
                         .op = op,
                         .batch = batch,
                         .state = a->state,
                         .in = a->in,
                         .out = &a->out,
                         .param = a->param,
                         .aux = make(needs.aux_bytes * batch / 4),
                         .workspace = make(needs.workspace_bytes / 4),
                         .dout = &a->dout,
                         .din = a->din,
                         .dparam = a->dparam,
                         .step = {.training = true}};
}

static void release(smp_op_call *call, call_arrays *a)
{
    const smp_op *op = call->op;
    for (int i = 0; i < op->n_in; i++)
        free((void *)a->in[i]), free(a->din[i]);
    for (int i = 0; i < op->n_param; i++)
        free((void *)a->param[i]), free(a->dparam[i]);
    if (op->kind->cpu.release)
        op->kind->cpu.release(a->state);
    free((void *)a->dout), free(a->out), free(call->aux), free(call->workspace);
}

static smp_status backward(const smp_op_call *call)
{
    const smp_op_kernels *cpu = &call->op->kind->cpu;
    if (cpu->backward_weight)
        SMP_TRY(cpu->backward_weight(call));
    return cpu->backward_input(call);
}

static double thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void bench(const layer *l, int64_t batch, int repeats)
{
    call_arrays arrays = {0};
    smp_graph *graph = parse(l);
    smp_op_call call = prepare(graph, batch, &arrays);
    double best[2] = {0};
    for (int i = 0; i < 2 * repeats; i++) {
        const double start = thread_ms();
        check(i % 2 == 0 ? call.op->kind->cpu.forward(&call) : backward(&call));
        const double ms = thread_ms() - start;
        if (i < 2 || ms < best[i % 2])
            best[i % 2] = ms;
    }
    printf("%-15s %-34s %4d x %3d^2 %8.3f %8.3f\n", l->op, *l->attrs ? l->attrs + 2 : "",
           (int)l->channels, (int)l->size, best[0], best[1]);
    release(&call, &arrays);
    smp_graph_destroy(graph);
}

int main(int argc, char **argv)
{
    const int64_t batch = argc > 1 ? strtoll(argv[1], NULL, 10) : BATCH;
    const int repeats = argc > 2 ? atoi(argv[2]) : REPEATS;
    if (batch < 1 || batch > 4096 || repeats < 1) {
        fprintf(stderr, "usage: bench_image [batch [repeats]]\n");
        return 2;
    }
    printf("one thread, best of %d, batch %d: ms forward, backward\n", repeats, (int)batch);
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++)
        bench(&LAYERS[i], batch, repeats);
    return 0;
}
