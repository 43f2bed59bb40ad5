/* Files of options; see the header. */
#include "tools/options/options_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/yaml/yaml.h"

enum { PLACE_BYTES = 512 };

/* --help, --version and --config itself are for the command line. */
static const smp_option *row_of(const smp_option_table *table, const char *key, int *index)
{
    *index = 0;
    for (const smp_option *row = table->row; row->name; row++, ++*index)
        if (row->kind != SMP_OPTION_HEADING &&
            (strcmp(row->name, key) == 0 || (row->alias && strcmp(row->alias, key) == 0)))
            return row;
    return NULL;
}

/* Every key is an option's name, or the argument's. */
static smp_status check_keys(const smp_option_table *table, const smp_yaml_node *top)
{
    size_t n = 0, most = 2;
    for (const smp_option *row = table->row; row->name; row++)
        most += 2;
    const char **known = malloc(most * sizeof *known);
    if (!known)
        return smp_fail_memory(most * sizeof *known);
    known[n++] = "smp";
    known[n++] = table->argument;
    for (const smp_option *row = table->row; row->name; row++) {
        if (row->kind != SMP_OPTION_HEADING)
            known[n++] = row->name;
        if (row->alias)
            known[n++] = row->alias;
    }
    const smp_status status = smp_yaml_known_keys(top, table->program, known, n);
    free(known);
    return status;
}

/* "file:line:column: key", what a message about the value begins with. */
static void write_place(const smp_yaml_node *top, int i, char place[PLACE_BYTES])
{
    const smp_where where = smp_yaml_map_key_where(top, i);
    snprintf(place, PLACE_BYTES, "%s:%d:%d: %s", where.file, where.line, where.column,
             smp_yaml_map_key(top, i));
}

static smp_status take_scalar(const smp_option *row, const char *place, const smp_yaml_node *value,
                              smp__option_taker *take, void *context)
{
    const char *text = smp_yaml_text(value);
    if (!text)
        return smp_fail(SMP_ERR_INPUT, "%s: got a %s, expected one value", place,
                        smp_yaml_kind_of(value) == SMP_YAML_LIST ? "list" : "map");
    const bool is_switch = (!row->value || row->may_miss) && !smp_yaml_quoted(value);
    if (is_switch && strcmp(text, "false") == 0)
        return SMP_OK;
    if (is_switch && strcmp(text, "true") == 0)
        return take(context, row, place, NULL);
    if (!row->value)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected true or false", place, text);
    return take(context, row, place, text);
}

static smp_status take_value(const smp_option *row, const char *place, const smp_yaml_node *value,
                             smp__option_taker *take, void *context)
{
    const bool repeats = row->kind == SMP_OPTION_LIST || row->kind == SMP_OPTION_OWN;
    if (smp_yaml_kind_of(value) != SMP_YAML_LIST || !repeats)
        return take_scalar(row, place, value, take, context);
    for (int i = 0; i < smp_yaml_list_size(value); i++)
        SMP_TRY(take_scalar(row, place, smp_yaml_list_at(value, i), take, context));
    return SMP_OK;
}

smp_status smp__options_file_read(const smp_option_table *table, const bool *given,
                                  smp__option_taker *take, void *context, smp_common_options *asked)
{
    const smp_yaml_node *top;
    SMP_TRY(smp_yaml_read(asked->config, &asked->file));
    SMP_TRY(smp_yaml_top(asked->file, &top));
    SMP_TRY(check_keys(table, top));
    for (int i = 0; i < smp_yaml_map_size(top); i++) {
        const char *key = smp_yaml_map_key(top, i);
        const smp_yaml_node *value = smp_yaml_map_value(top, i);
        char place[PLACE_BYTES];
        int index;
        const smp_option *row = row_of(table, key, &index);
        write_place(top, i, place);
        if (strcmp(key, table->argument) == 0)
            SMP_TRY(smp_yaml_string(value, key, &asked->operand));
        else if (row && !given[index])
            SMP_TRY(take_value(row, place, value, take, context));
    }
    return SMP_OK;
}
