/* What smp_export_weights writes, byte by byte: header and values beside those of smp_weight_get,
 * for every kind of split; and what it leaves where it cannot write. On four ranks. */
#include <dirent.h>

#include "tests/mpi/ranks.h"

/* A name with signs in it, a weight of several pieces (one not full), a tied one, statistics. */
static const char model[] =
    "smp: 1\nname: exported\n"
    "inputs:\n"
    "  x: {dtype: float32, shape: [600]}\n"
    "  goal: {dtype: float32, shape: [600]}\n"
    "ops:\n"
    "  - {op: linear, name: \"a/b:1-c\", in: x, out: y, features: 600}\n"
    "  - {op: batchnorm, name: norm, in: y, out: y}\n"
    "  - {op: linear, name: wide, in: y, out: z, features: 1100}\n"
    "  - {op: gelu, name: bend, in: z, out: z}\n"
    "  - {op: linear, name: narrow, in: z, out: z, features: 600}\n"
    "  - {op: linear, name: last, in: z, out: z, features: 600, bias: false,\n"
    "     weight: \"a/b:1-c.weight\"}\n"
    "  - {op: mse, name: loss, in: [z, goal], out: loss}\n"
    "loss: loss\n";

static const char *const entries[] = {
    "{\"__metadata__\":{\"format\":\"pt\"}",
    "\"a/b:1-c.weight\":{\"dtype\":\"F32\",\"shape\":[600,600],"
    "\"data_offsets\":[0,1440000]}",
    "\"a/b:1-c.bias\":{\"dtype\":\"F32\",\"shape\":[600],"
    "\"data_offsets\":[1440000,1442400]}",
    "\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[600],\"data_offsets\":[1442400,1444800]}",
    "\"norm.bias\":{\"dtype\":\"F32\",\"shape\":[600],\"data_offsets\":[1444800,1447200]}",
    "\"norm.running_mean\":{\"dtype\":\"F32\",\"shape\":[600],\"data_offsets\":[1447200,1449600]}",
    "\"norm.running_var\":{\"dtype\":\"F32\",\"shape\":[600],\"data_offsets\":[1449600,1452000]}",
    "\"wide.weight\":{\"dtype\":\"F32\",\"shape\":[1100,600],\"data_offsets\":[1452000,4092000]}",
    "\"wide.bias\":{\"dtype\":\"F32\",\"shape\":[1100],\"data_offsets\":[4092000,4096400]}",
    "\"narrow.weight\":{\"dtype\":\"F32\",\"shape\":[600,1100],\"data_offsets\":[4096400,6736400]}",
    "\"narrow.bias\":{\"dtype\":\"F32\",\"shape\":[600],\"data_offsets\":[6736400,6738800]}}"};
enum { N_ENTRY = sizeof entries / sizeof entries[0], MOST = 1100 * 600 };

static const cut cuts[] = {{4, 1, 2, 1, 1}, {2, 2, 2, 1, 1}, {1, 4, 1, 1, 1}, {2, 2, 2, 1, 2}};

static float values[MOST], got[MOST];

static smp *start(cut c)
{
    smp_options options = options_of(model_path(model), c);
    return open_job(&options);
}

/* The same on every rank, and other values in every weight. */
static void set_values(smp *job)
{
    for (int w = 0; w < smp_weight_count(job); w++) {
        const int64_t n = smp_weight_elements(job, w);
        for (int64_t i = 0; i < n; i++)
            values[i] = (float)(i + 1) * (float)(w + 1);
        must(smp_weight_set(job, smp_weight_name(job, w), values, n));
    }
}

static char *exported(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", ranks_folder, name);
    return path;
}

static void check_header(FILE *file)
{
    char want[2048] = "", header[2048];
    uint8_t length[8];
    for (int i = 0; i < N_ENTRY; i++)
        strcat(strcat(want, i > 0 ? "," : ""), entries[i]);
    while (strlen(want) % 8 != 0)
        strcat(want, " ");
    assert_int_equal(fread(length, 1, 8, file), 8);
    assert_int_equal(length[0] + 256 * length[1], strlen(want));
    for (int i = 2; i < 8; i++)
        assert_int_equal(length[i], 0);
    assert_int_equal(fread(header, 1, strlen(want), file), strlen(want));
    assert_memory_equal(header, want, strlen(want));
}

static void check_values(smp *job, FILE *file)
{
    for (int w = 0; w < smp_weight_count(job); w++) {
        const int64_t n = smp_weight_elements(job, w);
        must(smp_weight_get(job, smp_weight_name(job, w), values, n));
        if (!file)
            continue;
        assert_int_equal(fread(got, 4, (size_t)n, file), n);
        assert_memory_equal(got, values, (size_t)n * 4);
    }
}

static void test_exported_weights_are_those_of_the_job(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        smp *job = start(cuts[i]);
        const char *path = exported("weights.safetensors");
        for (int set = 0; set < 2; set++) {
            if (set)
                set_values(job);
            must(smp_export_weights(job, path)); /* the second time over a file that is there */
            FILE *file = world_rank == 0 ? fopen(path, "rb") : NULL;
            assert_true(file || world_rank != 0);
            if (file)
                check_header(file);
            check_values(job, file);
            if (file) {
                assert_int_equal(fgetc(file), EOF);
                fclose(file);
            }
        }
        if (world_rank == 0)
            assert_int_equal(unlink(path), 0);
        smp_finalize(job);
    }
}

static int count_files(const char *beginning)
{
    int n = 0;
    DIR *dir = opendir(ranks_folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += strncmp(e->d_name, beginning, strlen(beginning)) == 0;
    closedir(dir);
    return n;
}

static void expect_failure(smp *job, const char *path, const char *reason)
{
    assert_int_equal(smp_export_weights(job, path), SMP_ERR_FAILED);
    if (!strstr(smp_last_error(), path) || !strstr(smp_last_error(), reason))
        fail_msg("'%s', expected '%s' and '%s'", smp_last_error(), path, reason);
}

/* All ranks say the same, and the job goes on. */
static void test_exported_weights_that_cannot_be_written(void **state)
{
    (void)state;
    smp *job = start(cuts[1]);
    assert_int_equal(smp_export_weights(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_export_weights(NULL, "/dev/null"), SMP_ERR_INPUT);
    expect_failure(job, exported("absent/weights.safetensors"), "cannot create: No such file");
    expect_failure(job, ranks_folder, "it is a directory");
    expect_failure(job, "/dev/full", "cannot write: No space left on device");
    must(smp_export_weights(job, exported("weights.safetensors")));
    MPI_Barrier(MPI_COMM_WORLD);
    assert_int_equal(count_files("weights"), 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(exported("weights.safetensors"));
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exported_weights_are_those_of_the_job),
        cmocka_unit_test(test_exported_weights_that_cannot_be_written),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
