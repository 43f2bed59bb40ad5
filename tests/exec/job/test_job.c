/* A job against the plain sequential trainer, on however many ranks the test is started with: the
 * losses and every weight have the same bits, for pipelines of all ranks and of half of them. */
#include <limits.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/record/step_record_state.h"
#include "exec/state/handle.h"
#include "graph/base/random.h"
#include "graph/model/op.h"
#include "tests/case_count.h"
#include "tests/exec/changed_plan.h"
#include "tests/exec/open_ranks.h"
#include "tests/sequential.h"

enum { STEPS = 4, N_MODEL = 4 };

static const char *const models[N_MODEL] = {"examples/gpt-tiny.yaml", "examples/branches.yaml",
                                            "tests/data/channels.yaml", "tests/data/outputs.yaml"};

/* Values for every input: reals in [-1, 1), integers small enough for any vocabulary. */
static void **make_inputs(const smp_graph *graph, int64_t samples, uint64_t seed)
{
    void **inputs = calloc((size_t)graph->n_input, sizeof(void *));
    assert_non_null(inputs);
    for (int32_t i = 0; i < graph->n_input; i++) {
        int64_t n = graph->tensor[i].elements * samples;
        inputs[i] = calloc((size_t)n, 4);
        assert_non_null(inputs[i]);
        for (int64_t k = 0; k < n; k++) {
            uint32_t word = smp_random_philox(seed, (uint64_t)k, (uint64_t)i).v[0];
            if (graph->tensor[i].dtype == SMP_I32)
                ((int32_t *)inputs[i])[k] = (int32_t)(word % 10);
            else
                ((float *)inputs[i])[k] = 2.0f * smp_random_uniform(word) - 1.0f;
        }
    }
    return inputs;
}

static void free_inputs(const smp_graph *graph, void **inputs)
{
    for (int32_t i = 0; i < graph->n_input; i++)
        free(inputs[i]);
    free(inputs);
}

typedef struct config {
    const char *model;
    int stages, ddp, chunks, microbatches, batch;
    const char *schedule;
    const char *optimizer;
    plan_changes changes; /* all zero: the plan as the planner makes it */
    const char *offload_to;
} config;

static smp_options options_of(const config *c, const char *path)
{
    smp_options options = smp_options_default();
    options.model = path;
    options.planning.stages = c->stages;
    options.planning.ddp = c->ddp;
    options.planning.chunks = c->chunks;
    options.planning.microbatches = c->microbatches;
    options.planning.microbatch_size = c->batch;
    options.planning.schedule = c->schedule;
    options.optimizer.name = c->optimizer;
    options.optimizer.lr = 3e-3f;
    options.optimizer.clip_norm = 0.5f;
    options.optimizer.warmup_steps = 2;
    options.optimizer.decay_steps = 6;
    options.runtime.seed = 7;
    options.runtime.timeout_s = 60;
    options.runtime.offload_to = c->offload_to;
    return options;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double difference = (double)a[i] - b[i];
        largest = difference > largest ? difference : -difference > largest ? -difference : largest;
    }
    return largest;
}

/* Copies the job's weights to the reference (set) or compares them. Collective; rank 0 has the
 * reference. */
static void walk_weights(smp *job, sequential *reference, bool set)
{
    for (int i = 0; i < smp_weight_count(job); i++) {
        int64_t n = smp_weight_elements(job, i);
        float *values = malloc((size_t)n * 4);
        assert_non_null(values);
        must(smp_weight_get(job, smp_weight_name(job, i), values, n));
        float *own = reference ? sequential_weight(reference, i) : values;
        if (set)
            memmove(own, values, (size_t)n * 4);
        else if (memcmp(own, values, (size_t)n * 4) != 0)
            fail_msg("weight %s differs by up to %g", smp_weight_name(job, i),
                     largest_difference(own, values, n));
        free(values);
    }
}

/* A file with the changed plan, the same name on every rank. */
static void write_changed(const config *c, const smp_graph *graph, const smp_options *options,
                          char path[64])
{
    if (world_rank == 0) {
        snprintf(path, 64, "%s/smp-plan-XXXXXX", P_tmpdir);
        int file = mkstemp(path);
        assert_true(file >= 0 && close(file) == 0);
        must(changed_plan_write(options, world_size, graph, c->changes, path));
    }
    MPI_Bcast(path, 64, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static int travelling; /* jobs of which something was away */

/* Opens a job for the plan with its changes: it reserves what the plan predicts. */
static void open_job(const config *c, const smp_graph *graph, smp_options options, smp **job)
{
    char path[64] = "";
    if (c->changes.seed > 0) {
        write_changed(c, graph, &options, path);
        options.plan = path;
        options.model = NULL;
    }
    must(smp_init(job, &options));
    if (c->changes.seed > 0 && world_rank == 0)
        assert_int_equal(unlink(path), 0);
    const smp_predicted *predicted = &(*job)->plan->predicted;
    const int rank = (*job)->comm->pipeline_rank;
    travelling += (*job)->memory->host_bytes > 0;
    if (strcmp(c->optimizer, "adamw") == 0) {
        assert_int_equal((*job)->memory->arena_bytes, predicted->peak_bytes[rank]);
        assert_int_equal((*job)->memory->host_bytes,
                         predicted->host_bytes ? predicted->host_bytes[rank] : 0);
    }
    for (int chunk = 0; chunk < (*job)->work->chunks; chunk++) {
        const smp_layout *layout = (*job)->work->chunk[chunk].layout;
        const smp_plan_stage *stage = &(*job)->plan->stage[layout->stage];
        assert_true(c->changes.recompute_percent < 100 ||
                    smp_plan_stage_recomputes(stage) == stage->n_op);
        assert_true(c->changes.split_percent < 100 || layout->split);
    }
}

static void run_config(const config *c)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", SMP_SOURCE_DIR, c->model);
    smp_graph *graph = NULL;
    must(smp_graph_read(path, &graph));
    smp_options options = options_of(c, path);
    smp *job = NULL;
    sequential *reference = NULL;
    double losses[STEPS], wanted[STEPS];
    open_job(c, graph, options, &job);
    if (world_rank == 0) /* the others have the core meanwhile */
        must(sequential_create(graph, c->batch, c->microbatches * c->ddp, &options, &reference));
    walk_weights(job, reference, true);

    int64_t samples = smp_step_samples(job);
    assert_int_equal(samples, (int64_t)c->microbatches * c->batch);
    for (int step = 0; step < STEPS; step++) {
        void **inputs = make_inputs(graph, samples * c->ddp, (uint64_t)step);
        const void **own = calloc((size_t)graph->n_input, sizeof(void *));
        for (int32_t i = 0; i < graph->n_input; i++)
            if (smp_input_needed(job, i))
                own[i] = (char *)inputs[i] +
                         smp_rank(job, SMP_DDP) * samples * graph->tensor[i].elements * 4;
        smp_step_result result;
        must(smp_step(job, own, &result));
        if (reference)
            must(sequential_step(reference, (const void *const *)inputs, &wanted[step]));
        assert_int_equal(result.step, step + 1);
        losses[step] = result.loss;
        free(own);
        free_inputs(graph, inputs);
    }
    walk_weights(job, reference, false);
    MPI_Bcast(wanted, STEPS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int step = 0; step < STEPS; step++)
        if (losses[step] != wanted[step])
            fail_msg("%s, %d stages, %d chunks, %d micro-batches, %s, step %d: loss %.9g, "
                     "sequential %.9g",
                     c->model, c->stages, c->chunks, c->microbatches, c->schedule, step + 1,
                     losses[step], wanted[step]);
    if (reference)
        sequential_destroy(reference);
    smp_finalize(job);
    smp_graph_destroy(graph);
}

/* Two ranks run every other model, one and four the rest. */
static bool is_run(size_t model)
{
    return is_long() || (model % 2 == 0) == (world_size == 2);
}

static void test_job_bits_equal_sequential(void **state)
{
    (void)state;
    for (size_t model = 0; model < N_MODEL; model++)
        for (int chunks = 1; chunks <= 2; chunks++)
            for (int m = 3; m <= 4; m++) {
                config c = {.model = models[model],
                            .stages = world_size,
                            .ddp = 1,
                            .chunks = chunks,
                            .microbatches = m,
                            .batch = 2,
                            .schedule = m == 3 ? "simple" : "interleaved",
                            .optimizer = "adamw"};
                if (is_run(model))
                    run_config(&c);
            }
}

/* Stages that recompute and chunks whose backwards are split, at random: the same bits. */
static void test_job_recompute_and_split(void **state)
{
    (void)state;
    static const plan_changes kinds[] = {
        {.recompute_percent = 100},                  /* every stage recomputes */
        {.split_percent = 100, .soon_percent = 100}, /* W right behind I */
        {.split_percent = 100},                      /* all W just before the reduction */
        {.recompute_percent = 50, .split_percent = 70, .whole_percent = 20, .soon_percent = 30},
        {.recompute_percent = 100, .split_percent = 100, .soon_percent = 20},
    };
    /* Single ops, under whole and split backwards. */
    static const plan_changes ops[] = {
        {.recompute_percent = 80, .recompute_ops_percent = 40},
        {.recompute_percent = 80,
         .recompute_ops_percent = 60,
         .split_percent = 80,
         .whole_percent = 20},
    };
    for (size_t model = 0; model < N_MODEL; model++)
        for (int k = 0; k < (model == 0 ? 5 : 10); k++) {
            if (!is_run(model) || (!is_long() && k > 1 && (k + (int)model) % 2 != 0))
                continue;
            config c = {.model = models[model],
                        .stages = world_size,
                        .ddp = 1,
                        .chunks = 1 + k % 2,
                        .microbatches = 3 + k / 5,
                        .batch = 2,
                        .schedule = k < 4 ? "simple" : "interleaved",
                        .optimizer = "adamw",
                        .changes = kinds[k % 5]};
            c.changes.seed = (uint64_t)(1 + k);
            run_config(&c);
            if (k > 1)
                continue;
            c.changes = ops[k];
            c.changes.seed = 7 + model;
            run_config(&c);
        }
}

/* Stashes that travel, under random backwards and recomputation, near and far ahead, to memory and
 * to a file: the same bits, in less memory. */
static void test_job_offload(void **state)
{
    (void)state;
    static const plan_changes kinds[] = {
        {.offload_percent = 100},
        {.offload_percent = 100, .horizon = 2, .offload_states = true},
        {.offload_percent = 100, .split_percent = 100, .soon_percent = 30},
        {.offload_percent = 80,
         .offload_ops_percent = 50,
         .recompute_percent = 60,
         .recompute_ops_percent = 40,
         .split_percent = 50,
         .whole_percent = 20,
         .soon_percent = 30},
        {.offload_percent = 100, .recompute_percent = 90, .recompute_ops_percent = 30},
    };
    int jobs = 0;
    for (size_t model = 0; model < N_MODEL; model++)
        for (int k = 0; k < 10; k++) {
            if (!is_run(model) || (!is_long() && (k + (int)model) % 4 != 0))
                continue;
            jobs++;
            config c = {.model = models[model],
                        .stages = world_size,
                        .ddp = 1,
                        .chunks = 1 + k % 2,
                        .microbatches = 5 + k % 3,
                        .batch = 2,
                        .schedule = k < 7 ? "simple" : "interleaved",
                        .optimizer = "adamw",
                        .changes = kinds[k % 5],
                        .offload_to = k % 3 == 1 ? ranks_folder : NULL};
            c.changes.seed = (uint64_t)(11 + k);
            run_config(&c);
        }
    assert_true(travelling >= jobs / 2);
}

/* Every training schedule, with one stage per rank and with two, also where stages recompute. */
static void test_job_every_schedule(void **state)
{
    (void)state;
    for (int i = 0; smp_schedules()[i]; i++)
        for (int chunks = 1; chunks <= 2; chunks++) {
            const smp_schedule_kind *kind = smp_schedules()[i];
            smp_schedule_shape shape = {
                .pipeline = world_size, .chunks = chunks, .microbatches = 5, .training = true};
            if (smp_schedule_check(kind, &shape) != SMP_OK)
                continue;
            config c = {.model = "examples/branches.yaml",
                        .stages = world_size,
                        .ddp = 1,
                        .chunks = chunks,
                        .microbatches = 5,
                        .batch = 2,
                        .schedule = kind->name,
                        .optimizer = "adamw"};
            run_config(&c);
            c.changes = (plan_changes){.seed = 3, .recompute_percent = 50};
            if (chunks == 2)
                run_config(&c);
            c.changes = (plan_changes){.seed = 3, .offload_percent = 100};
            run_config(&c);
        }
}

static void test_job_every_optimizer(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        config c = {.model = "examples/branches.yaml",
                    .stages = world_size,
                    .ddp = 1,
                    .chunks = 1,
                    .microbatches = 5,
                    .batch = 1,
                    .schedule = "1f1b",
                    .optimizer = (*o)->name};
        print_message("optimizer %s\n", c.optimizer);
        run_config(&c);
        c.changes = (plan_changes){.seed = 1, .offload_states = true};
        c.offload_to = ranks_folder;
        run_config(&c);
    }
}

static void test_job_replicas_agree(void **state)
{
    (void)state;
    if (world_size < 2)
        skip();
    for (int chunks = 1; chunks <= 2; chunks++) {
        config c = {.model = "examples/branches.yaml",
                    .stages = world_size / 2,
                    .ddp = 2,
                    .chunks = chunks,
                    .microbatches = 3,
                    .batch = 2,
                    .schedule = "interleaved",
                    .optimizer = "adamw"};
        run_config(&c);
        c.model = "examples/gpt-tiny.yaml";
        c.batch = 1;
        run_config(&c);
        c.changes = (plan_changes){1, 50, 50, 50, 20, 20, 80, 70, 1, false};
        run_config(&c);
        c.model = "tests/data/channels.yaml";
        c.batch = 2;
        run_config(&c);
    }
}

/* Evaluation: the loss of a step's batch before the step, and nothing changes. */
static void check_evaluate(plan_changes changes)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/examples/gpt-tiny.yaml", SMP_SOURCE_DIR);
    config c = {.changes = changes,
                .stages = world_size,
                .ddp = 1,
                .chunks = 2,
                .microbatches = 4,
                .batch = 2,
                .schedule = "interleaved",
                .optimizer = "adamw"};
    smp_options options = options_of(&c, path);
    smp *job = NULL;
    smp_graph *graph = NULL;
    must(smp_graph_read(path, &graph));
    open_job(&c, graph, options, &job);
    void **inputs = make_inputs(graph, smp_step_samples(job), 3);
    smp_step_result before, step, after;
    must(smp_evaluate(job, (const void *const *)inputs, &before));
    must(smp_step(job, (const void *const *)inputs, &step));
    must(smp_evaluate(job, (const void *const *)inputs, &after));
    assert_true(before.loss == step.loss); /* no dropout in this model */
    assert_true(after.loss < before.loss);
    assert_int_equal(before.step, 0);
    assert_int_equal(step.step, 1);
    free_inputs(graph, inputs);
    smp_finalize(job);
    smp_graph_destroy(graph);
}

static void test_job_evaluate(void **state)
{
    (void)state;
    check_evaluate((plan_changes){0});
    check_evaluate((plan_changes){
        .seed = 2, .recompute_percent = 100, .split_percent = 100, .soon_percent = 30});
    check_evaluate((plan_changes){.seed = 2, .offload_percent = 100});
}

/* Changes one byte in the middle of the weights. */
static void damage(const char *path)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    uint64_t head;
    assert_int_equal(fread(&head, sizeof head, 1, file), 1);
    assert_int_equal(fseek(file, (long)head + 5000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)head + 5000, SEEK_SET), 0);
    assert_true(fputc(byte ^ 1, file) != EOF);
    assert_int_equal(fclose(file), 0);
}

/* Tensors that jump over stages, more than one stage per rank: evaluation ends, and twice gives the
 * same. */
static void test_job_evaluate_skips(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof(path), "%s/examples/branches.yaml", SMP_SOURCE_DIR);
    for (int k = 1; k <= 5; k++) {
        config c = {.stages = world_size,
                    .ddp = 1,
                    .chunks = k <= 3 ? k : k - 3,
                    .microbatches = 3,
                    .batch = 8,
                    .schedule = k <= 3 ? "interleaved" : "zero-bubble",
                    .optimizer = "adamw"};
        smp_options options = options_of(&c, path);
        options.runtime.timeout_s = 10;
        smp *job = NULL;
        smp_graph *graph = NULL;
        must(smp_graph_read(path, &graph));
        must(smp_init(&job, &options));
        void **inputs = make_inputs(graph, smp_step_samples(job), 5);
        smp_step_result first, second;
        must(smp_evaluate(job, (const void *const *)inputs, &first));
        must(smp_evaluate(job, (const void *const *)inputs, &second));
        assert_true(first.loss > 0 && first.loss == second.loss);
        free_inputs(graph, inputs);
        smp_finalize(job);
        smp_graph_destroy(graph);
    }
}

/* Two steps, save, two steps; load, the same two steps: the same losses. */
static void test_job_checkpoint(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof(path), "%s/examples/branches.yaml", SMP_SOURCE_DIR);
    config c = {.stages = world_size,
                .ddp = 1,
                .chunks = 1,
                .microbatches = 4,
                .batch = 2,
                .schedule = "interleaved",
                .optimizer = "adamw"};
    smp_options options = options_of(&c, path);
    smp *job = NULL;
    smp_graph *graph = NULL;
    must(smp_graph_read(path, &graph));
    must(smp_init(&job, &options));
    assert_int_equal(smp_load(job, ranks_folder), SMP_ERR_INPUT); /* empty */
    double losses[4];
    for (int pass = 0; pass < 2; pass++)
        for (int step = 2 * pass; step < 4; step++) {
            void **inputs = make_inputs(graph, smp_step_samples(job), (uint64_t)step);
            smp_step_result result;
            if (pass == 1 && step == 2)
                must(smp_load(job, ranks_folder));
            must(smp_step(job, (const void *const *)inputs, &result));
            assert_int_equal(result.step, step + 1);
            if (pass == 1)
                assert_true(result.loss == losses[step]);
            losses[step] = result.loss;
            if (step == 1)
                must(smp_save(job, ranks_folder));
            free_inputs(graph, inputs);
        }
    char file[128];
    snprintf(file, sizeof(file), "%s/checkpoint-0000000002.smp", ranks_folder);
    if (world_rank == 0)
        damage(file);
    MPI_Barrier(MPI_COMM_WORLD);
    assert_int_equal(smp_load(job, ranks_folder), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "damaged"));
    assert_int_equal(smp_save(job, ranks_folder), SMP_ERR_FAILED); /* some weights are the file's */
    smp_finalize(job);
    smp_graph_destroy(graph);
    if (world_rank == 0)
        assert_int_equal(unlink(file), 0);
}

static smp *open_plain(void)
{
    config c = {.stages = world_size,
                .ddp = 1,
                .chunks = 1,
                .microbatches = 1,
                .batch = 1,
                .schedule = "simple",
                .optimizer = "adamw"};
    smp_options options = options_of(&c, SMP_SOURCE_DIR "/examples/gpt-tiny.yaml");
    options.runtime.record_trace = 1;
    smp *job = NULL;
    must(smp_init(&job, &options));
    return job;
}

static void test_job_weights_by_name(void **state)
{
    (void)state;
    smp *job = open_plain();
    int64_t n = smp_weight_elements(job, 0);
    float *a = malloc((size_t)n * 4), *b = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        a[i] = (float)i;
    must(smp_weight_set(job, smp_weight_name(job, 0), a, n));
    must(smp_weight_get(job, smp_weight_name(job, 0), b, n));
    assert_memory_equal(a, b, (size_t)n * 4);
    assert_int_equal(smp_weight_get(job, "no.such", b, n), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "no.such"));
    assert_int_equal(smp_weight_get(job, smp_weight_name(job, 0), b, n + 1), SMP_ERR_INPUT);
    assert_int_equal(smp_size(job, SMP_WORLD), world_size);
    assert_int_equal(smp_size(job, SMP_PIPELINE), world_size);
    assert_int_equal(smp_size(job, SMP_DDP), 1);
    assert_string_equal(smp_input_name(job, 0), "tokens");
    assert_int_equal(smp_input_is_int(job, 0), 1);
    assert_null(smp_input_name(job, 99));
    free(a);
    free(b);
    smp_finalize(job);
}

/* Lengths travel as ints. One rank has more actions than fit into one: all say so. */
static void test_job_trace_too_long(void **state)
{
    (void)state;
    smp *job = open_plain();
    job->record->ended = true;
    if (world_rank == world_size - 1)
        job->record->n_event = INT_MAX / (int64_t)sizeof(smp_trace_event) + 1;
    assert_int_equal(smp_trace_write(job, "/dev/null"), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "bytes: expected at most 2147483647"));
    job->record->n_event = 0;
    smp_finalize(job);
}

/* What a program may ask: of the plan, and whether all ranks are well. */
static void test_job_tells_what_it_is(void **state)
{
    (void)state;
    smp_job_description about;
    smp_prediction predicted;
    uint64_t hash = 0, others = 0;
    smp *job = open_plain();
    smp_job_describe(job, &about);
    smp_plan_prediction(job, &predicted);
    assert_true(about.trains && about.has_loss && !about.scales_loss);
    assert_int_equal(about.global_batch, smp_step_samples(job) * smp_size(job, SMP_DDP));
    assert_string_equal(about.model, job->plan->model_path);
    assert_true(predicted.step_us == job->plan->predicted.step_us && predicted.step_us > 0.0);
    assert_int_equal(predicted.peak_bytes, job->memory->arena_bytes);
    assert_int_equal(smp_steps_done(job), 0);
    must(smp_weights_hash(job, &hash));
    others = hash;
    must(smp_broadcast(job, SMP_WORLD, 0, &others, sizeof others));
    assert_true(hash == others && hash != 0);
    must(smp_replicas_check(job));
    must(smp_agree(job, SMP_OK));
    const int last = world_size - 1;
    const smp_status own = world_rank == last ? smp_fail(SMP_ERR_NO_FIT, "too much of it") : SMP_OK;
    assert_int_equal(smp_agree(job, own), SMP_ERR_NO_FIT);
    assert_non_null(strstr(smp_last_error(), "too much of it"));
    smp_finalize(job);
    assert_int_equal(smp_agree(NULL, SMP_OK), SMP_ERR_INPUT);
    assert_int_equal(smp_weights_hash(NULL, &hash), SMP_ERR_INPUT);
    assert_int_equal(smp_replicas_check(NULL), SMP_ERR_INPUT);
}

static void test_job_refuses_bad_options(void **state)
{
    (void)state;
    smp *job = NULL;
    smp_options options = smp_options_default();
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT); /* neither plan nor model */
    assert_int_equal(smp_init(&job, &(smp_options){.plan = "plan.yaml"}), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "begin with smp_options_default()"));
    options.plan = "/no/such/plan.yaml";
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "/no/such/plan.yaml"));
    options.optimizer.name = "adam";
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "adam"));
    assert_null(job);
}

int main(int argc, char **argv)
{
    open_ranks(&argc, &argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_bits_equal_sequential),
        cmocka_unit_test(test_job_recompute_and_split),
        cmocka_unit_test(test_job_offload),
        cmocka_unit_test(test_job_every_schedule),
        cmocka_unit_test(test_job_every_optimizer),
        cmocka_unit_test(test_job_replicas_agree),
        cmocka_unit_test(test_job_evaluate),
        cmocka_unit_test(test_job_evaluate_skips),
        cmocka_unit_test(test_job_checkpoint),
        cmocka_unit_test(test_job_weights_by_name),
        cmocka_unit_test(test_job_trace_too_long),
        cmocka_unit_test(test_job_tells_what_it_is),
        cmocka_unit_test(test_job_refuses_bad_options),
    };
    return close_ranks(cmocka_run_group_tests(tests, NULL, NULL));
}
