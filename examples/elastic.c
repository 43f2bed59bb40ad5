/* Lives under smp-run --elastic, or by itself under mpirun: trains on batches that it draws, and
 * what it draws from is kept and saved with the weights.
 *   cc elastic.c -o elastic $(pkg-config --cflags --libs smp)
 *   smp-run --elastic gpt-tiny.yaml -n 1:4 --global-batch 16 --checkpoint run1 -- ./elastic 100 */
#include <smp.h>
#include <stdio.h>
#include <stdlib.h>

static struct { /* the program's own state, alike on all ranks */
    uint64_t random;
    double loss_sum;
} own = {.random = 1};

/* Each rank draws the whole batch and takes its replica's part: bytes that count up. */
static void draw_batch(const smp *s, int64_t samples, int32_t *tokens, int32_t *targets)
{
    const int64_t length = smp_input_elements(s, 0), first = smp_samples_before(s);
    for (int64_t i = 0; i < samples; i++) {
        own.random = own.random * 6364136223846793005u + 1442695040888963407u;
        for (int64_t j = 0; i >= first && i < first + smp_step_samples(s) && j < length; j++) {
            *tokens++ = (int32_t)(((own.random >> 33) + (uint64_t)j) % 256);
            *targets++ = (int32_t)(((own.random >> 33) + (uint64_t)j + 1) % 256);
        }
    }
}

static smp_status train(smp *s, const char *checkpoint, int64_t steps, int *exit_code)
{
    const int64_t n = smp_step_samples(s) * smp_input_elements(s, 0);
    int32_t *batch = malloc((size_t)(2 * n) * sizeof *batch);
    smp_status status = batch ? smp_elastic_begin(s, checkpoint) : SMP_ERR_NO_MEMORY;
    smp_job_description about;
    smp_job_describe(s, &about);
    for (int ends = 0; !status && !ends && smp_steps_done(s) < steps;) {
        smp_step_result r = {0};
        draw_batch(s, about.global_batch, batch, batch + n);
        status = smp_step(s, (const void *[]){batch, batch + n}, &r);
        own.loss_sum += r.loss; /* before the state of this step is kept */
        if (!status && !(status = smp_elastic_step(s, &r, &ends)) && smp_rank(s, SMP_WORLD) == 0)
            printf("step %d  loss %.6f  mean %.17g\n", (int)r.step, r.loss, own.loss_sum / r.step);
    }
    free(batch);
    return status ? status : smp_elastic_end(s, exit_code);
}

int main(int argc, char **argv)
{
    smp *s = NULL;
    const char *checkpoint = NULL;
    int exit_code = 0;
    smp_options options = smp_options_default();
    options.model = "gpt-tiny.yaml";
    options.planning.global_batch = 16;
    options.runtime.own_state = &own;
    options.runtime.own_bytes = sizeof own;
    const int64_t steps = argc > 1 ? atoll(argv[1]) : 100;
    smp_status status = smp_elastic_join(&options, &checkpoint);
    if (status || (status = smp_init(&s, &options)) ||
        (status = train(s, checkpoint, steps, &exit_code)))
        fprintf(stderr, "elastic: %s\n", smp_last_error());
    smp_finalize(s);
    return status ? smp_status_exit_code(status) : exit_code;
}
