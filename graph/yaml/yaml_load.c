/* From libyaml's events to a tree of nodes, with an explicit stack: O(text) time and memory.
 *
 * Broken or hostile text ends in one message: nesting, number of values and the size that aliases
 * expand to are bounded, an alias inside its own anchor is refused, and so are tags, which have no
 * meaning here. libyaml's own document loader is not used: it searches anchors linearly. */
#include "graph/yaml/yaml_node.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "graph/base/text.h"

enum {
    MAX_DEPTH = 100,
    MAX_NODES = 50000000,
    MAX_ALIAS_NODES = 1000000, /* how many more nodes there may be with aliases written out */
    MAX_TAG_DIRECTIVES = 16,   /* libyaml takes quadratic time in them */
    MAX_FILE_BYTES = 1 << 30
};

typedef struct frame {
    smp_yaml_node *node;
    size_t first; /* of its items in loader.item */
} frame;

typedef struct loader {
    yaml_parser_t parser;
    smp_yaml *yaml;
    const char *data;
    size_t bytes;
    frame stack[MAX_DEPTH];
    int depth;
    const smp_yaml_node **item; /* of all open collections, innermost last */
    size_t n_item, item_capacity;
    smp_map *anchors; /* name -> index into anchored */
    const smp_yaml_node **anchored;
    size_t n_anchored, anchored_capacity;
    int64_t n_node;
    bool begun, ours; /* the first word was read; and is that of our files */
} loader;

/* What an error shows of a word: nothing of a file of another kind, which may be secret. */
static const char *shown(const loader *l, const char *word)
{
    return l->ours ? word : "...";
}

static smp_where mark_where(const loader *l, yaml_mark_t mark)
{
    return (smp_where){l->yaml->name, (int)mark.line + 1, (int)mark.column + 1};
}

static smp_where offset_where(const loader *l, size_t offset)
{
    smp_where where = {l->yaml->name, 1, 1};
    for (size_t i = 0; i < offset && i < l->bytes; i++) {
        if (l->data[i] == '\n') {
            where.line++;
            where.column = 1;
        } else if (((unsigned char)l->data[i] & 0xc0) != 0x80) { /* characters, not bytes */
            where.column++;
        }
    }
    return where;
}

static smp_status fail_parser(const loader *l)
{
    const yaml_parser_t *p = &l->parser;
    const char *problem = p->problem ? p->problem : "cannot read it as YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return smp_fail_memory(l->bytes);
    if (p->error == YAML_READER_ERROR)
        return smp_fail_at(offset_where(l, p->problem_offset), "%s, expected UTF-8 text", problem);
    if (p->context)
        return smp_fail_at(mark_where(l, p->problem_mark), "%s, %s", p->context, problem);
    return smp_fail_at(mark_where(l, p->problem_mark), "%s", problem);
}

static smp_status fail_depth(const loader *l, yaml_mark_t mark)
{
    return smp_fail_at(mark_where(l, mark), "nested deeper than %d levels", (int)MAX_DEPTH);
}

static smp_status new_node(loader *l, smp_yaml_kind kind, yaml_mark_t mark, smp_yaml_node **out)
{
    if (l->n_node >= MAX_NODES)
        return smp_fail_at(mark_where(l, mark), "more than %d values in one file", (int)MAX_NODES);
    smp_yaml_node *node = smp_arena_alloc_aligned(l->yaml->arena, 1, sizeof *node, 8);
    if (!node)
        return SMP_ERR_NO_MEMORY;
    l->n_node++;
    node->yaml = l->yaml;
    node->kind = (uint8_t)kind;
    node->expanded = 1;
    node->line = (int32_t)mark.line + 1;
    node->column = (int32_t)mark.column + 1;
    *out = node;
    return SMP_OK;
}

/* Hands a value to the collection that is being read, or makes it the top. */
static smp_status add(loader *l, const smp_yaml_node *node)
{
    if (l->depth == 0) {
        l->yaml->top = node;
        return SMP_OK;
    }
    SMP_TRY(smp_array_reserve(&l->item, &l->item_capacity, sizeof *l->item, l->n_item + 1));
    l->item[l->n_item++] = node;
    return SMP_OK;
}

static smp_status set_anchor(loader *l, const yaml_char_t *anchor, const smp_yaml_node *node)
{
    if (!anchor)
        return SMP_OK;
    const char *name = smp_arena_strdup(l->yaml->arena, (const char *)anchor);
    if (!name)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_array_reserve(&l->anchored, &l->anchored_capacity, sizeof *l->anchored,
                              l->n_anchored + 1));
    l->anchored[l->n_anchored] = node;
    return smp_map_set(l->anchors, name, (int64_t)l->n_anchored++);
}

static smp_status check_tag(const loader *l, const yaml_char_t *tag, yaml_mark_t mark)
{
    if (!tag || strcmp((const char *)tag, "!") == 0)
        return SMP_OK;
    return smp_fail_at(mark_where(l, mark), "got the tag '%.80s', expected a value without a tag",
                       shown(l, (const char *)tag));
}

static smp_status on_scalar(loader *l, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (!l->begun) {
        l->begun = true;
        l->ours = l->depth == 1 && strcmp(value, "smp") == 0;
    }
    SMP_TRY(check_tag(l, event->data.scalar.tag, event->start_mark));
    if (memchr(value, '\0', length))
        return smp_fail_at(mark_where(l, event->start_mark), "the text holds a NUL character");
    smp_yaml_node *node = NULL;
    SMP_TRY(new_node(l, SMP_YAML_SCALAR, event->start_mark, &node));
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->u.text = smp_arena_strdup(l->yaml->arena, value);
    if (!node->u.text)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(set_anchor(l, event->data.scalar.anchor, node));
    return add(l, node);
}

static smp_status on_alias(loader *l, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor, *seen = shown(l, name);
    smp_where where = mark_where(l, event->start_mark);
    int64_t index;
    if (!smp_map_get(l->anchors, name, &index))
        return smp_fail_at(where, "unknown alias '*%.80s', expected an anchor '&%.80s' before it",
                           seen, seen);
    const smp_yaml_node *node = l->anchored[index];
    if (node->open)
        return smp_fail_at(where, "alias '*%.80s' stands inside the value that it names", seen);
    if (l->depth + node->height > MAX_DEPTH)
        return fail_depth(l, event->start_mark);
    return add(l, node);
}

static smp_status on_start(loader *l, smp_yaml_kind kind, yaml_mark_t mark,
                           const yaml_char_t *anchor, const yaml_char_t *tag)
{
    SMP_TRY(check_tag(l, tag, mark));
    if (l->depth == MAX_DEPTH)
        return fail_depth(l, mark);
    smp_yaml_node *node = NULL;
    SMP_TRY(new_node(l, kind, mark, &node));
    node->open = 1;
    node->height = 1;
    SMP_TRY(set_anchor(l, anchor, node));
    l->stack[l->depth++] = (frame){node, l->n_item};
    return SMP_OK;
}

static const char *key_text(const smp_yaml_node *map, int32_t entry)
{
    return map->u.item[2 * (size_t)entry]->u.text;
}

static smp_status fail_duplicate(const loader *l, const smp_yaml_node *map, int32_t first,
                                 int32_t second)
{
    return smp_fail_at(smp_yaml_where(map->u.item[2 * (size_t)second]),
                       "duplicate key '%.80s', already given on line %d",
                       shown(l, key_text(map, second)), (int)map->u.item[2 * (size_t)first]->line);
}

/* Keys of one array: equal ones stay in the order of the file. */
static int compare_keys(const void *a, const void *b)
{
    const smp_yaml_node *const *left = *(const smp_yaml_node *const *const *)a;
    const smp_yaml_node *const *right = *(const smp_yaml_node *const *const *)b;
    int order = strcmp((*left)->u.text, (*right)->u.text);
    return order != 0 ? order : (left > right) - (left < right);
}

static smp_status sort_keys(loader *l, smp_yaml_node *map)
{
    size_t n = (size_t)map->count;
    int32_t *order = smp_arena_alloc_aligned(l->yaml->arena, n, sizeof *order, sizeof *order);
    if (!order)
        return SMP_ERR_NO_MEMORY;
    const smp_yaml_node *const **keys = malloc(n * sizeof *keys);
    if (!keys)
        return smp_fail_memory(n * sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = &map->u.item[2 * i];
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 0; i < n; i++)
        order[i] = (int32_t)((keys[i] - map->u.item) / 2);
    free(keys);
    map->order = order;
    /* The first repetition in the file is reported, not the first in the alphabet. */
    int32_t first = -1;
    int32_t second = -1;
    for (size_t i = 1; i < n; i++) {
        if (strcmp(key_text(map, order[i - 1]), key_text(map, order[i])) == 0 &&
            (second < 0 || order[i] < second)) {
            first = order[i - 1];
            second = order[i];
        }
    }
    return second < 0 ? SMP_OK : fail_duplicate(l, map, first, second);
}

static smp_status check_keys(loader *l, smp_yaml_node *map)
{
    for (int32_t i = 0; i < map->count; i++) {
        const smp_yaml_node *key = map->u.item[2 * (size_t)i];
        if (key->kind != SMP_YAML_SCALAR)
            return smp_fail_at(smp_yaml_where(key), "got a %s as a key, expected a plain name",
                               key->kind == SMP_YAML_LIST ? "list" : "map");
    }
    if (map->count > SMP__YAML_SMALL_MAP)
        return sort_keys(l, map);
    for (int32_t i = 1; i < map->count; i++) {
        for (int32_t j = 0; j < i; j++) {
            if (strcmp(key_text(map, i), key_text(map, j)) == 0)
                return fail_duplicate(l, map, j, i);
        }
    }
    return SMP_OK;
}

/* Closes the innermost collection: copies its items out of the common array. */
static smp_status on_end(loader *l)
{
    frame top = l->stack[--l->depth];
    smp_yaml_node *node = top.node;
    size_t n = l->n_item - top.first;
    if (n > 0) {
        const smp_yaml_node **item = smp_arena_alloc_aligned(l->yaml->arena, n, sizeof *item, 8);
        if (!item)
            return SMP_ERR_NO_MEMORY;
        memcpy(item, l->item + top.first, n * sizeof *item);
        node->u.item = item;
    }
    l->n_item = top.first;
    node->count = (int32_t)(node->kind == SMP_YAML_MAP ? n / 2 : n);
    for (size_t i = 0; i < n; i++) {
        const smp_yaml_node *child = node->u.item[i];
        node->expanded += child->expanded;
        if (child->height >= node->height)
            node->height = child->height + 1;
    }
    if (node->expanded > l->n_node + MAX_ALIAS_NODES)
        return smp_fail_at(smp_yaml_where(node), "its aliases expand to more than %lld values",
                           (long long)l->n_node + MAX_ALIAS_NODES);
    if (node->kind == SMP_YAML_MAP)
        SMP_TRY(check_keys(l, node));
    node->open = 0;
    return add(l, node);
}

static smp_status on_event(loader *l, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return on_scalar(l, event);
    case YAML_ALIAS_EVENT:
        return on_alias(l, event);
    case YAML_SEQUENCE_START_EVENT:
        return on_start(l, SMP_YAML_LIST, event->start_mark, event->data.sequence_start.anchor,
                        event->data.sequence_start.tag);
    case YAML_MAPPING_START_EVENT:
        return on_start(l, SMP_YAML_MAP, event->start_mark, event->data.mapping_start.anchor,
                        event->data.mapping_start.tag);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return on_end(l);
    case YAML_DOCUMENT_START_EVENT:
        if (l->yaml->top)
            return smp_fail_at(mark_where(l, event->start_mark),
                               "got a second document, expected one");
        return SMP_OK;
    default:
        return SMP_OK;
    }
}

static smp_status load(loader *l)
{
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&l->parser, &event))
            return fail_parser(l);
        bool end = event.type == YAML_STREAM_END_EVENT;
        smp_status status = on_event(l, &event);
        yaml_event_delete(&event);
        if (status != SMP_OK)
            return status;
        if (end)
            break;
    }
    if (!l->yaml->top)
        return smp_fail_at((smp_where){l->yaml->name, 1, 1},
                           "the file is empty, expected a map that starts with 'smp: 1'");
    return SMP_OK;
}

static smp_status check_directives(const loader *l)
{
    int count = 0;
    const char *end = l->data + l->bytes;
    for (const char *c = l->data; c < end; c++) {
        if (*c == '%' && (c == l->data || c[-1] == '\n' || c[-1] == '\r') && end - c >= 4 &&
            memcmp(c, "%TAG", 4) == 0 && ++count > MAX_TAG_DIRECTIVES)
            return smp_fail_at(offset_where(l, (size_t)(c - l->data)),
                               "more than %d %%TAG directives, expected none",
                               (int)MAX_TAG_DIRECTIVES);
    }
    return SMP_OK;
}

static smp_status parse(loader *l)
{
    SMP_TRY(check_directives(l));
    if (!yaml_parser_initialize(&l->parser))
        return smp_fail_memory(sizeof l->parser);
    yaml_parser_set_encoding(&l->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l->parser, (const unsigned char *)l->data, l->bytes);
    smp_status status = load(l);
    yaml_parser_delete(&l->parser);
    return status;
}

smp_status smp_yaml_parse(const char *name, const char *data, size_t bytes, smp_yaml **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    loader *l = calloc(1, sizeof *l);
    smp_arena *arena = smp_arena_create();
    smp_yaml *yaml = arena ? SMP_ARENA_NEW(arena, smp_yaml, 1) : NULL;
    if (!l || !yaml) {
        smp_fail_memory(sizeof *l);
        goto done;
    }
    *yaml = (smp_yaml){.arena = arena, .name = smp_arena_strdup(arena, name)};
    l->yaml = yaml;
    l->data = data;
    l->bytes = bytes;
    l->anchors = smp_map_create();
    if (yaml->name && l->anchors)
        status = parse(l);
    smp_map_destroy(l->anchors);
    free(l->item);
    free(l->anchored);
done:
    free(l);
    if (status == SMP_OK)
        *out = yaml;
    else
        smp_arena_destroy(arena);
    return status;
}

smp_status smp_yaml_read(const char *path, smp_yaml **out)
{
    char *data;
    size_t bytes;
    SMP_TRY(smp_file_read(path, MAX_FILE_BYTES, &data, &bytes));
    smp_status status = smp_yaml_parse(path, data, bytes, out);
    free(data);
    return status;
}

void smp_yaml_destroy(smp_yaml *yaml)
{
    if (yaml)
        smp_arena_destroy(yaml->arena);
}
