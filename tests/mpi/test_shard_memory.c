/* Sharded states on four ranks: what a process holds, against the plan. The arena is as long as the
 * plan says; what is resident, and the most that ever was, also while weights are made, saved and
 * loaded, is the arena and no more than a hundredth. */
#include "tests/case_count.h"
#include "tests/mpi/ranks.h"

enum { WIDTH = 3072, LAYERS = 8, STEPS = 2 };

static float input[WIDTH];

/* As many square products, each a chunk of its own. */
static void write_model(char *text, size_t size, int width)
{
    size_t n = (size_t)snprintf(text, size,
                                "smp: 1\nname: deep\ninputs:\n"
                                "  x: {dtype: float32, shape: [%d]}\n"
                                "  t: {dtype: float32, shape: [%d]}\nops:\n",
                                width, width);
    for (int i = 0; i < LAYERS; i++)
        n += (size_t)snprintf(text + n, size - n,
                              "  - {op: linear, name: l%d, in: %s, out: y, features: %d}\n", i,
                              i ? "y" : "x", width);
    snprintf(text + n, size - n, "  - {op: mse, name: loss, in: [y, t], out: loss}\nloss: loss\n");
}

/* A line of /proc/self/status, in bytes. */
static double status_bytes(const char *key)
{
    char line[256];
    double kib = -1.0;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (kib < 0.0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atof(line + strlen(key));
    fclose(file);
    assert_true(kib >= 0.0);
    return 1024.0 * kib;
}

/* The most from here on. */
static bool forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    bool done = file && fputs("5", file) >= 0;
    return file && fclose(file) == 0 && done;
}

static void step(smp *job)
{
    const void *inputs[] = {input, input};
    smp_step_result result;
    must(smp_step(job, inputs, &result));
    assert_int_equal(result.skipped, 0);
}

static smp *open_sharded(int width, smp_shard_what what, int shard, const char *state_precision)
{
    static char text[4096];
    write_model(text, sizeof text, width);
    smp_options options = options_of(model_path(text), (cut){1, 4, 1, 1, 4});
    options.planning.schedule = "breadth-first";
    options.optimizer.name = "adamw";
    options.planning.shard = shard;
    options.planning.shard_what = what;
    options.planning.state_precision = state_precision;
    if (state_precision && strcmp(state_precision, "bf16") == 0)
        options.planning.gradient_wire = SMP_WIRE_BF16;
    return open_job(&options);
}

static void check_held(const smp *job, const char *when, double before, double before_peak)
{
    const double arena = (double)job->memory->arena_bytes;
    const double now = (status_bytes("VmRSS:") - before) / arena,
                 most = (status_bytes("VmHWM:") - before_peak) / arena;
    print_message("rank %d %s: arena %.1f MB, resident %.4f of it, at most %.4f\n", world_rank,
                  when, arena / 1e6, now, most);
    assert_true(now <= 1.01 && most <= 1.01);
}

/* part: bytes of what lives for ever, over those of weights, gradients and two states in fp32. */
static void check_job(smp_shard_what what, int shard, const char *state_precision, double part)
{
    char folder[160];
    const bool saves = shard == 4 && (is_long() || what == SMP_SHARD_WEIGHTS);
    const double weights = 4.0 * LAYERS * ((double)WIDTH * WIDTH + WIDTH);
    snprintf(folder, sizeof folder, "%s/saved-%d", ranks_folder, (int)what);
    if (!forget_peak())
        skip();
    const double before = status_bytes("VmRSS:"), before_peak = status_bytes("VmHWM:");
    smp *job = open_sharded(WIDTH, what, shard, state_precision);
    assert_int_equal(job->memory->arena_bytes, job->plan->predicted.peak_bytes[0]);
    check_held(job, "initialised", before, before_peak);
    for (int i = 0; i < STEPS; i++)
        step(job);
    check_held(job, "trained", before, before_peak);
    if (saves) { /* all ranks write and read at the same time */
        must(smp_save(job, folder));
        must(smp_load(job, folder));
        check_held(job, "loaded", before, before_peak);
    }
    /* what lives for ever, but for the work area, the loss slot and the longest parts' surplus */
    const double kept = (double)job->memory->work;
    print_message("rank %d: states %.4f of all\n", world_rank, kept / (4 * weights));
    assert_true(kept < (part + 0.002) * 4 * weights);
    /* that the arena is in what is measured; what was resident before may have gone since */
    assert_true((status_bytes("VmRSS:") - before) / (double)job->memory->arena_bytes >= 0.9);
    smp_finalize(job);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0 && saves) {
        char command[200];
        snprintf(command, sizeof command, "rm -r '%s'", folder);
        assert_int_equal(system(command), 0);
    }
}

/* MPI and the libraries take what they take with the first job. */
static void test_shard_memory(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its shadow is resident too */
#endif
    for (int i = 0; i < WIDTH; i++)
        input[i] = (float)((i * 37) % 101) / 101.0f - 0.5f;
    smp *first = open_sharded(WIDTH / 32, SMP_SHARD_WEIGHTS, 4, NULL);
    step(first);
    smp_finalize(first);
    check_job(SMP_SHARD_WEIGHTS, 4, "fp32", 0.25);
    if (is_long()) {
        check_job(SMP_SHARD_GRADIENTS, 2, NULL, (1 + 1.5) / 4);
        check_job(SMP_SHARD_OPTIMIZER, 4, NULL, (2 + 0.5) / 4);
    }
    check_job(SMP_SHARD_OPTIMIZER, 4, "bf16", (2 + 0.25) / 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shard_memory)};
    RUN_ON_RANKS(argc, argv, tests);
}
