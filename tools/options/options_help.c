/* What a table of options says of itself: to people, as a page for man (the macros of man(7)), and
 * to bash. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/built.h"
#include "graph/math/math.h"
#include "profile/device/cuda_info.h"
#include "smp.h"
#include "tools/options/options.h"

enum { HELP_COLUMN = 32, HELP_WIDTH = 98 };

/* Words from column HELP_COLUMN on, broken before HELP_WIDTH; the line stands at `column`. After a
 * newline in them another line begins. */
static void put_wrapped(const char *words, int column, smp_text *text)
{
    bool first = true;
    while (*words) {
        const int length = (int)strcspn(words, " \n");
        if (column >= HELP_COLUMN && !first && column + 1 + length > HELP_WIDTH) {
            smp_text_append(text, "\n");
            column = 0;
            first = true;
        }
        if (column > HELP_COLUMN - 1 && first) {
            smp_text_append(text, "\n");
            column = 0;
        }
        if (column < HELP_COLUMN)
            smp_text_append(text, "%*s", HELP_COLUMN - column, "");
        else
            smp_text_append(text, " ");
        column = (column < HELP_COLUMN ? HELP_COLUMN : column + 1) + length;
        smp_text_append(text, "%.*s", length, words);
        first = false;
        words += length;
        if (*words == '\n')
            column = HELP_WIDTH; /* the next word begins a line */
        words += *words != '\0';
    }
    smp_text_append(text, "\n");
}

static int put_name(const char *name, const smp_option *row, smp_text *text)
{
    const size_t before = text->length;
    smp_text_append(text, "%s%s", name[1] ? "--" : "-", name);
    if (row->value && !row->may_miss)
        smp_text_append(text, " %s", row->value);
    else if (row->value)
        smp_text_append(text, "[=%s]", row->value);
    return (int)(text->length - before);
}

static void put_row(const smp_option *row, smp_text *text)
{
    smp_text help = {0};
    if (row->kind == SMP_OPTION_HEADING) {
        smp_text_append(text, "%s\n", row->name);
        return;
    }
    smp_text_append(text, "  ");
    int column = 2 + put_name(row->name, row, text);
    if (row->alias) {
        smp_text_append(text, ", ");
        column += 2 + put_name(row->alias, row, text);
    }
    smp_text_append(&help, "%s", row->help ? row->help : "");
    if (row->names)
        row->names(&help);
    put_wrapped(help.data ? help.data : "", column, text);
    text->failed |= help.failed;
    smp_text_free(&help);
}

/* Words in lines; an empty line stays. */
static void put_filled(const char *words, smp_text *text)
{
    for (int column = 0; *words;) {
        const int length = (int)strcspn(words, " \n");
        if (strncmp(words, "\n\n", 2) == 0) {
            smp_text_append(text, "\n\n");
            column = 0;
            words += 2;
            continue;
        }
        if (length > 0 && column > 0)
            smp_text_append(text, "%c", column + 1 + length > HELP_WIDTH ? '\n' : ' ');
        column = column > 0 && column + 1 + length <= HELP_WIDTH ? column + 1 + length : length;
        smp_text_append(text, "%.*s", length, words);
        words += length;
        words += *words == ' ' || (*words == '\n' && words[1] != '\n');
    }
    smp_text_append(text, "\n");
}

static void put_text(const smp_option_table *table, smp_text *text)
{
    const char *line = table->usage;
    for (size_t n; *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        smp_text_append(text, "%s%.*s\n", line == table->usage ? "usage: " : "       ", (int)n,
                        line);
    }
    smp_text_append(text, "\n");
    put_filled(table->about, text);
    smp_text_append(text, "\n");
    for (const smp_option *row = table->row; row; row = smp__option_next(row))
        put_row(row, text);
    smp_text_append(text, "\n");
    put_filled(table->exits, text);
}

/* Text for man: no line is taken for a request, no hyphen for a break. */
static void put_roff(const char *words, smp_text *text)
{
    bool begins = true;
    for (; *words; words++) {
        if (begins && (*words == '.' || *words == '\''))
            smp_text_append(text, "\\&");
        begins = *words == '\n';
        if (*words == '\\')
            smp_text_append(text, "\\e");
        else if (*words == '-')
            smp_text_append(text, "\\-");
        else if (begins && words[1] == '\n')
            smp_text_append(text, "\n.PP");
        else
            smp_text_append(text, "%c", *words);
    }
    smp_text_append(text, "\n");
}

static void put_roff_name(const char *name, const smp_option *row, smp_text *text)
{
    smp_text plain = {0};
    smp_text_append(&plain, "%s%s", name[1] ? "--" : "-", name);
    smp_text_append(text, "\\fB");
    put_roff(plain.data ? plain.data : "", text);
    text->length -= text->length > 0; /* its newline */
    smp_text_append(text, "\\fR");
    if (row->value)
        smp_text_append(text, "%s\\fI%s\\fR%s", row->may_miss ? "[=" : " ", row->value,
                        row->may_miss ? "]" : "");
    smp_text_free(&plain);
}

static void put_roff_row(const smp_option *row, smp_text *text)
{
    smp_text help = {0};
    if (row->kind == SMP_OPTION_HEADING) {
        smp_text_append(text, ".SS %s\n", row->name);
        return;
    }
    smp_text_append(text, ".TP\n");
    put_roff_name(row->name, row, text);
    if (row->alias) {
        smp_text_append(text, ", ");
        put_roff_name(row->alias, row, text);
    }
    smp_text_append(text, "\n");
    smp_text_append(&help, "%s", row->help ? row->help : "");
    if (row->names)
        row->names(&help);
    for (char *rest = help.data, *line; rest && (line = strsep(&rest, "\n"));) {
        if (line != help.data)
            smp_text_append(text, ".br\n");
        put_roff(line, text);
    }
    text->failed |= help.failed;
    smp_text_free(&help);
}

static void put_man(const smp_option_table *table, smp_text *text)
{
    smp_text_append(text, ".TH ");
    for (const char *c = table->program; *c; c++)
        smp_text_append(text, "%c", toupper((unsigned char)*c));
    smp_text_append(text, " 1 \"\" \"SMP %s\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", smp_version(),
                    table->program, table->summary);
    for (const char *line = table->usage; *line;) {
        const size_t n = strcspn(line, "\n");
        smp_text_append(text, "%s.B %.*s\n", line == table->usage ? "" : ".br\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    smp_text_append(text, ".SH DESCRIPTION\n");
    put_roff(table->about, text);
    smp_text_append(text, ".SH OPTIONS\n");
    for (const smp_option *row = table->row; row; row = smp__option_next(row))
        put_roff_row(row, text);
    smp_text_append(text, ".SH EXIT STATUS\n");
    put_roff(table->exits, text);
}

/* "a|b|c" of words that are typed as they stand. */
static bool is_choice(const char *value)
{
    return value && strchr(value, '|') &&
           strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-|") == strlen(value);
}

static void put_bash_choice(const smp_option *row, const char *name, smp_text *text)
{
    smp_text_append(text, "    --%s) words='", name);
    for (const char *c = row->value; *c; c++)
        smp_text_append(text, "%c", *c == '|' ? ' ' : *c);
    smp_text_append(text, "' ;;\n");
}

/* Options after a dash, words of a choice after its option, else files. */
static void put_bash(const smp_option_table *table, smp_text *text)
{
    char name[32];
    snprintf(name, sizeof name, "_%s", table->program);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : *c;
    smp_text_append(text,
                    "# Sourced by bash: completes the options of %s.\n"
                    "%s() {\n"
                    "    local word=${COMP_WORDS[COMP_CWORD]} words=\n"
                    "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n",
                    table->program, name);
    for (const smp_option *row = table->row; row; row = smp__option_next(row))
        if (row->kind != SMP_OPTION_HEADING && is_choice(row->value) && !row->may_miss) {
            put_bash_choice(row, row->name, text);
            if (row->alias)
                put_bash_choice(row, row->alias, text);
        }
    smp_text_append(text, "    *)\n        [[ $word != -* ]] || words='");
    for (const smp_option *row = table->row; row; row = smp__option_next(row)) {
        if (row->kind != SMP_OPTION_HEADING)
            smp_text_append(text, "%s%s ", row->name[1] ? "--" : "-", row->name);
        if (row->alias)
            smp_text_append(text, "--%s ", row->alias);
    }
    smp_text_append(text,
                    "'\n        ;;\n    esac\n"
                    "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
                    "}\n"
                    "complete -o default -F %s %s\n",
                    name, table->program);
}

smp_status smp_options_help(const smp_option_table *table, smp_option_help form, smp_text *text)
{
    if (form == SMP_HELP_MAN)
        put_man(table, text);
    else if (form == SMP_HELP_BASH)
        put_bash(table, text);
    else
        put_text(table, text);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

static smp_status print_text(smp_text *text, smp_status status)
{
    if (status == SMP_OK && (fputs(text->data, stdout) < 0 || fflush(stdout) != 0))
        status = smp_fail(SMP_ERR_FAILED, "standard output: cannot write");
    smp_text_free(text);
    return status;
}

/* What this build has of GPUs. */
static void describe_build(smp_text *text)
{
    void (*const describe[])(smp_text *) = {SMP__IF_CUDA(smp_cuda_describe, ) NULL};
    if (!describe[0])
        smp_text_append(text, "CUDA: not built in\n");
    for (int i = 0; describe[i]; i++)
        describe[i](text);
}

static smp_status print_version(const smp_option_table *table)
{
    smp_text text = {0};
    smp_text_append(&text, "%s %s\n%s\n", table->program, smp_version(), smp_math_name());
    describe_build(&text);
    if (!text.failed && text.data[text.length - 1] != '\n')
        smp_text_append(&text, "\n");
    return print_text(&text, text.failed ? smp_fail_memory(text.capacity) : SMP_OK);
}

bool smp_options_answer(const smp_option_table *table, const void *options, smp_status *status)
{
    const smp_common_options *asked = options;
    smp_text text = {0};
    if (!asked->help && !asked->version)
        return false;
    *status = SMP_OK;
    if (smp_options_speaks() && asked->help)
        *status = print_text(&text, smp_options_help(table, (smp_option_help)asked->help, &text));
    else if (smp_options_speaks())
        *status = print_version(table);
    return true;
}

bool smp_options_speaks(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return !rank || strcmp(rank, "0") == 0;
}

int smp_options_end(const smp_option_table *table, smp_status status)
{
    if (status != SMP_OK && smp_options_speaks())
        fprintf(stderr, "%s: %s\n", table->program, smp_last_error());
    return smp_status_exit_code(status);
}
