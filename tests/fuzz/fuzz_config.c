/* config.json of a Hugging Face folder: refused with a reason, or a model file that the reader
 * takes or refuses with its own. */
#include "tests/fuzz/fuzz.h"

#include "graph/folder/folder.h"

/* A text of some lines may stand for millions of operators, whose reading is no fault. */
static bool has_few_layers(const char *model)
{
    static const char KEY[] = "layers: ";
    for (const char *at = model; (at = strstr(at, KEY)); at++)
        if (strtod(at + sizeof KEY - 1, NULL) > 1000)
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int train = 0; train < 2; train++) {
        smp_text text = {0};
        const char *names = NULL;
        smp_graph *graph = NULL;
        if (fuzz_taken(smp__folder_config("config.json", NULL, (const char *)data, size, train,
                                          &text, &names))) {
            FUZZ_REQUIRE(names && text.data && !strchr(text.data, '$'));
            if (has_few_layers(text.data) &&
                fuzz_taken(smp_graph_parse("model.yaml", text.data, text.length, &graph)))
                smp_graph_destroy(graph);
        }
        smp_text_free(&text);
    }
    return 0;
}
