/* An operator of one's own, whole: snake(x) = x + sin^2(a x) / a with a learned a for each feature
 * (Ziyin, Hartwig, Ueda: "Neural networks fail to learn periodic functions and how to fix it",
 * 2020). a = frequency * weight, and the weight starts at 1.
 *
 * Compile and use (smp.h is found where SMP is installed, or in its sources with -I):
 *   cc -O2 -shared -fPIC snake.c -o snake.so -lm
 *   smp-partition snake.yaml --plugin snake.so -n 2 -o plan.yaml
 *   mpirun -n 2 smp-run plan.yaml --plugin snake.so --data book.txt
 *
 * What a function here may do stands in smp.h at smp_op_register. */
#include <math.h>
#include <smp.h>

enum { FREQUENCY }; /* the attributes' indices */

static const smp_custom_attr ATTRS[] = {
    [FREQUENCY] = {"frequency", SMP_CUSTOM_FLOAT, .default_value = 1, .min = 0.01, .max = 100},
    {0},
};

/* Outputs are like input 0 unless we say otherwise, and backward reads all inputs. */
static smp_status describe(smp_custom_node *node)
{
    const smp_custom_tensor *x = &node->in[0];
    if (x->is_int || x->n_dim == 0)
        return smp_op_fail(node, "expected a float input [.., features]");
    node->n_weight = 1;
    node->weight[0] = (smp_custom_weight){
        .name = "alpha", .n_dim = 1, .dim = {x->dim[x->n_dim - 1]}, .init = SMP_CUSTOM_ONE};
    node->forward_flops = 25.0 * (double)x->elements; /* a sine counts as 20 */
    node->backward_input_flops = 25.0 * (double)x->elements;
    node->backward_weight_flops = 50.0 * (double)x->elements;
    return SMP_OK;
}

static int64_t features_of(const smp_custom_node *node)
{
    return node->in[0].dim[node->in[0].n_dim - 1];
}

static smp_status forward(const smp_custom_call *call)
{
    const int64_t n = call->batch * call->node->in[0].elements, features = features_of(call->node);
    const float frequency = (float)call->node->attr[FREQUENCY].f;
    const float *x = call->in[0], *alpha = call->weight[0];
    float *y = call->out[0];
    for (int64_t i = 0; i < n; i++) {
        const float a = frequency * alpha[i % features], s = sinf(a * x[i]);
        y[i] = x[i] + s * s / a;
    }
    return SMP_OK;
}

/* dy/dx = 1 + sin(2 a x). */
static smp_status backward_input(const smp_custom_call *call)
{
    const int64_t n = call->batch * call->node->in[0].elements, features = features_of(call->node);
    const float frequency = (float)call->node->attr[FREQUENCY].f;
    const float *x = call->in[0], *alpha = call->weight[0], *dy = call->out_grad[0];
    float *dx = call->in_grad[0];
    for (int64_t i = 0; dx && i < n; i++)
        dx[i] = dy[i] * (1 + sinf(2 * frequency * alpha[i % features] * x[i]));
    return SMP_OK;
}

/* dy/da = x sin(2 a x) / a - sin^2(a x) / a^2. The sum over samples is added to what is there. */
static smp_status backward_weight(const smp_custom_call *call)
{
    const int64_t n = call->batch * call->node->in[0].elements, features = features_of(call->node);
    const float frequency = (float)call->node->attr[FREQUENCY].f;
    const float *x = call->in[0], *alpha = call->weight[0], *dy = call->out_grad[0];
    for (int64_t f = 0; f < features; f++) {
        const float a = frequency * alpha[f];
        float sum = 0;
        for (int64_t i = f; i < n; i += features) {
            const float s = sinf(a * x[i]);
            sum += dy[i] * (x[i] * sinf(2 * a * x[i]) / a - s * s / (a * a));
        }
        call->weight_grad[0][f] += frequency * sum;
    }
    return SMP_OK;
}

smp_status smp_plugin_register(void)
{
    static const smp_custom_op snake = {
        .abi = SMP_CUSTOM_ABI,
        .size = sizeof snake,
        .name = "snake",
        .summary = "x + sin^2(a x) / a, with a learned a for each feature",
        .min_inputs = 1,
        .max_inputs = 1,
        .attrs = ATTRS,
        .describe = describe,
        .forward = forward,
        .backward_input = backward_input,
        .backward_weight = backward_weight,
    };
    return smp_op_register(&snake);
}
