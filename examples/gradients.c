/* Prints the gradients of one step of linear.yaml over 30 samples, whatever the number of replicas:
 *
 *   cc gradients.c -o gradients $(pkg-config --cflags --libs smp)
 *   smp-partition linear.yaml -n 4 --ddp 4 --microbatch-size 8 --microbatches 1 -o plan.yaml
 *   mpirun -n 4 ./gradients plan.yaml
 *
 * A step of plain gradient descent with a learning rate of 1 takes the gradient off a weight, so it
 * is what the weight was less what it is. */
#include <smp.h>

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 30, FEATURES = 5, OUTPUTS = 2, MOST_WEIGHTS = FEATURES * OUTPUTS };

/* A value in [-1, 1), always the same for the same `i`. */
static float noise(uint32_t i)
{
    i = (i ^ (i >> 16)) * 0x45d9f3bu;
    i = (i ^ (i >> 16)) * 0x45d9f3bu;
    return (float)((i ^ (i >> 16)) & 0xffffffu) / (float)(1 << 23) - 1.0f;
}

/* Samples from `first` on: y is a sum of the features, with noise. */
static void make_samples(int64_t first, int64_t n, float *x, float *y)
{
    for (int64_t s = 0; s < n; s++) {
        float sum = 0.0f;
        for (int64_t f = 0; f < FEATURES; f++)
            sum += x[s * FEATURES + f] = noise((uint32_t)((first + s) * FEATURES + f));
        for (int64_t o = 0; o < OUTPUTS; o++)
            y[s * OUTPUTS + o] = sum * (float)(o + 1) + 0.1f * x[s * FEATURES + o];
    }
}

/* All weights, one behind the other: 0 if the model is another one. */
static int read_weights(smp *s, float (*values)[MOST_WEIGHTS])
{
    for (int w = 0; w < smp_weight_count(s); w++)
        if (w >= 2 || smp_weight_elements(s, w) > MOST_WEIGHTS ||
            smp_weight_get(s, smp_weight_name(s, w), values[w], smp_weight_elements(s, w)))
            return 0;
    return 1;
}

static smp_status step(smp *s, smp_step_result *result)
{
    int64_t own = smp_step_samples(s); /* of this replica, the last of which may be short */
    float *x = malloc((size_t)own * FEATURES * sizeof *x);
    float *y = malloc((size_t)own * OUTPUTS * sizeof *y);
    smp_status status = SMP_ERR_NO_MEMORY;
    if (x && y) {
        make_samples(smp_samples_before(s), own, x, y);
        status = smp_step_short(s, (const void *const[]){x, y}, SAMPLES, result);
    }
    free(x);
    free(y);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: mpirun -n RANKS gradients PLAN\n");
        return 2;
    }
    smp_options options = smp_options_default();
    options.plan = argv[1];
    options.optimizer.name = "sgd";
    options.optimizer.lr = 1.0f;
    options.optimizer.momentum = options.optimizer.weight_decay = options.optimizer.clip_norm =
        0.0f;

    smp *s = NULL;
    smp_status status = smp_init(&s, &options);
    if (status != SMP_OK) {
        fprintf(stderr, "gradients: %s\n", smp_last_error());
        return smp_status_exit_code(status);
    }
    float before[2][MOST_WEIGHTS], after[2][MOST_WEIGHTS];
    smp_step_result result;
    int done = read_weights(s, before) && step(s, &result) == SMP_OK && read_weights(s, after);
    if (!done)
        fprintf(stderr, "gradients: %s\n", smp_last_error());
    for (int w = 0; done && smp_rank(s, SMP_WORLD) == 0 && w < smp_weight_count(s); w++)
        for (int64_t i = 0; i < smp_weight_elements(s, w); i++)
            printf("%s[%d]\t%.6f\n", smp_weight_name(s, w), (int)i,
                   (double)before[w][i] - (double)after[w][i]);
    smp_finalize(s);
    return !done;
}
