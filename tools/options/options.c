/* Command lines by a table; see the header. */
#include "tools/options/options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/target.h"
#include "graph/yaml/yaml.h"
#include "tools/options/options_file.h"

enum { FIRST_LONG = 256, NAME_BYTES = 64 };

#define MOST_NUMBER 1e9 /* from here on powers of ten */

bool smp_parse_time(const char *text, double *seconds, bool *unit)
{
    static const struct {
        char letter;
        double seconds;
    } units[] = {{'s', 1.0}, {'m', 60.0}, {'h', 3600.0}};
    const size_t length = strlen(text);
    double each = 0.0;
    char number[32];
    for (size_t i = 0; length > 0 && i < sizeof units / sizeof units[0]; i++)
        each = text[length - 1] == units[i].letter ? units[i].seconds : each;
    *unit = each > 0.0;
    snprintf(number, sizeof number, "%.*s", (int)(length - *unit), text);
    if (length > sizeof number || !smp_parse_double(number, seconds))
        return false;
    *seconds *= *unit ? each : 1.0;
    return *seconds >= 0.0 && *seconds <= MOST_NUMBER;
}

/* Which of the words of "a|b|c"; -1: none. */
static int find_choice(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (int i = 0;; i++) {
        const size_t n = strcspn(words, "|");
        if (n == length && strncmp(words, text, n) == 0)
            return i;
        if (!words[n])
            return -1;
        words += n + 1;
    }
}

smp_status smp_parse_word(const char *name, const char *words, const char *text, int *out)
{
    const int found = find_choice(words, smp_precision_word(text));
    smp_text known = {0};
    if (found >= 0) {
        *out = found;
        return SMP_OK;
    }
    for (const char *word = words; *word;) {
        const size_t n = strcspn(word, "|");
        smp_text_append(&known, "%s%.*s",
                        word == words ? ""
                        : word[n]     ? ", "
                                      : " or ",
                        (int)n, word);
        word += n + (word[n] != '\0');
    }
    smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected %s", name, text, known.data ? known.data : "");
    smp_text_free(&known);
    return SMP_ERR_INPUT;
}

static double most_of(const smp_option *row)
{
    return row->most > 0.0 ? row->most : MOST_NUMBER;
}

/* "name: got 'x', expected WHAT from 1 to 1e9, auto or none". */
static smp_status refuse_number(const smp_option *row, const char *name, const char *text,
                                const char *what)
{
    smp_text range = {0};
    smp_text_append(&range, row->above ? "above " : "from ");
    smp_text_append_double(&range, row->least);
    if (most_of(row) < SMP_OPTION_NO_LIMIT)
        smp_text_append(&range, row->above ? " and up to " : " to ");
    if (most_of(row) < MOST_NUMBER)
        smp_text_append(&range, "%.0f", most_of(row));
    else if (most_of(row) < SMP_OPTION_NO_LIMIT)
        smp_text_append(&range, "1e%d", (int)(log10(most_of(row)) + 0.5));
    for (const smp_option_word *w = row->words; w && w->word; w++)
        smp_text_append(&range, "%s%s", w[1].word ? ", " : ", or ", w->word);
    smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected %s %s", name, text, what,
             range.data ? range.data : "");
    smp_text_free(&range);
    return SMP_ERR_INPUT;
}

static bool is_within(const smp_option *row, double value)
{
    return (row->above ? value > row->least : value >= row->least) && value <= most_of(row);
}

static bool find_word(const smp_option *row, const char *text, int64_t *number)
{
    for (const smp_option_word *w = row->words; w && w->word; w++)
        if (strcmp(w->word, text) == 0) {
            *number = w->number;
            return true;
        }
    return false;
}

static smp_status read_whole(const smp_option *row, const char *name, const char *text,
                             int64_t *value)
{
    if (find_word(row, text, value))
        return SMP_OK;
    if (smp_parse_int(text, value) && is_within(row, (double)*value))
        return SMP_OK;
    return refuse_number(row, name, text, "a whole number");
}

static smp_status read_real(const smp_option *row, const char *name, const char *text,
                            double *value)
{
    int64_t word;
    if (find_word(row, text, &word)) {
        *value = (double)word;
        return SMP_OK;
    }
    if (smp_parse_double(text, value) && is_within(row, *value))
        return SMP_OK;
    return refuse_number(row, name, text, "a number");
}

static smp_status read_seconds(const smp_option *row, const char *name, const char *text,
                               double *value)
{
    int64_t word;
    bool unit;
    if (find_word(row, text, &word)) {
        *value = (double)word;
        return SMP_OK;
    }
    if (smp_parse_time(text, value, &unit) && is_within(row, *value))
        return SMP_OK;
    return refuse_number(row, name, text, "a time such as 10m, or seconds");
}

static smp_status read_bytes(const smp_option *row, const char *name, const char *text,
                             int64_t *value)
{
    if (find_word(row, text, value))
        return SMP_OK;
    if (smp_parse_bytes(text, value) && *value >= 1 && *value <= SMP_MAX_BYTES)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: got '%s', expected a size such as 80GB or 512MiB, up to 1024PiB", name,
                    text);
}

static smp_status add_item(const char *name, const char *text, smp_option_list *list)
{
    if (list->n == SMP_OPTION_LIST_MOST)
        return smp_fail(SMP_ERR_INPUT, "%s: given more than %d times", name, SMP_OPTION_LIST_MOST);
    list->item[list->n++] = text;
    return SMP_OK;
}

static smp_status read_form(const char *name, const char *text, int *form)
{
    int word = 0;
    if (text)
        SMP_TRY(smp_parse_word(name, "man|bash", text, &word));
    *form = !text ? SMP_HELP_TEXT : word == 0 ? SMP_HELP_MAN : SMP_HELP_BASH;
    return SMP_OK;
}

static smp_status set_number(const smp_option *row, const char *name, const char *text, void *at)
{
    int64_t whole = 0;
    double real = 0.0;
    switch (row->kind) {
    case SMP_OPTION_INT:
        SMP_TRY(read_whole(row, name, text, &whole));
        *(int *)at = (int)whole;
        return SMP_OK;
    case SMP_OPTION_INT64:
        return read_whole(row, name, text, at);
    case SMP_OPTION_SEED:
        SMP_TRY(read_whole(row, name, text, &whole));
        *(uint64_t *)at = (uint64_t)whole;
        return SMP_OK;
    case SMP_OPTION_FLOAT:
        SMP_TRY(read_real(row, name, text, &real));
        *(float *)at = (float)real;
        return SMP_OK;
    case SMP_OPTION_SECONDS:
        return read_seconds(row, name, text, at);
    default:
        return read_bytes(row, name, text, at);
    }
}

smp_status smp_options_set(const smp_option *row, const char *name, const char *text, void *options)
{
    char *own = (char *)options + row->base;
    void *at = own + row->at;
    int word;
    if (row->given > 0)
        *(bool *)(own + row->given) = true;
    switch (row->kind) {
    case SMP_OPTION_HEADING:
        return smp_fail(SMP_ERR_FAILED, "'%s' is no option", row->name);
    case SMP_OPTION_YES:
    case SMP_OPTION_NO:
        *(bool *)at = row->kind == SMP_OPTION_YES;
        return SMP_OK;
    case SMP_OPTION_ONE:
        *(int *)at = 1;
        return SMP_OK;
    case SMP_OPTION_FILE:
        if (*text == '\0')
            return smp_fail(SMP_ERR_INPUT, "%s: got an empty name, expected a file", name);
        *(const char **)at = text;
        return SMP_OK;
    case SMP_OPTION_TEXT:
        *(const char **)at = text;
        return SMP_OK;
    case SMP_OPTION_LIST:
        return add_item(name, text, at);
    case SMP_OPTION_CHOICE:
        return smp_parse_word(name, row->value, text, at);
    case SMP_OPTION_WORD:
        *(const char **)at = text;
        return smp_parse_word(name, row->value, text, &word);
    case SMP_OPTION_HELP:
        return read_form(name, text, at);
    case SMP_OPTION_OWN:
        return row->set(own, name, text);
    default:
        return set_number(row, name, text, at);
    }
}

/* What getopt_long is told, and which row each of its values means. */
typedef struct known_options {
    struct option *option;  /* malloc'ed */
    const smp_option **row; /* [n], malloc'ed */
    char letters[2 * NAME_BYTES];
    int n;
} known_options;

#define AT(field) offsetof(smp_common_options, field)

static const smp_option common[] = {
    {"help", .kind = SMP_OPTION_HELP, .value = "man|bash", .may_miss = true, .at = AT(help),
     .help = "this text; as a page for man, or what completes options in bash"},
    {"config", .kind = SMP_OPTION_FILE, .value = "FILE", .at = AT(config),
     .help = "options from a file: `smp: 1`, names without dashes, true for what takes no value, "
             "lists for what is repeatable; what the command line gives counts alone"},
    {"version", .kind = SMP_OPTION_YES, .at = AT(version),
     .help = "versions of the program and its libraries"},
    {0},
};

static bool is_common(const smp_option *row)
{
    return row >= common && row < common + sizeof common / sizeof common[0];
}

const smp_option *smp__option_next(const smp_option *row)
{
    if (row[1].name)
        return row + 1;
    return is_common(row) ? NULL : common;
}

static int count_rows(const smp_option_table *table)
{
    int n = 0;
    for (const smp_option *row = table->row; row; row = smp__option_next(row))
        n++;
    return n;
}

static void add_known(known_options *k, const smp_option *row, const char *name)
{
    const int takes = !row->value     ? no_argument
                      : row->may_miss ? optional_argument
                                      : required_argument;
    k->option[k->n] = (struct option){.name = name, .has_arg = takes, .val = FIRST_LONG + k->n};
    k->row[k->n++] = row;
}

static smp_status list_known(const smp_option_table *table, known_options *k)
{
    const size_t most = 2 * (size_t)count_rows(table) + 1;
    size_t letters = 0;
    k->option = calloc(most, sizeof *k->option);
    k->row = calloc(most, sizeof *k->row);
    if (!k->option || !k->row)
        return smp_fail_memory(most * sizeof *k->option);
    k->letters[letters++] = ':';
    for (const smp_option *row = table->row; row; row = smp__option_next(row)) {
        if (row->kind == SMP_OPTION_HEADING)
            continue;
        add_known(k, row, row->name);
        if (row->alias)
            add_known(k, row, row->alias);
        if (!row->name[1] && letters + 3 < sizeof k->letters) {
            k->letters[letters++] = row->name[0];
            if (row->value)
                k->letters[letters++] = ':';
        }
    }
    return SMP_OK;
}

static const smp_option *row_of(const smp_option_table *table, const known_options *k, int value)
{
    const smp_option *row = table->row;
    if (value >= FIRST_LONG)
        return k->row[value - FIRST_LONG];
    while (row->name &&
           !(row->kind != SMP_OPTION_HEADING && row->name[0] == value && !row->name[1]))
        row++;
    return row;
}

static smp_status refuse_option(const known_options *k, const char *given, bool no_value)
{
    if (no_value)
        return smp_fail(SMP_ERR_INPUT, "%s: its value is missing; --help lists the options", given);
    const char **names = malloc(((size_t)k->n + 1) * sizeof *names);
    if (!names)
        return smp_fail_memory((size_t)k->n * sizeof *names);
    for (int i = 0; i < k->n; i++)
        names[i] = k->option[i].name;
    const char *near =
        strncmp(given, "--", 2) == 0 ? smp_nearest(given + 2, names, (size_t)k->n) : NULL;
    smp_fail(SMP_ERR_INPUT, "%s: unknown option%s%s; --help lists the options", given,
             near ? ", nearest is --" : "", near ? near : "");
    free(names);
    return SMP_ERR_INPUT;
}

static const char *last_word(const smp_option *row)
{
    const char *last = strrchr(row->value, '|');
    return last ? last + 1 : row->value;
}

/* What getopt_long found. Of a choice whose value may be missing: the next argument if it is one,
 * else the last word. */
static const char *value_of(const smp_option *row, int argc, char **argv)
{
    if (optarg || !row->may_miss || row->kind != SMP_OPTION_CHOICE)
        return optarg;
    if (optind < argc && find_choice(row->value, argv[optind]) >= 0)
        return argv[optind++];
    return last_word(row);
}

/* What both passes over argv and a file of options work on. */
typedef struct reading {
    const smp_option_table *table;
    void *options;
    known_options known;
    bool *given; /* [rows], malloc'ed: those of argv, with a file */
} reading;

static smp_status take_option(const reading *r, const smp_option *row, const char *name,
                              const char *text)
{
    const smp_option_table *table = r->table;
    const bool own = !is_common(row);
    if (own && table->check)
        SMP_TRY(table->check(r->options, row, name));
    SMP_TRY(smp_options_set(row, name, text, r->options));
    if (own && table->told)
        table->told(r->options, row, text);
    return SMP_OK;
}

static smp_status take_from_file(void *context, const smp_option *row, const char *name,
                                 const char *text)
{
    const bool last = !text && row->kind == SMP_OPTION_CHOICE;
    return take_option(context, row, name, last ? last_word(row) : text);
}

static void begin_arguments(void)
{
    opterr = 0;
    optind = 0; /* getopt forgets what it read before, and begins at argv[1] */
}

/* The file of --config, if there is one. What is wrong in argv is left to the next pass. */
static smp_status take_file(reading *r, int argc, char **argv)
{
    const known_options *k = &r->known;
    smp_common_options *asked = r->options;
    begin_arguments();
    for (int value; (value = getopt_long(argc, argv, k->letters, k->option, NULL)) != -1;) {
        if (value == '?' || value == ':')
            return SMP_OK;
        const smp_option *row = row_of(r->table, k, value);
        const char *text = value_of(row, argc, argv);
        if (!is_common(row))
            r->given[row - r->table->row] = true;
        else if (row->at != AT(config))
            return SMP_OK; /* help or version: nothing is read */
        else
            asked->config = text;
    }
    return asked->config && *asked->config
               ? smp__options_file_read(r->table, r->given, take_from_file, r, asked)
               : SMP_OK;
}

static smp_status take_arguments(const reading *r, int argc, char **argv)
{
    const known_options *k = &r->known;
    begin_arguments();
    for (int value; (value = getopt_long(argc, argv, k->letters, k->option, NULL)) != -1;) {
        if (value == '?' || value == ':')
            return refuse_option(k, argv[optind - 1], value == ':');
        const smp_option *row = row_of(r->table, k, value);
        const char *known = value >= FIRST_LONG ? k->option[value - FIRST_LONG].name : row->name;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s%s", known[1] ? "--" : "-", known);
        SMP_TRY(take_option(r, row, name, value_of(row, argc, argv)));
    }
    return SMP_OK;
}

static smp_status take_all(reading *r, int argc, char **argv)
{
    const size_t n = (size_t)count_rows(r->table);
    r->given = calloc(n, sizeof *r->given);
    if (!r->given)
        return smp_fail_memory(n * sizeof *r->given);
    SMP_TRY(list_known(r->table, &r->known));
    SMP_TRY(take_file(r, argc, argv));
    return take_arguments(r, argc, argv);
}

smp_status smp_options_read(const smp_option_table *table, int argc, char **argv, int first,
                            void *options)
{
    smp_common_options *asked = options;
    reading r = {.table = table, .options = options};
    const int n = argc - first + 1;
    char **words = argv + first - 1;
    const smp_status status = take_all(&r, n, words);
    free(r.known.option);
    free(r.known.row);
    free(r.given);
    if (status != SMP_OK || asked->help || asked->version)
        return status;
    if (n - optind == 0 && asked->operand)
        return SMP_OK;
    if (n - optind < 1 || (n - optind > 1 && !table->several))
        return smp_fail(SMP_ERR_INPUT, "got %d arguments, expected %s: %s", n - optind,
                        table->several ? "at least one" : "one", table->operand);
    asked->operand = words[optind];
    asked->more = words + optind + 1;
    asked->n_more = n - optind - 1;
    return SMP_OK;
}

void smp_options_close(void *options)
{
    smp_common_options *asked = options;
    smp_yaml_destroy(asked->file);
    asked->file = NULL;
}
