/* Tables of options: every kind with what it takes and refuses, names, help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/options/options.h"

enum { HIDDEN = 1 };

typedef struct values {
    smp_common_options common;
    bool hides;
    bool yes, no, given;
    int one, choice, whole, missed;
    const char *text, *file, *own, *own_name;
    smp_option_list list;
    int64_t large, bytes;
    uint64_t seed;
    float real;
    double seconds;
    char told[200];
} values;

static smp_status set_own(void *options, const char *name, const char *text)
{
    values *v = options;
    v->own = text ? text : "nothing";
    v->own_name = name;
    return text && strcmp(text, "bad") == 0 ? smp_fail(SMP_ERR_INPUT, "%s: bad", name) : SMP_OK;
}

static void put_names(smp_text *text)
{
    smp_text_append(text, "\nfirst: of a registry\nsecond: likewise");
}

static smp_status check_row(const void *options, const smp_option *row, const char *name)
{
    const values *v = options;
    return v->hides && row->flags == HIDDEN ? smp_fail(SMP_ERR_INPUT, "%s: hidden", name) : SMP_OK;
}

static void tell_row(void *options, const smp_option *row, const char *text)
{
    values *v = options;
    const size_t used = strlen(v->told);
    snprintf(v->told + used, sizeof v->told - used, "%s=%s;", row->name, text ? text : "");
}

#define AT(field) offsetof(values, field)

static const smp_option_word words[] = {{"auto", -1}, {"none", 0}, {0}};
static const smp_option rows[] = {
    {"first", .kind = SMP_OPTION_HEADING},
    {"o", .kind = SMP_OPTION_FILE, .value = "FILE", .at = AT(file), .help = "a file"},
    {"yes", .kind = SMP_OPTION_YES, .at = AT(yes), .help = "sets"},
    {"no", .kind = SMP_OPTION_NO, .at = AT(no)},
    {"one", .kind = SMP_OPTION_ONE, .at = AT(one)},
    {"text", .alias = "word", .kind = SMP_OPTION_TEXT, .value = "T", .at = AT(text),
     .help = "text"},
    {"list", .kind = SMP_OPTION_LIST, .value = "T", .at = AT(list)},
    {"choice", .kind = SMP_OPTION_CHOICE, .value = "left|right|fp32", .at = AT(choice)},
    {"missed", .kind = SMP_OPTION_CHOICE, .value = "none|some|all", .at = AT(missed),
     .may_miss = true},
    {"second", .kind = SMP_OPTION_HEADING},
    {"whole", .kind = SMP_OPTION_INT, .value = "N", .at = AT(whole), .given = AT(given), .least = 1,
     .most = 10, .words = words},
    {"large", .kind = SMP_OPTION_INT64, .value = "N", .at = AT(large), .flags = HIDDEN},
    {"seed", .kind = SMP_OPTION_SEED, .value = "S", .at = AT(seed), .most = 1e30},
    {"real", .kind = SMP_OPTION_FLOAT, .value = "X", .at = AT(real), .above = true, .most = 1},
    {"seconds", .kind = SMP_OPTION_SECONDS, .value = "S", .at = AT(seconds), .words = words},
    {"bytes", .kind = SMP_OPTION_BYTES, .value = "SIZE", .at = AT(bytes), .words = words},
    {"own", .kind = SMP_OPTION_OWN, .value = "X", .set = set_own, .may_miss = true,
     .names = put_names,
     .help =
         "words that are so many that they do not stand in one line of help and are wrapped, with"},
    {0},
};
static const smp_option_table table = {.program = "smp-test",
                                       .summary = "try options",
                                       .operand = "smp-test WORD",
                                       .argument = "word",
                                       .usage = "smp-test\nsmp-test again",
                                       .about = "words",
                                       .exits = "exit codes",
                                       .row = rows,
                                       .check = check_row,
                                       .told = tell_row};

static values v;

static smp_status read_line(const char *line)
{
    static char copy[1000];
    char *argv[41] = {"smp-test"};
    int n = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && n < 40; word = strtok(NULL, " "))
        argv[n++] = strcmp(word, "''") == 0 ? word + 2 : word;
    const bool hides = v.hides;
    smp_options_close(&v);
    v = (values){.hides = hides, .no = true};
    return smp_options_read(&table, n, argv, 1, &v);
}

static smp_status read_words(const char *line)
{
    char words[1000];
    snprintf(words, sizeof words, "model %s", line); /* the operand first */
    return read_line(words);
}

static char folder[64], config[80];

/* A file of options, and what the command line says beside it. */
static smp_status read_file(const char *text, const char *line)
{
    char words[1000];
    FILE *file = fopen(config, "w");
    assert_non_null(file);
    fprintf(file, "%s", text);
    fclose(file);
    snprintf(words, sizeof words, "%s --config %s", line, config);
    return read_line(words);
}

/* why: without the name of the file. */
static void refuse_file(const char *text, const char *why)
{
    assert_int_equal(read_file(text, ""), SMP_ERR_INPUT);
    const char *said = smp_last_error();
    assert_int_equal(strncmp(said, config, strlen(config)), 0);
    if (strcmp(said + strlen(config), why) != 0)
        fail_msg("%s: got '%s', expected '%s'", text, said + strlen(config), why);
}

static void refuse(const char *line, const char *why)
{
    assert_int_equal(read_words(line), SMP_ERR_INPUT);
    if (strcmp(smp_last_error(), why) != 0)
        fail_msg("%s: got '%s', expected '%s'", line, smp_last_error(), why);
}

static void test_options_of_every_kind(void **state)
{
    (void)state;
    assert_int_equal(read_words("--yes -o x --no --one --word w --list a --list=b --choice single "
                                "--choice right"),
                     SMP_ERR_INPUT); /* 'single' is none */
    assert_int_equal(read_words("--yes -o x --no --one --word w --list a --list=b --choice right"),
                     SMP_OK);
    assert_true(v.yes && !v.no && v.one == 1 && v.choice == 1 && !v.given);
    assert_string_equal(v.common.operand, "model");
    assert_string_equal(v.file, "x");
    assert_string_equal(v.text, "w");
    assert_true(v.list.n == 2 && strcmp(v.list.item[1], "b") == 0);
    assert_string_equal(v.told, "yes=;o=x;no=;one=;text=w;list=a;list=b;choice=right;");
    assert_int_equal(read_words("--whole 7 --large 1000000000 --seed 9007199254740993 --real 0.5 "
                                "--seconds 1.5h --bytes 2KiB --choice float32"),
                     SMP_OK);
    assert_true(v.whole == 7 && v.given && v.large == 1000000000 && v.seed == 9007199254740993u);
    assert_true(v.real == 0.5f && v.seconds == 5400.0 && v.bytes == 2048 && v.choice == 2);
    assert_int_equal(read_words("--whole auto --seconds none --bytes auto --wh none"), SMP_OK);
    assert_true(v.whole == 0 && v.seconds == 0.0 && v.bytes == -1);
}

static void test_options_whose_value_may_miss(void **state)
{
    (void)state;
    assert_int_equal(read_words("--missed some --own"), SMP_OK);
    assert_true(v.missed == 1);
    assert_string_equal(v.own, "nothing");
    assert_int_equal(read_words("--own=x --missed"), SMP_OK);
    assert_true(v.missed == 2);
    assert_string_equal(v.own, "x");
    assert_int_equal(read_words("--missed=none"), SMP_OK);
    assert_true(v.missed == 0);
}

static void test_options_refused(void **state)
{
    (void)state;
    refuse("--whole 0", "--whole: got '0', expected a whole number from 1 to 10, auto, or none");
    refuse("--whole 11", "--whole: got '11', expected a whole number from 1 to 10, auto, or none");
    refuse("--whole 1.5",
           "--whole: got '1.5', expected a whole number from 1 to 10, auto, or none");
    refuse("--large -1", "--large: got '-1', expected a whole number from 0 to 1e9");
    refuse("--large 1000000001",
           "--large: got '1000000001', expected a whole number from 0 to 1e9");
    refuse("--seed -1", "--seed: got '-1', expected a whole number from 0");
    refuse("--real 0", "--real: got '0', expected a number above 0 and up to 1");
    refuse("--real nan", "--real: got 'nan', expected a number above 0 and up to 1");
    refuse("--seconds 5d",
           "--seconds: got '5d', expected a time such as 10m, or seconds from 0 to 1e9, "
           "auto, or none");
    refuse("--bytes many",
           "--bytes: got 'many', expected a size such as 80GB or 512MiB, up to 1024PiB");
    refuse("--choice up", "--choice: got 'up', expected left, right or fp32");
    refuse("-o ''", "-o: got an empty name, expected a file");
    refuse("--own=bad", "--own: bad");
    refuse("word --missed", "got 2 arguments, expected one: smp-test WORD");
    refuse("--text", "--text: its value is missing; --help lists the options");
    refuse("--yess", "--yess: unknown option, nearest is --yes; --help lists the options");
    refuse("--wrod x", "--wrod: unknown option, nearest is --word; --help lists the options");
    refuse("-x", "-x: unknown option; --help lists the options");
    v.hides = true;
    refuse("--large 1", "--large: hidden");
    v.hides = false;
    char line[700] = "";
    for (int i = 0; i < 38; i++)
        strcat(line, "--list=x ");
    assert_int_equal(read_words(line), SMP_OK);
    assert_int_equal(v.list.n, 38);
    v.list.n = SMP_OPTION_LIST_MOST;
    assert_int_equal(smp_options_set(&rows[6], "--list", "x", &v), SMP_ERR_INPUT);
    assert_int_equal(smp_options_set(&rows[0], "first", NULL, &v), SMP_ERR_FAILED);
}

static void test_options_that_every_program_has(void **state)
{
    (void)state;
    smp_status status = SMP_ERR_FAILED;
    assert_int_equal(read_words("--help=man more words"), SMP_OK); /* whatever else there is */
    assert_true(v.common.help == SMP_HELP_MAN && !v.common.operand);
    assert_int_equal(read_words("--help"), SMP_OK);
    assert_int_equal(v.common.help, SMP_HELP_TEXT);
    assert_int_equal(read_words("--version"), SMP_OK);
    assert_true(v.common.version && strcmp(v.told, "") == 0);
    assert_int_equal(read_words(""), SMP_OK);
    assert_false(smp_options_answer(&table, &v, &status));
    refuse("--help=html", "--help: got 'html', expected man or bash");
}

static void test_options_help(void **state)
{
    (void)state;
    smp_text text = {0};
    assert_int_equal(smp_options_help(&table, SMP_HELP_TEXT, &text), SMP_OK);
    assert_non_null(strstr(text.data, "usage: smp-test\n       smp-test again\n\nwords\n\nfirst\n  "
                                      "-o FILE                       a file\n"
                                      "  --yes                         sets\n"));
    assert_non_null(strstr(text.data, "  --text T, --word T            text\n"));
    assert_non_null(strstr(text.data, "  --missed[=none|some|all]"));
    assert_non_null(strstr(text.data,
                           "of help\n                                and are wrapped, with\n"
                           "                                first: of a registry\n"
                           "                                second: likewise\n"));
    assert_non_null(strstr(text.data, "\n\nexit codes\n"));
    for (const char *at = text.data, *end; (end = strchr(at, '\n')); at = end + 1)
        assert_true(end - at <= 98);
    smp_text_free(&text);
}

static void test_options_from_a_file(void **state)
{
    (void)state;
    assert_int_equal(read_file("smp: 1\nword: model\n", ""), SMP_OK); /* the argument's key */
    assert_string_equal(v.common.operand, "model");
    assert_int_equal(read_file("smp: 1\nword: model\nyes: true\nno: false\none: true\no: x\n"
                               "list: [a, 'true']\nwhole: auto\nreal: 0.5\nseconds: 10m\n"
                               "bytes: 2KiB\nchoice: left\nmissed: true\nown: [1, 2]\n",
                               ""),
                     SMP_OK);
    assert_true(v.yes && v.no && v.one == 1 && v.given && v.whole == -1 && v.real == 0.5f);
    assert_true(v.seconds == 600.0 && v.bytes == 2048 && v.choice == 0 && v.missed == 2);
    assert_true(v.list.n == 2 && strcmp(v.list.item[1], "true") == 0);
    assert_string_equal(v.file, "x");
    assert_string_equal(v.told, "yes=;one=;o=x;list=a;list=true;whole=auto;real=0.5;seconds=10m;"
                                "bytes=2KiB;choice=left;missed=all;own=1;own=2;");
    smp_options_close(&v);
}

static void test_options_of_the_command_line_count_alone(void **state)
{
    (void)state;
    const char *text = "smp: 1\nword: model\nlist: [a, b]\nwhole: 3\nseed: 4\nmissed: some\n";
    assert_int_equal(read_file(text, "--whole 5 other --list c --missed"), SMP_OK);
    assert_true(v.whole == 5 && v.seed == 4 && v.list.n == 1 && v.missed == 2);
    assert_string_equal(v.list.item[0], "c");
    assert_string_equal(v.common.operand, "other");
    assert_int_equal(read_line("--help --config absent"), SMP_OK);
    assert_int_equal(read_line("model --config absent.yaml"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "absent.yaml"));
    assert_int_equal(read_file("smp: 1\n", ""), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "got 0 arguments, expected one: smp-test WORD");
    v.hides = true;
    refuse_file("smp: 1\nlarge: 1\n", ":2:1: large: hidden");
    v.hides = false;
    smp_options_close(&v);
}

static void test_files_of_options_refused(void **state)
{
    (void)state;
    refuse_file("smp: 1\nwohle: 1\n", ":2:1: smp-test: unknown key 'wohle', did you mean 'whole'?");
    refuse_file(
        "smp: 1\nhelp: true\n",
        ":2:1: smp-test: unknown key 'help', expected one of smp, word, o, yes, no, one, text, "
        "word, list, choice, missed, whole, large, seed, real, seconds, bytes, own");
    refuse_file("smp: 1\nfirst: true\n",
                ":2:1: smp-test: unknown key 'first', did you mean 'list'?");
    refuse_file("smp: 1\nwhole: 11\n",
                ":2:1: whole: got '11', expected a whole number from 1 to 10, auto, or none");
    refuse_file("smp: 1\nwhole: [1]\n", ":2:1: whole: got a list, expected one value");
    refuse_file("smp: 1\nlist: {a: 1}\n", ":2:1: list: got a map, expected one value");
    refuse_file("smp: 1\nlist: [[a]]\n", ":2:1: list: got a list, expected one value");
    refuse_file("smp: 1\nyes: maybe\n", ":2:1: yes: got 'maybe', expected true or false");
    refuse_file("smp: 1\nyes: 'true'\n", ":2:1: yes: got 'true', expected true or false");
    smp_options_close(&v);
}

/* Options of two programs in one struct, one table and one command line. */
typedef struct both_values {
    smp_common_options common;
    int own;
    values part;
} both_values;

static bool is_wanted(const smp_option *row)
{
    return strcmp(row->name, "large") != 0;
}

static void test_options_joined(void **state)
{
    static const smp_option own[] = {
        {"mine", .kind = SMP_OPTION_HEADING},
        {"whole", .kind = SMP_OPTION_INT, .value = "N", .at = offsetof(both_values, own),
         .most = 99},
        {0},
    };
    const smp_option_part part[] = {{own, 0, NULL}, {rows, offsetof(both_values, part), is_wanted}};
    char *argv[] = {"smp-test", "--whole=50", "--own=x", "--choice",
                    "right",    "word",       "--list",  "a"};
    both_values both = {.own = 0};
    smp_option *joined = NULL;
    (void)state;
    assert_int_equal(smp_options_join(part, 2, &joined), SMP_OK);
    smp_option_table together = table;
    together.row = joined;
    together.check = NULL;
    together.told = NULL;
    assert_int_equal(smp_options_read(&together, 8, argv, 1, &both), SMP_OK);
    assert_int_equal(both.own, 50); /* the first table's */
    assert_int_equal(both.part.whole, 0);
    assert_string_equal(both.part.own, "x");
    assert_int_equal(both.part.choice, 1);
    assert_string_equal(both.part.list.item[0], "a");
    assert_string_equal(both.common.operand, "word");
    argv[1] = "--large=1";
    assert_int_equal(smp_options_read(&together, 2, argv, 1, &both), SMP_ERR_INPUT);
    for (const smp_option *row = joined; row->name; row++)
        assert_int_equal(row->part, row >= joined + 2);
    free(joined);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(config, sizeof config, "%s/job.yaml", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove(config) != 0 || rmdir(folder) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_of_every_kind),
        cmocka_unit_test(test_options_whose_value_may_miss),
        cmocka_unit_test(test_options_refused),
        cmocka_unit_test(test_options_that_every_program_has),
        cmocka_unit_test(test_options_help),
        cmocka_unit_test(test_options_from_a_file),
        cmocka_unit_test(test_options_of_the_command_line_count_alone),
        cmocka_unit_test(test_files_of_options_refused),
        cmocka_unit_test(test_options_joined),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
