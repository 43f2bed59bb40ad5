/* Exports that cut between layers, read back by parsers written from their documentation:
 * Megatron's layout string, DeepSpeed's boundaries. */
#include "tests/schedule/export/export_fixture.h"
#include "tests/schedule/fixture.h"

/* Names: `embedding` ops, `layers` layers of two ops each, `head` ops. */
static int layer_names(char names[][24], const char **list, int embedding, int layers, int head)
{
    int n = 0;
    for (int i = 0; i < embedding; i++)
        snprintf(names[n++], 24, i ? "wpe" : "wte");
    for (int i = 0; i < layers; i++) {
        snprintf(names[n++], 24, "h%d.attn", i);
        snprintf(names[n++], 24, "h%d.mlp.fc", i);
    }
    for (int i = 0; i < head; i++)
        snprintf(names[n++], 24, i ? "lm_head" : "ln_f");
    for (int i = 0; i < n; i++)
        list[i] = names[i];
    return n;
}

/* As PipelineParallelLayerLayout.parse_str_to_list: commas out, (..)*n and x*n unrolled. */
static void unroll(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = text; *at && *at != '\n';) {
        const char *begin = at, *end = at + 1;
        if (*at == ',') {
            at++;
            continue;
        }
        if (*at == '(') {
            begin = at + 1;
            end = strchr(at, ')');
            assert_non_null(end);
        }
        at = *at == '(' ? end + 1 : end;
        long times = 1;
        if (*at == '*')
            times = strtol(at + 1, (char **)&at, 10);
        for (long i = 0; i < times; i++)
            for (const char *c = begin; c < end; c++) {
                assert_true(n + 1 < size);
                out[n++] = *c;
            }
    }
    out[n] = '\0';
}

static void test_export_unroll(void **state)
{
    char out[256];
    (void)state; /* the example of Megatron's documentation */
    unroll("Ettt|(tt|)*3,m|L", out, sizeof out);
    assert_string_equal(out, "Ettt|tt|tt|tt|m|L");
    unroll("E|t*3|t*2L", out, sizeof out);
    assert_string_equal(out, "E|ttt|ttL");
}

/* What a stage of the layout holds, from the ops. */
static void expected_stage(const cut_plan *c, int s, char *out)
{
    for (int32_t i = 0; i < c->stage[s].n_op; i++) {
        const char *name = c->stage[s].op[i];
        if (strstr(name, ".attn"))
            *out++ = 't';
        else if (strcmp(name, "wte") == 0)
            *out++ = 'E';
        else if (strcmp(name, "ln_f") == 0)
            *out++ = 'L';
    }
    *out = '\0';
}

/* The same of torchtitan's modules: layers counted through, norm and head at the end. */
static void expected_modules(const cut_plan *c, smp_text *out)
{
    int layer = 0;
    for (int s = 0; s < c->plan.n_stage; s++) {
        const char *comma = "";
        smp_text_append(out, s > 0 ? ",\n [" : "[[");
        for (int32_t i = 0; i < c->stage[s].n_op; i++) {
            const char *name = c->stage[s].op[i];
            if (strstr(name, ".attn"))
                smp_text_append(out, "%s\"layers.%d\"", comma, layer++);
            else if (strcmp(name, "wte") == 0)
                smp_text_append(out, "\"tok_embeddings\"");
            else if (strcmp(name, "ln_f") == 0)
                smp_text_append(out, "%s\"norm\", \"lm_head\"", comma);
            else
                continue;
            comma = ", ";
        }
        smp_text_append(out, "]");
    }
    smp_text_append(out, "]\n");
}

/* Random cuts at the borders of embedding, layers and head; then one that is not. */
static void check_cuts(fixture_random *random, int layers, int n_stage, int pipeline)
{
    char names[64][24], layout[256], expected[64];
    const char *list[64];
    int n = layer_names(names, list, 2, layers, 2), begin[16] = {0}, unit = 0;
    for (int s = 1; s < n_stage; s++) {
        int left = layers + 1 - unit - (n_stage - 1 - s); /* borders 1 .. layers + 1 */
        unit += 1 + (int)fixture_below(random, left > 0 ? left : 1);
        begin[s] = 2 * unit;
    }
    cut_plan c;
    cut_open(&c, list, n, begin, n_stage, pipeline);
    smp_text text = exported("megatron-layout", &c.plan, c.graph);
    unroll(text.data, layout, sizeof layout);
    const char *at = layout;
    for (int s = 0; s < n_stage; s++) {
        expected_stage(&c, s, expected);
        assert_int_equal(strncmp(at, expected, strlen(expected)), 0);
        at += strlen(expected);
        assert_int_equal(*at++, s + 1 < n_stage ? '|' : '\0');
    }
    smp_text_free(&text);
    smp_text modules = {0};
    expected_modules(&c, &modules);
    text = exported("torchtitan", &c.plan, c.graph);
    assert_string_equal(text.data, modules.data);
    smp_text_free(&text);
    smp_text_free(&modules);
    if (pipeline == n_stage) {
        text = exported("deepspeed-parts", &c.plan, c.graph);
        char *part = text.data;
        for (int s = 0; s <= n_stage; s++) {
            assert_int_equal(*part++, s ? ',' : '[');
            assert_int_equal(strtol(part, &part, 10), (s < n_stage ? begin[s] : n) / 2);
        }
        assert_string_equal(part, "]\n");
        smp_text_free(&text);
    }
    cut_close(&c);
    if (n_stage < 2)
        return;
    begin[n_stage - 1] += begin[n_stage - 1] > 2 ? -1 : 1;
    cut_open(&c, list, n, begin, n_stage, pipeline);
    assert_refused("megatron-layout", &c.plan, c.graph, "--cut-at");
    assert_refused("torchtitan", &c.plan, c.graph, "--cut-at");
    if (pipeline == n_stage)
        assert_refused("deepspeed-parts", &c.plan, c.graph, "--cut-at");
    cut_close(&c);
}

static void test_export_layers(void **state)
{
    (void)state;
    fixture_random random = {5};
    for (int round = 0; round < 200; round++) {
        int layers = 1 + (int)fixture_below(&random, 12);
        int most = layers + 2 < 12 ? layers + 2 : 12;
        int n_stage = 1 + (int)fixture_below(&random, most);
        int pipeline = n_stage % 2 == 0 && fixture_chance(&random, 50) ? n_stage / 2 : n_stage;
        check_cuts(&random, layers, n_stage, pipeline);
    }
}

static void test_export_layers_refused(void **state)
{
    (void)state;
    char names[64][24];
    const char *list[64];
    cut_plan c;
    /* No embedding; nothing after the layers; no layers at all. */
    int n = layer_names(names, list, 0, 3, 1);
    cut_open(&c, list, n, (int[]){0, 2}, 2, 2);
    assert_refused("megatron-layout", &c.plan, c.graph, "before its first layer");
    assert_refused("torchtitan", &c.plan, c.graph, "before its first layer");
    smp_text text = exported("deepspeed-parts", &c.plan, c.graph);
    assert_string_equal(text.data, "[0, 1, 4]\n");
    smp_text_free(&text);
    cut_close(&c);
    n = layer_names(names, list, 1, 2, 0);
    cut_open(&c, list, n, (int[]){0, 3}, 2, 2);
    assert_refused("megatron-layout", &c.plan, c.graph, "after its last layer");
    cut_close(&c);
    cut_open(&c, (const char *const[]){"fc_1", "act.x", "fc2", "loss"}, 4, (int[]){0, 3}, 2, 2);
    assert_refused("megatron-layout", &c.plan, c.graph, "no layers");
    assert_refused("deepspeed-parts", &c.plan, c.graph, "no layers that are known");
    /* A layer in two pieces; stages on the wrong ranks; two stages per rank. */
    cut_close(&c);
    cut_open(&c, (const char *const[]){"e", "h0.a", "h1.a", "h0.b", "loss"}, 5, (int[]){0, 2}, 2,
             2);
    assert_int_equal(smp_exporter_find("deepspeed-parts")->write(&c.plan, c.graph, &text),
                     SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "h0"));
    cut_close(&c);
    n = layer_names(names, list, 1, 6, 1);
    cut_open(&c, list, n, (int[]){0, 1, 5, 9}, 4, 2);
    assert_refused("deepspeed-parts", &c.plan, c.graph, "--chunks 1");
    c.stage[2].rank = 1;
    c.stage[3].rank = 0;
    assert_refused("megatron-layout", &c.plan, c.graph, "rank");
    smp_text folded = exported("torchtitan", &c.plan, c.graph); /* it knows a V */
    smp_text_free(&folded);
    c.stage[1].rank = 0;
    c.stage[2].rank = c.stage[3].rank = 1;
    assert_refused("torchtitan", &c.plan, c.graph, "folded into a V");
    cut_close(&c);
}

/* Modules of lists, as PyTorch names them; an encoder and a decoder. */
static void test_export_layers_of_modules(void **state)
{
    (void)state;
    static const char *const listed[] = {"model.embed",
                                         "model.layers.0.norm",
                                         "model.layers.0.mlp.fc",
                                         "model.layers.10.norm",
                                         "model.layers.10.mlp.fc",
                                         "model.norm",
                                         "lm_head"};
    static const char *const two[] = {"wte",         "encoder.0.ln", "encoder.0.fc", "encoder.1.ln",
                                      "decoder.wte", "decoder.0.ln", "decoder.0.fc", "head"};
    cut_plan c;
    cut_open(&c, listed, 7, (int[]){0, 3}, 2, 2);
    smp_text text = exported("megatron-layout", &c.plan, c.graph);
    assert_string_equal(text.data, "Et|tL\n");
    smp_text_free(&text);
    text = exported("deepspeed-parts", &c.plan, c.graph);
    assert_string_equal(text.data, "[0, 2, 4]\n");
    smp_text_free(&text);
    cut_close(&c);
    cut_open(&c, listed, 7, (int[]){0, 4}, 2, 2);
    assert_refused("deepspeed-parts", &c.plan, c.graph,
                   "--cut-at 'model.layers.*.norm,model.norm'");
    cut_close(&c);
    cut_open(&c, two, 8, (int[]){0, 5}, 2, 2);
    assert_refused("megatron-layout", &c.plan, c.graph, "two kinds, 'encoder.0' and 'decoder.0'");
    assert_refused("torchtitan", &c.plan, c.graph, "two kinds, 'encoder.0' and 'decoder.0'");
    text = exported("deepspeed-parts", &c.plan, c.graph);
    assert_string_equal(text.data, "[0, 3, 5]\n");
    smp_text_free(&text);
    cut_close(&c);
    cut_open(&c, two, 8, (int[]){0, 6}, 2, 2);
    assert_refused("deepspeed-parts", &c.plan, c.graph,
                   "--cut-at 'encoder.*.ln,decoder.*.ln,head'");
    cut_close(&c);
}

/* What a format does not say of a plan. */
static void test_export_notes(void **state)
{
    (void)state;
    char names[64][24];
    const char *list[64];
    cut_plan c;
    smp_text text = {0};
    const int n = layer_names(names, list, 1, 3, 1);
    cut_open(&c, list, n, (int[]){0, 3}, 2, 2);
    for (const smp_exporter *const *e = smp_exporters(); *e; e++)
        assert_int_equal(SMP_OK, smp_export_notes(*e, &c.plan, c.graph, &text));
    assert_int_equal(text.length, 0);
    c.plan.ddp = 2;
    c.plan.devices = 4;
    c.plan.sharding = (smp_sharding){.shard = 2};
    c.plan.placement = SMP_PLACEMENT_SPREAD;
    c.stage[1].recompute = (bool[]){true, true, true, true, true};
    assert_int_equal(SMP_OK, smp_export_notes(smp_exporter_find("json"), &c.plan, c.graph, &text));
    assert_int_equal(text.length, 0);
    assert_int_equal(SMP_OK,
                     smp_export_notes(smp_exporter_find("torch-csv"), &c.plan, c.graph, &text));
    assert_non_null(strstr(text.data, "torch-csv does not say that 1 of the stages recompute: "));
    assert_non_null(strstr(text.data, "there are 2 replicas (ddp): "));
    assert_non_null(strstr(text.data, "states lie in shards of 2 replicas: "));
    assert_non_null(strstr(text.data, "4 devices serve ranks in an order of the plan's own: "));
    assert_null(strstr(text.data, "shared"));
    smp_text_free(&text);
    cut_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export_unroll),
        cmocka_unit_test(test_export_layers),
        cmocka_unit_test(test_export_layers_refused),
        cmocka_unit_test(test_export_layers_of_modules),
        cmocka_unit_test(test_export_notes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
