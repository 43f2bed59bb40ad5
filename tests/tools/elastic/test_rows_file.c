/* Rows of steps, once each, whoever dies: what is printed of the file that rank 0 writes to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/elastic/output/rows_file.h"

static char folder[256], path[300], printed[300];

/* What a rank would append. */
static void append(const char *text)
{
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static smp_status read_printing(smp__rows *rows)
{
    FILE *file = fopen(printed, "a");
    const int before = dup(STDOUT_FILENO);
    assert_non_null(file);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    const smp_status status = smp__rows_read(rows);
    dup2(before, STDOUT_FILENO);
    close(before);
    fclose(file);
    return status;
}

static void expect_printed(const char *text)
{
    char *got = NULL;
    size_t bytes;
    assert_int_equal(smp_file_read(printed, 1 << 20, &got, &bytes), SMP_OK);
    assert_string_equal(got, text);
    free(got);
}

static void open_rows(smp__rows *rows, const char *job, int64_t before)
{
    assert_int_equal(smp__rows_open(path, rows), SMP_OK);
    assert_int_equal(smp__rows_take(rows, job, before), SMP_OK);
    assert_int_equal(smp__rows_begin(rows), SMP_OK);
}

static int begin(void **state)
{
    (void)state;
    remove(path);
    FILE *file = fopen(printed, "w");
    return !file || fclose(file) != 0;
}

static const char job[] = "0123456789abcdef", other_job[] = "fedcba9876543210";

static void test_rows_stand_once(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("# step 1 3ff0000000000000\nstep 1  loss 1.0000\n# step 2 4000000000000000\nstep 2  lo");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\n");
    append("ss 2.0000\nstep 2  evaluation loss 3\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\nstep 2  loss 2.0000\nstep 2  evaluation loss 3\n");
    assert_int_equal(rows.last, 2);
    assert_int_equal(smp__rows_begin(&rows), SMP_OK);
    append("# step 2 4000000000000000\nstep 2  loss 2.0000\nstep 2  evaluation loss 3\nother\n"
           "# step 3 3ff0000000000000\nstep 3  loss 1.0000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\nstep 2  loss 2.0000\nstep 2  evaluation loss 3\nother\n"
                   "step 3  loss 1.0000\n");
    assert_int_equal(rows.first, 2);
    assert_int_equal(rows.at, 3);
    assert_int_equal(rows.n_again, 1);
    smp__rows_close(&rows, true);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_rows_json(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append(
        "{\"step\": 5, \"loss\": 1}\n{\"step\": 5, \"eval_loss\": 1}\n{\"slow_rank\": 1, \"step\": "
        "5}\n{\"step\": 5, \"loss\": 1}\n{\"step\": 4, \"eval_loss\": 1}\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed(
        "{\"step\": 5, \"loss\": 1}\n{\"step\": 5, \"eval_loss\": 1}\n{\"slow_rank\": 1, "
        "\"step\": 5}\n");
    smp__rows_close(&rows, true);
}

static void take_pace(void *context, int rank, double times)
{
    char *told = context;
    snprintf(told + strlen(told), 64 - strlen(told), "%d %.2f, ", rank, times);
}

/* What is told of slow ranks is not printed, and not heard of ranks that are gone. */
static void test_rows_of_slow_ranks(void **state)
{
    smp__rows rows;
    char told[64] = "";
    (void)state;
    open_rows(&rows, job, 0);
    rows.tell_pace = take_pace;
    rows.context = told;
    append("# step 1 3ff0000000000000\n# rank 1 slow 2.500\nstep 1  loss 1\n# rank 1 slow 1.000\n"
           "# rank -1 slow 2.0\n# rank 1 slow 0\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1\n# rank -1 slow 2.0\n# rank 1 slow 0\n");
    assert_string_equal(told, "1 2.50, 1 1.00, ");
    append("# rank 0 slow 3.000\n");
    assert_int_equal(smp__rows_begin(&rows), SMP_OK);
    assert_string_equal(told, "1 2.50, 1 1.00, ");
    smp__rows_close(&rows, true);
}

/* Lines of a program that begin like marks are lines. */
static void test_rows_like_marks(void **state)
{
    static const char lines[] =
        "# step 1 accuracy 0.5\n# step 2 3ff00000000000000\n"
        "# step 900 3ff000000000000\n# step 1 3ff0000000000000 s\n"
        "# step 0 3ff0000000000000\n# rank 1 slow 2.5 times\n# loaded 1 7 x\n";
    smp__rows rows;
    char told[64] = "";
    (void)state;
    open_rows(&rows, job, 0);
    rows.tell_pace = take_pace;
    rows.context = told;
    append("# loaded 1 123456789012\n# step 1 3ff0000000000000\n");
    append(lines);
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed(lines);
    assert_int_equal(rows.last, 1);
    assert_true(rows.loaded && rows.from_memory && rows.fetched == 123456789012.0);
    assert_string_equal(told, "");
    smp__rows_close(&rows, true);
}

static void test_rows_of_other_bits(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("# step 1 3ff0000000000000\n# step 1 3ff0000000000001\n");
    assert_int_equal(read_printing(&rows), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "step 1 has the loss 1.0000000000000002, and had 1 "));
    smp__rows_close(&rows, true);
}

/* Nobody reads: steps are seen and compared all the same, and what is left is printed later. */
static void test_rows_that_nobody_reads(void **state)
{
    enum { STEPS = 5000, MOST = 1 << 20 };
    smp__rows rows;
    int ends[2];
    char *got = calloc(1, MOST), *at = got;
    size_t length = 0;
    (void)state;
    assert_non_null(got);
    assert_int_equal(pipe(ends), 0);
    const int before = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    open_rows(&rows, job, 0);
    for (int step = 1; step <= STEPS; step++) {
        char line[100];
        snprintf(line, sizeof line, "# step %d %016x\nstep %d  loss %d and more\n", step, step,
                 step, step);
        append(line);
    }
    const smp_status status = smp__rows_read(&rows);
    const int64_t last = rows.last;
    const bool printed = smp__rows_printed(&rows);
    for (int i = 0; i < 100 && !smp__rows_printed(&rows); i++) {
        (void)smp__rows_print(&rows);
        length += (size_t)read(ends[0], got + length, MOST - 1 - length);
    }
    dup2(before, STDOUT_FILENO);
    close(before);
    close(ends[0]);
    assert_int_equal(status, SMP_OK);
    assert_int_equal(last, STEPS);
    assert_false(printed);
    assert_true(smp__rows_printed(&rows));
    for (int step = 1; step <= STEPS; step++) {
        int row = 0;
        assert_int_equal(sscanf(at, "step %d  loss", &row), 1);
        assert_int_equal(row, step);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, '\0');
    free(got);
    smp__rows_close(&rows, true);
}

static void test_rows_lost(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("# step 5 3ff0000000000000\n# step 6 3ff0000000000000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    assert_false(rows.lost);
    append("# step 9 3ff0000000000000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    assert_true(rows.lost);
    smp__rows_close(&rows, true);
}

/* A rank dies in the middle of a line; another one goes on. */
static void test_rows_torn(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("# step 1 3ff0000000000000\nstep 1  loss 1.0000\n# step 2 4000000000000000\nstep 2  lo");
    assert_int_equal(read_printing(&rows), SMP_OK);
    assert_int_equal(smp__rows_begin(&rows), SMP_OK);
    append("# step 2 4000000000000000\nstep 2  loss 2.0000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\nstep 2  loss 2.0000\n");
    assert_int_equal(rows.n_again, 1);
    smp__rows_close(&rows, true);
}

/* A supervisor is killed after it has printed, and rank 0 has written since. */
/* The last line of a program that has ended. */
static void test_rows_last_line(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("first\nlast");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("first\n");
    smp__rows_end_line(&rows);
    assert_int_equal(read_printing(&rows), SMP_OK);
    smp__rows_end_line(&rows); /* none is open */
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("first\nlast\n");
    smp__rows_close(&rows, true);
}

static void test_rows_after_a_supervisor(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    append("# step 1 3ff0000000000000\nstep 1  loss 1.0000\n# step 2 4000000000000000\nste");
    assert_int_equal(read_printing(&rows), SMP_OK);
    smp__rows_close(&rows, false);
    append("p 2  loss 2.0000\n");
    open_rows(&rows, job, 0);
    assert_int_equal(rows.last, 2);
    append("# step 2 4000000000000000\nstep 2  loss 2.0000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\nstep 2  loss 2.0000\n");
    append("# step 1 0000000000000000\n");
    assert_int_equal(read_printing(&rows), SMP_ERR_FAILED); /* bits are known from before */
    smp__rows_close(&rows, false);
    /* What another job has left says nothing. */
    open_rows(&rows, other_job, 7);
    assert_int_equal(rows.last, 7);
    append(
        "# step 7 3ff0000000000000\nstep 7  loss 1.0000\n# step 8 0000000000000000\nstep 8  loss "
        "0.0000\n");
    assert_int_equal(read_printing(&rows), SMP_OK);
    expect_printed("step 1  loss 1.0000\nstep 2  loss 2.0000\nstep 8  loss 0.0000\n");
    smp__rows_close(&rows, true);
}

/* Memory of what was printed is given back; what is left is still understood. */
static void test_rows_of_a_long_job(void **state)
{
    smp__rows rows;
    (void)state;
    open_rows(&rows, job, 0);
    for (int step = 1; step <= 120000;) {
        smp_text text = {0};
        for (int i = 0; i < 10000; i++, step++)
            smp_text_append(&text, "# step %d %016x\nstep %d  evaluation of many bytes in a row\n",
                            step, step, step);
        append(text.data);
        smp_text_free(&text);
        assert_int_equal(read_printing(&rows), SMP_OK);
    }
    assert_true(rows.freed_to > 0);
    smp__rows_close(&rows, false);
    open_rows(&rows, job, 0);
    assert_int_equal(rows.last, 120000);
    append("# step 119999 0000000000000000\n");
    assert_int_equal(read_printing(&rows), SMP_ERR_FAILED);
    smp__rows_close(&rows, true);
}

static void test_rows_refused(void **state)
{
    smp__rows rows, second;
    (void)state;
    open_rows(&rows, job, 0);
    assert_int_equal(smp__rows_open(path, &second), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "another smp-run --elastic"));
    smp__rows_close(&second, false);
    smp__rows_close(&rows, true);
    assert_int_equal(symlink(printed, path), 0);
    assert_int_equal(smp__rows_open(path, &rows), SMP_ERR_INPUT);
    smp__rows_close(&rows, false);
    remove(path);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/rows", folder);
    snprintf(printed, sizeof printed, "%s/printed", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove(printed) != 0 || rmdir(folder) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_rows_stand_once, begin),
        cmocka_unit_test_setup(test_rows_json, begin),
        cmocka_unit_test_setup(test_rows_of_slow_ranks, begin),
        cmocka_unit_test_setup(test_rows_like_marks, begin),
        cmocka_unit_test_setup(test_rows_of_other_bits, begin),
        cmocka_unit_test_setup(test_rows_that_nobody_reads, begin),
        cmocka_unit_test_setup(test_rows_torn, begin),
        cmocka_unit_test_setup(test_rows_last_line, begin),
        cmocka_unit_test_setup(test_rows_lost, begin),
        cmocka_unit_test_setup(test_rows_after_a_supervisor, begin),
        cmocka_unit_test_setup(test_rows_of_a_long_job, begin),
        cmocka_unit_test_setup(test_rows_refused, begin),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
