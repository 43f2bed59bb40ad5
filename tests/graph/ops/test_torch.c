/* Operators against values that PyTorch computed: tests/data/torch_values.txt, whose format
 * make_torch_values.py beside it describes. */
#include "tests/graph/ops/op_harness.h"

enum { MAX_SEEN = 128 };

static char seen[MAX_SEEN][32]; /* kinds met in the file */
static int n_seen;

static void expect_word(FILE *file, const char *word)
{
    char got[32] = "";
    if (fscanf(file, "%31s", got) != 1 || strcmp(got, word) != 0)
        fail_msg("torch_values.txt: got '%s', expected '%s'", got, word);
}

static long long read_number(FILE *file)
{
    long long number = 0;
    assert_int_equal(fscanf(file, "%lld", &number), 1);
    return number;
}

static double read_value(FILE *file)
{
    double value = 0;
    assert_int_equal(fscanf(file, "%lf", &value), 1);
    return value;
}

/* "<key> <index> <count>", and the count must be that of the buffer. */
static void expect_header(FILE *file, const char *key, int index, const buffer *b)
{
    expect_word(file, key);
    assert_int_equal(read_number(file), index);
    assert_int_equal(read_number(file), b->bytes / 4);
}

static void read_buffer(FILE *file, const char *key, int index, buffer *b, bool is_float)
{
    expect_header(file, key, index, b);
    for (size_t i = 0; i < b->bytes / 4; i++) {
        double value = read_value(file);
        if (is_float)
            ((float *)b->data)[i] = (float)value;
        else
            ((int32_t *)b->data)[i] = (int32_t)value;
    }
}

static void compare_buffer(FILE *file, const char *name, const char *key, int index,
                           const buffer *b)
{
    const float *got = b->data;
    double want[1024], scale = 1e-3;
    size_t n = b->bytes / 4;
    assert_true(n <= sizeof want / sizeof *want);
    expect_header(file, key, index, b);
    for (size_t i = 0; i < n; i++) {
        want[i] = read_value(file);
        scale = fmax(scale, fabs(want[i]));
    }
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-5 * scale))
            fail_msg("%s: %s %d [%zu] is %.9g, PyTorch has %.9g", name, key, index, i,
                     (double)got[i], want[i]);
}

static void read_yaml(FILE *file, char *yaml, size_t size)
{
    int lines = (int)read_number(file);
    size_t used = 0;
    assert_int_equal(fgetc(file), '\n');
    for (int i = 0; i < lines; i++) {
        assert_non_null(fgets(yaml + used, (int)(size - used), file));
        used += strlen(yaml + used);
    }
}

static void check_microbatch(FILE *file, const char *name, op_run *run, bool first)
{
    for (int i = 0; i < run->op->n_in; i++)
        read_buffer(file, "in", i, &run->in[i], op_run_in_is_float(run, i));
    for (int i = 0; first && i < run->op->n_param; i++) {
        read_buffer(file, "param", i, &run->param[i], true);
        memset(run->dparam[i].data, 0, run->dparam[i].bytes);
    }
    assert_int_equal(op_run_forward(run), SMP_OK);
    compare_buffer(file, name, "out", 0, &run->out);
    read_buffer(file, "dout", 0, &run->dout, true);
    op_run_backward_input(run, ~0u);
    op_run_backward_weight(run);
    for (int i = 0; i < run->op->n_in; i++)
        if (run->din[i].data)
            compare_buffer(file, name, "din", i, &run->din[i]);
}

static void check_case(FILE *file, const char *name, char *yaml, int64_t batch,
                       int64_t microbatches)
{
    op_run run;
    op_run_open(&run, yaml, "op", batch, 0);
    for (int64_t mb = 0; mb < microbatches; mb++) {
        run.step.following = microbatches - 1 - mb;
        check_microbatch(file, name, &run, mb == 0);
    }
    for (int i = 0; i < run.op->n_param; i++)
        compare_buffer(file, name, "dparam", i, &run.dparam[i]);
    expect_word(file, "end");
    assert_true(n_seen < MAX_SEEN);
    snprintf(seen[n_seen++], sizeof seen[0], "%s", run.op->kind->name);
    op_run_close(&run);
}

static void test_torch_values_agree(void **state)
{
    char name[64], yaml[4096];
    FILE *file = fopen(SMP_SOURCE_DIR "/tests/data/torch_values.txt", "r");
    (void)state;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
    while (fscanf(file, " case %63s", name) == 1) {
        expect_word(file, "batch");
        int64_t batch = read_number(file);
        long long microbatches = 1;
        (void)!fscanf(file, " microbatches %lld", &microbatches);
        expect_word(file, "yaml");
        read_yaml(file, yaml, sizeof yaml);
        check_case(file, name, yaml, batch, microbatches);
    }
    assert_true(feof(file));
    fclose(file);
}

/* Said, not refused: dropout's random numbers are our own, and not everything is PyTorch's. */
static void test_torch_values_missing(void **state)
{
    (void)state;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        bool found = !(*kind)->cpu.forward;
        for (int i = 0; i < n_seen; i++)
            found |= strcmp(seen[i], (*kind)->name) == 0;
        if (!found)
            print_message("no values of PyTorch's for operator '%s'\n", (*kind)->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_values_agree),
        cmocka_unit_test(test_torch_values_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
