/* Weights, checkpoints and exports of jobs whose operators are split at random over groups of
 * devices: for the same values the bytes are the same however they lie, whatever one job saved any
 * other loads, and a rank that fails is heard by all. Run on four ranks. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "tests/bad_calls.h"

#include <inttypes.h>

#include "exec/state/shards.h"
#include "tests/case_count.h"
#include "tests/graph/split/whole_index.h"
#include "tests/mpi/split_job.h"

enum { FEATURES = 96, HEADER = 4096 };

/* Weights of up to seven pieces, whose parts begin and end within one. */
static const char model[] =
    "smp: 1\n"
    "name: split\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [96]}\n"
    "  wanted: {dtype: float32, shape: [96]}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: h1, features: 624}\n"
    "  - {op: gelu, name: act, in: h1, out: h1}\n"
    "  - {op: linear, name: b, in: h1, out: h2, features: 192}\n"
    "  - {op: layernorm, name: norm, in: h2, out: h2}\n"
    "  - {op: linear, name: c, in: h2, out: h3, features: 408}\n"
    "  - {op: linear, name: d, in: h3, out: h4, features: 96, bias: false}\n"
    "  - {op: linear, name: e, in: h4, out: y, features: 96}\n"
    "  - {op: mse, name: loss, in: [y, wanted], out: loss}\n"
    "loss: loss\n";

/* Of several windows for each rank. */
static const char large_model[] = "smp: 1\n"
                                  "name: large\n"
                                  "inputs:\n"
                                  "  x: {dtype: float32, shape: [1200]}\n"
                                  "  wanted: {dtype: float32, shape: [12]}\n"
                                  "ops:\n"
                                  "  - {op: linear, name: a, in: x, out: h, features: 4200}\n"
                                  "  - {op: linear, name: b, in: h, out: y, features: 12}\n"
                                  "  - {op: mse, name: loss, in: [y, wanted], out: loss}\n"
                                  "loss: loss\n";

static const way ways[] = {
    {1, 2, 2, 1, 1, SMP_SHARD_OPTIMIZER}, /* the first is what all others are held against */
    {1, 4, 1, 1, 1, SMP_SHARD_OPTIMIZER}, {1, 1, 4, 1, 4, SMP_SHARD_WEIGHTS},
    {1, 1, 4, 1, 2, SMP_SHARD_OPTIMIZER}, {2, 2, 1, 1, 1, SMP_SHARD_OPTIMIZER},
    {2, 2, 1, 2, 1, SMP_SHARD_OPTIMIZER}, {2, 1, 2, 1, 1, SMP_SHARD_OPTIMIZER},
    {2, 1, 2, 1, 2, SMP_SHARD_OPTIMIZER}, {2, 1, 2, 1, 2, SMP_SHARD_GRADIENTS},
    {2, 1, 2, 1, 2, SMP_SHARD_WEIGHTS},   {4, 1, 1, 1, 1, SMP_SHARD_OPTIMIZER},
};
enum { WAYS = sizeof ways / sizeof ways[0], SEEDS = 2 };

static const way pair = {2, 2, 1, 1, 1, SMP_SHARD_OPTIMIZER};
static const way pair_in_shards = {2, 1, 2, 1, 2, SMP_SHARD_WEIGHTS};

static char saved[96], exported[96];

static const char *file_of(int64_t number)
{
    static char name[2][160];
    static int turn;
    turn = !turn;
    snprintf(name[turn], sizeof name[turn], "%s/checkpoint-%010" PRId64 ".smp", saved, number);
    return name[turn];
}

static void set_names(void)
{
    snprintf(saved, sizeof saved, "%s/saved", ranks_folder);
    snprintf(exported, sizeof exported, "%s/weights.safetensors", ranks_folder);
}

static void remove_saved(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    for (int64_t s = 0; world_rank == 0 && s < 8; s++)
        unlink(file_of(s));
    char lock[160]; /* of a job that is still open */
    snprintf(lock, sizeof lock, "%s/.lock", saved);
    if (world_rank == 0) {
        unlink(lock);
        assert_int_equal(rmdir(saved), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* On every rank, as rank 0 sees it. */
static char *read_whole(const char *path, size_t *bytes)
{
    char *data = NULL;
    MPI_Barrier(MPI_COMM_WORLD);
    must(smp_file_read(path, (size_t)1 << 30, &data, bytes));
    MPI_Barrier(MPI_COMM_WORLD);
    return data;
}

/* Array k (0: the values) of a weight at a place of the whole. */
static float value_at(uint64_t key, int64_t place)
{
    return (float)(smp_random_mix(key + (uint64_t)place) >> 40) * 0x1p-24f - 0.5f;
}

static uint64_t key_of(const char *name, int k)
{
    return smp_hash((uint64_t)k, name, strlen(name));
}

static smp__range range_here(const smp *job, int32_t index, int k)
{
    const smp_param *p = &job->graph->param[job->memory->param[index].param];
    return k == 0 && !smp__weights_in_parts(job) ? (smp__range){0, p->elements}
                                                 : smp__own_range(job, index);
}

/* All that is here, by the plainest map of indices; shift 0: to what value_at says. */
static void fill(smp *job, float shift)
{
    for (int32_t i = 0; i < job->memory->n_param; i++) {
        const smp_param *p = &job->graph->param[job->memory->param[i].param];
        for (int k = 0; k <= smp__job_states(job); k++) {
            const smp__range here = range_here(job, i, k);
            const uint64_t key = key_of(p->name, k);
            for (int64_t e = here.begin; e < here.end; e++)
                *(float *)smp__saved_at(job, i, k, e) =
                    value_at(key, whole_index(&p->shape, p->part, e)) + shift;
        }
    }
}

static void expect_values(const smp *job, const char *what)
{
    for (int32_t i = 0; i < job->memory->n_param; i++) {
        const smp_param *p = &job->graph->param[job->memory->param[i].param];
        for (int k = 0; k <= smp__job_states(job); k++) {
            const smp__range here = range_here(job, i, k);
            const uint64_t key = key_of(p->name, k);
            for (int64_t e = here.begin; e < here.end; e++)
                if (*(float *)smp__saved_at(job, i, k, e) !=
                    value_at(key, whole_index(&p->shape, p->part, e)))
                    fail_msg("rank %d, %s: %s, array %d, element %lld of its part", world_rank,
                             what, p->name, k, (long long)e);
        }
    }
}

/* How many weights lie in parts: a test of none would prove nothing. */
static int count_split(const smp *job)
{
    int n = 0;
    for (int32_t i = 0; i < job->graph->n_param; i++)
        n += job->graph->param[i].part.spread.way == SMP_SPLIT;
    return n;
}

/* Bytes of the first way's files. */
static struct {
    char *checkpoint, *weights;
    size_t checkpoint_bytes, weights_bytes;
    uint64_t hash;
} first;

static void expect_bytes(const char *path, const char *wanted, size_t bytes, const char *what)
{
    size_t n = 0;
    char *data = read_whole(path, &n);
    assert_int_equal(n, bytes);
    for (size_t i = 0; i < n; i++)
        if (data[i] != wanted[i])
            fail_msg("%s: byte %zu of %zu differs", what, i, n);
    free(data);
}

/* The first file of the directory is that of the first way. */
static void put_first(void)
{
    if (world_rank == 0) {
        FILE *file = fopen(file_of(0), "r+b");
        assert_non_null(file);
        assert_int_equal(fwrite(first.checkpoint, 1, first.checkpoint_bytes, file),
                         first.checkpoint_bytes);
        assert_int_equal(fclose(file), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void save(smp *job, bool behind)
{
    int done = 0;
    if (!behind)
        must(smp_save(job, saved));
    else
        must(smp_save_begin(job, saved));
    while (behind && !done)
        must(smp_save_test(job, &done));
}

static void check_files(smp *job, const char *what)
{
    fill(job, 0);
    uint64_t hash = weights_hash(job);
    must(smp_export_weights(job, exported));
    for (int behind = 0; behind < 2; behind++) {
        save(job, behind);
        if (!first.checkpoint) {
            first.hash = hash;
            first.checkpoint = read_whole(file_of(0), &first.checkpoint_bytes);
            first.weights = read_whole(exported, &first.weights_bytes);
        }
        expect_bytes(file_of(0), first.checkpoint, first.checkpoint_bytes, what);
        if (behind == 0)
            remove_saved();
    }
    expect_bytes(exported, first.weights, first.weights_bytes, what);
    assert_true(hash == first.hash);
    put_first();
    fill(job, 1);
    assert_true(weights_hash(job) != first.hash);
    must(smp_load(job, saved));
    assert_string_equal(smp_load_note(job), "");
    expect_values(job, what);
    assert_true(weights_hash(job) == first.hash);
    remove_saved();
}

/* Names, sizes and values are the model's. */
static void check_weights(smp *job, const char *what)
{
    const smp_graph *whole = smp_graph_whole(job->graph);
    assert_int_equal(smp_weight_count(job), whole->n_param);
    fill(job, 1);
    for (int i = 0; i < smp_weight_count(job); i++) {
        const char *name = smp_weight_name(job, i);
        const int64_t n = smp_weight_elements(job, i);
        const uint64_t key = key_of(name, 0);
        float *values = malloc((size_t)n * sizeof *values);
        assert_string_equal(name, whole->param[i].name);
        assert_int_equal(n, whole->param[i].elements);
        assert_int_equal(smp_weight_get(job, name, values, n - 1), SMP_ERR_INPUT);
        must(smp_weight_get(job, name, values, n));
        for (int64_t e = 0; e < n; e++)
            assert_true(values[e] == value_at(key, e) + 1);
        for (int64_t e = 0; e < n; e++)
            values[e] = value_at(key, e);
        must(smp_weight_set(job, name, values, n));
        for (int64_t e = 0; e < n; e++)
            values[e] = 0;
        must(smp_weight_get(job, name, values, n));
        for (int64_t e = 0; e < n; e++)
            if (values[e] != value_at(key, e))
                fail_msg("%s: %s at %lld", what, name, (long long)e);
        free(values);
    }
    assert_true(weights_hash(job) == first.hash);
}

static void check_way(const char *path, way w, uint64_t seed, int *split)
{
    char what[96];
    smp *job = open_way(path, w, seed);
    snprintf(what, sizeof what, "tensor %d, stages %d, ddp %d, chunks %d, shard %d, seed %d",
             w.tensor, w.stages, w.ddp, w.chunks, w.shard, (int)seed);
    *split += count_split(job);
    check_files(job, what);
    check_weights(job, what);
    smp_finalize(job);
}

static void forget_first(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(exported);
    free(first.checkpoint);
    free(first.weights);
    first.checkpoint = first.weights = NULL;
}

static void test_split_every_way(void **state)
{
    (void)state;
    const char *path = model_path(model);
    int split = 0;
    for (int w = 0; w < WAYS; w++)
        for (uint64_t seed = 1; seed <= (ways[w].tensor > 1 ? SEEDS : 1); seed++)
            check_way(path, ways[w], seed, &split);
    assert_true(split >= 30);
    forget_first();
}

static void test_split_large(void **state)
{
    static const way large[] = {{1, 2, 2, 1, 1, SMP_SHARD_OPTIMIZER},
                                {2, 1, 2, 1, 2, SMP_SHARD_WEIGHTS},
                                {4, 1, 1, 1, 1, SMP_SHARD_OPTIMIZER}};
    (void)state;
    const char *path = model_path(large_model);
    int split = 0;
    for (int w = 0; w < 3; w++) /* nothing is split with T = 1, whatever the seed */
        for (uint64_t seed = is_long() || w == 0 ? 1 : 2; seed <= (uint64_t)(w > 0) + 1; seed++)
            check_way(path, large[w], seed, &split);
    assert_true(split >= (is_long() ? 4 : 2));
    forget_first();
}

static double step(smp *job)
{
    enum { SAMPLES = 4 };
    static float x[SAMPLES * FEATURES], wanted[SAMPLES * FEATURES];
    smp_step_result result;
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        x[i] = (float)(7 * i % 11) / 5.0f - 1.0f;
        wanted[i] = (float)(5 * i % 13) / 6.0f - 1.0f;
    }
    const int64_t at = smp_samples_before(job) * FEATURES;
    const void *inputs[] = {x + at, wanted + at};
    must(smp_step(job, inputs, &result));
    return result.loss;
}

/* Training goes on to the bit, and to about the same after a change of the way. */
static void test_split_training_goes_on(void **state)
{
    (void)state;
    const char *path = model_path(model);
    const way from[] = {pair, pair_in_shards, ways[WAYS - 1]};
    for (int i = 0; i < 3; i++) {
        double losses[4];
        smp *job = open_way(path, from[i], 2);
        step(job);
        must(smp_save_begin(job, saved));
        for (int s = 0; s < 4; s++)
            losses[s] = step(job);
        assert_true(losses[0] != losses[1]);
        must(smp_save_wait(job));
        for (int again = 0; again < 2; again++) {
            must(smp_load(job, saved));
            for (int s = 0; s < 4; s++)
                assert_true(step(job) == losses[s]);
        }
        smp_finalize(job);
        job = open_way(path, ways[i], 1);
        must(smp_load(job, saved));
        for (int s = 0; s < 4; s++)
            assert_true(fabs(step(job) - losses[s]) < 1e-4 * losses[s]);
        smp_finalize(job);
        remove_saved();
    }
}

static void flip(const char *path, int64_t at)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0) {
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        int byte = fgetc(file) ^ 4;
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        fputc(byte, file);
        assert_int_equal(fclose(file), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* One bit anywhere: the one before is taken, by all ranks, with all of its values. */
static void test_split_damage(void **state)
{
    (void)state;
    const char *path = model_path(model);
    const int64_t stride = few_or_many(499979, 99991);
    for (int way_at = 0; way_at < 2; way_at++) {
        smp *job = open_way(path, way_at == 0 ? pair : pair_in_shards, 3);
        assert_true(count_split(job) > 0);
        fill(job, 0);
        must(smp_save(job, saved));
        job->step = 1;
        fill(job, 1);
        must(smp_save(job, saved));
        size_t bytes;
        char *content = read_whole(file_of(1), &bytes);
        uint64_t head;
        memcpy(&head, content, sizeof head);
        free(content);
        for (int64_t at = (int64_t)(8 + head) + HEADER; at < (int64_t)bytes; at += stride) {
            flip(file_of(1), at);
            must(smp_load(job, saved));
            assert_int_equal(job->step, 0);
            assert_non_null(strstr(smp_load_note(job), "' is damaged; took the one before"));
            expect_values(job, "damage");
            flip(file_of(1), at);
        }
        must(smp_load(job, saved));
        assert_int_equal(job->step, 1);
        smp_finalize(job);
        remove_saved();
    }
}

/* A rank that cannot read or write, whichever it is: all are told, none waits for it. */
static void test_split_one_rank_fails(void **state)
{
    (void)state;
    const char *path = model_path(model);
    for (int rank = 0; rank < SPLIT_RANKS; rank++) {
        smp *job = open_way(path, rank % 2 ? pair : pair_in_shards, 1);
        fill(job, 0);
        must(smp_save(job, saved));
        job->step = 1;
        bad_rule.end = ".part";
        bad_rule.after = 1;
        bad_rule.error = ENOSPC;
        bad_rule.call = world_rank == rank ? BAD_PWRITE : BAD_NONE;
        assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), "cannot write: No space left on device"));
        bad_rule.end = ".smp";
        bad_rule.after = 3;
        bad_rule.error = EIO;
        bad_rule.call = world_rank == rank ? BAD_PREAD : BAD_NONE;
        assert_int_equal(smp_load(job, saved), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), "cannot read: Input/output error"));
        bad_rule.call = BAD_NONE;
        smp_finalize(job);
        remove_saved();
    }
}

/* A value, or a state, of the part of the last rank that is not finite. */
static void test_split_not_finite(void **state)
{
    (void)state;
    int n = 0;
    smp *job = open_way(model_path(model), ways[WAYS - 1], 1);
    for (int32_t i = 0; i < job->memory->n_param; i++) {
        const smp_param *p = &job->graph->param[job->memory->param[i].param];
        for (int k = 0; k < 2 && p->part.spread.way == SMP_SPLIT; k++, n++) {
            float *value = smp__saved_at(job, i, k, p->elements / 2), before = *value;
            if (world_rank == SPLIT_RANKS - 1)
                *value = NAN;
            assert_int_equal(smp_save(job, saved), SMP_ERR_FAILED);
            assert_non_null(strstr(smp_last_error(), p->name));
            assert_non_null(strstr(smp_last_error(), "not finite"));
            *value = before;
        }
    }
    assert_true(n > 0);
    smp_finalize(job);
}

/* What all devices of a group have is the same on all of them. */
static void test_split_copies_differ(void **state)
{
    (void)state;
    smp *job = open_way(model_path(model), ways[WAYS - 1], 1);
    uint64_t hash;
    int n = 0;
    for (int32_t i = 0; i < job->memory->n_param; i++) {
        const smp_param *p = &job->graph->param[job->memory->param[i].param];
        float *value = smp__saved_at(job, i, 0, p->elements - 1), before = *value;
        if (p->part.spread.way == SMP_SPLIT)
            continue;
        n++;
        if (world_rank == 2)
            *value = nextafterf(before, 2);
        assert_int_equal(smp_weights_hash(job, &hash), SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), p->name));
        assert_non_null(strstr(smp_last_error(), "rank 2: "));
        *value = before;
    }
    assert_true(n > 0);
    must(smp_weights_hash(job, &hash));
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_every_way),        cmocka_unit_test(test_split_large),
        cmocka_unit_test(test_split_training_goes_on), cmocka_unit_test(test_split_damage),
        cmocka_unit_test(test_split_one_rank_fails),   cmocka_unit_test(test_split_not_finite),
        cmocka_unit_test(test_split_copies_differ),
    };
    open_ranks(&argc, &argv);
    set_names();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(model_file);
    return close_ranks(failed);
}
