/* A complete training program on libsmp: reads a plan and a text file, trains, prints the loss.
 *
 *   cc embed.c -o embed $(pkg-config --cflags --libs smp)
 *   smp-partition gpt-tiny.yaml -n 2 -o plan.yaml
 *   mpirun -n 2 ./embed plan.yaml book.txt 100
 *
 * Every rank runs this program. smp_init reads the plan and gives each rank its stages; smp_step
 * trains one global batch. */
#include <smp.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text, cut into windows of `length` bytes; the target of a byte is the byte that follows. */
typedef struct text {
    unsigned char *bytes;
    int64_t windows;
    int64_t length;
} text;

/* The whole file; *size is -1 where it cannot be read. */
static unsigned char *file_read(const char *path, int64_t *size)
{
    FILE *file = fopen(path, "rb");
    *size = -1;
    if (!file)
        return NULL;
    long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    unsigned char *bytes = end > 0 ? malloc((size_t)end) : NULL;
    if (bytes && fseek(file, 0, SEEK_SET) == 0 && fread(bytes, 1, (size_t)end, file) == (size_t)end)
        *size = end;
    fclose(file);
    return bytes;
}

/* Rank 0 alone reads the file; the others get its size, then its bytes. */
static int text_open(text *t, smp *s, const char *path, int64_t length)
{
    int64_t size = 0, all_have_room;
    if (smp_rank(s, SMP_WORLD) == 0)
        t->bytes = file_read(path, &size);
    if (smp_broadcast(s, SMP_WORLD, 0, &size, sizeof size) || size <= length)
        return 0;
    if (smp_rank(s, SMP_WORLD) > 0)
        t->bytes = malloc((size_t)size);
    all_have_room = t->bytes != NULL;
    if (smp_all_reduce(s, SMP_WORLD, SMP_TYPE_INT64, SMP_COMBINE_MIN, &all_have_room, 1) ||
        !all_have_room || smp_broadcast(s, SMP_WORLD, 0, t->bytes, size))
        return 0;
    t->length = length;
    t->windows = (size - 1) / length;
    return 1;
}

/* Fills [count][length] bytes from window `first` on, `shift` bytes ahead, starting over at the end
 * of the text. */
static void text_read(const text *t, int64_t first, int64_t count, int shift, int32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *window = t->bytes + (first + i) % t->windows * t->length + shift;
        for (int64_t j = 0; j < t->length; j++)
            *out++ = window[j];
    }
}

static int train(smp *s, const char *path, int64_t steps)
{
    /* This example knows models with the inputs `tokens` and `targets`, in any order. */
    int targets = smp_input_count(s) == 2 && strcmp(smp_input_name(s, 0), "targets") != 0;
    if (smp_input_count(s) != 2 || strcmp(smp_input_name(s, targets), "targets") != 0 ||
        !smp_input_is_int(s, 0) || !smp_input_is_int(s, 1)) {
        fprintf(stderr, "embed: the model must have the int32 inputs tokens and targets\n");
        return 1;
    }

    int64_t samples = smp_step_samples(s), length = smp_input_elements(s, 0);
    smp_job_description about;
    smp_job_describe(s, &about);
    text t = {0};
    int32_t *buffer[2] = {malloc((size_t)(samples * length) * sizeof(int32_t)),
                          malloc((size_t)(samples * length) * sizeof(int32_t))};
    int failed = !text_open(&t, s, path, length) || !buffer[0] || !buffer[1];
    if (failed)
        fprintf(stderr, "embed: cannot read %s, or it is too short\n", path);

    for (int64_t step = 0; step < steps && !failed; step++) {
        /* Each replica takes its own part of the global batch. */
        int64_t first = step * about.global_batch + smp_samples_before(s);
        const void *inputs[2];
        for (int i = 0; i < 2; i++) {
            text_read(&t, first, samples, i == targets, buffer[i]);
            inputs[i] = buffer[i];
        }
        smp_step_result r;
        failed = smp_step(s, inputs, &r) != SMP_OK;
        if (failed)
            fprintf(stderr, "embed: %s\n", smp_last_error());
        else if (smp_rank(s, SMP_WORLD) == 0)
            printf("step %" PRId64 "  loss %.4f  %.0f samples/s\n", r.step, r.loss,
                   r.samples_per_s);
    }
    free(t.bytes);
    free(buffer[0]);
    free(buffer[1]);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: mpirun -n RANKS embed PLAN TEXT [STEPS]\n");
        return 2;
    }
    smp_options options = smp_options_default();
    options.plan = argv[1];
    options.optimizer.lr = 1e-3f;

    smp *s = NULL;
    smp_status status = smp_init(&s, &options);
    if (status != SMP_OK) {
        fprintf(stderr, "embed: %s\n", smp_last_error());
        return smp_status_exit_code(status);
    }
    int failed = train(s, argv[2], argc > 3 ? strtoll(argv[3], NULL, 10) : 100);
    smp_finalize(s);
    return failed;
}
