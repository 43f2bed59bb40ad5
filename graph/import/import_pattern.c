/* Operators that exporters write out as several nodes, found by patterns and made one node
 * again.
 *
 * A pattern is text: `Op(..)` is a node that nothing else reads, a small letter a value (the
 * same one wherever it stands), `$w` a constant, `#2` the constant number 2, `$e` the epsilon, a
 * constant number. Operands of Add and Mul may stand either way round, and a ReduceMean is one
 * over the last dimension that it keeps. */
#include "graph/import/importing.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 24 };

#define CENTRED "Sub(x,ReduceMean(x))"
#define HALF_ERF "Add(Erf(Div(x,#1.4142135)),#1)"
#define HALF_TANH "Add(Tanh(Mul(Add(x,Mul(Pow(x,#3),#0.044715)),#0.7978846)),#1)"

static const struct pattern {
    const char *text, *op;
    bool weight; /* $w becomes input 1, $b input 2 */
} PATTERNS[] = {
    {"Mul(x,Sigmoid(x))", "smp.silu", false},
    {"Mul(Mul(x," HALF_ERF "),#0.5)", "smp.gelu_erf", false},
    {"Mul(Mul(x,#0.5)," HALF_ERF ")", "smp.gelu_erf", false},
    {"Mul(x,Mul(#0.5," HALF_ERF "))", "smp.gelu_erf", false},
    {"Mul(Mul(x,Add(Erf(Mul(x,#0.70710678)),#1)),#0.5)", "smp.gelu_erf", false},
    {"Mul(Mul(x,#0.5),Add(Erf(Mul(x,#0.70710678)),#1))", "smp.gelu_erf", false},
    {"Mul(x,Mul(#0.5,Add(Erf(Mul(x,#0.70710678)),#1)))", "smp.gelu_erf", false},
    {"Mul(Mul(x,#0.5)," HALF_TANH ")", "smp.gelu_tanh", false},
    {"Mul(Mul(x," HALF_TANH "),#0.5)", "smp.gelu_tanh", false},
    {"Mul(x,Mul(#0.5," HALF_TANH "))", "smp.gelu_tanh", false},
    {"Mul(Mul(x,#0.5),Add(Tanh(Mul(Add(x,Mul(Mul(Mul(x,x),x),#0.044715)),#0.7978846)),#1))",
     "smp.gelu_tanh", false},
    {"Mul(Mul(x,#0.5),Add(Tanh(Mul(Mul(x,#0.7978846),Add(Mul(Mul(x,x),#0.044715),#1))),#1))",
     "smp.gelu_tanh", false},
    {"Add(Mul(Div(" CENTRED ",Sqrt(Add(ReduceMean(Pow(" CENTRED ",#2)),$e))),$w),$b)",
     "smp.layernorm", true},
    {"Add(Mul(Div(" CENTRED ",Sqrt(Add(ReduceMean(Mul(" CENTRED "," CENTRED ")),$e))),$w),$b)",
     "smp.layernorm", true},
    {"Mul(Mul(x,Reciprocal(Sqrt(Add(ReduceMean(Pow(x,#2)),$e)))),$w)", "smp.rmsnorm", true},
    {"Mul(Mul(x,Reciprocal(Sqrt(Add(ReduceMean(Mul(x,x)),$e)))),$w)", "smp.rmsnorm", true},
    {"Mul(Div(x,Sqrt(Add(ReduceMean(Pow(x,#2)),$e))),$w)", "smp.rmsnorm", true},
    {"Mul(Div(x,Sqrt(Add(ReduceMean(Mul(x,x)),$e))),$w)", "smp.rmsnorm", true},
    {"Mul(Mul(x,Div(#1,Sqrt(Add(ReduceMean(Pow(x,#2)),$e)))),$w)", "smp.rmsnorm", true},
    {"Mul(Mul(x,Pow(Add(ReduceMean(Pow(x,#2)),$e),#-0.5)),$w)", "smp.rmsnorm", true},
};

typedef struct match {
    const smp_onnx_model *m;
    int32_t letter[26], constant[26]; /* what each stands for; -1: nothing yet */
    int32_t node[MOST_NODES];
    int n_node;
} match;

static bool match_value(match *m, const char **text, int32_t value);

static bool match_number(const match *m, const char **text, int32_t value)
{
    char *end;
    double got;
    const double wanted = strtod(*text, &end);
    *text = end;
    return smp__onnx_scalar(&m->m->value[value], &got) &&
           fabs(got - wanted) <= 1e-4 * fabs(wanted) + 1e-9;
}

static bool bind_letter(int32_t *slot, int32_t value)
{
    if (*slot < 0)
        *slot = value;
    return *slot == value;
}

static bool over_last(const smp_onnx_model *m, const smp_onnx_node *node)
{
    const int64_t *axes;
    size_t n;
    const smp_onnx_value *in = smp__onnx_in(m, node, 0);
    return in && in->n_dim > 0 && smp__onnx_int(node, "keepdims", 1) != 0 &&
           smp__onnx_list(m, node, "axes", 1, &axes, &n) && n == 1 &&
           (axes[0] == -1 || axes[0] == in->n_dim - 1);
}

/* Operands after the bracket, in the order first, second or the other way round. */
static bool match_operands(match *m, const char **text, const smp_onnx_node *node, bool turned)
{
    for (int k = 0;; k++) {
        const int at = turned ? 1 - k : k;
        if (at < 0 || at >= node->n_in || node->in[at] < 0 || !match_value(m, text, node->in[at]))
            return false;
        if (*(*text)++ == ')')
            return (k == 1 || node->n_in == 1 || strcmp(node->op, "ReduceMean") == 0);
    }
}

static bool match_op(match *m, const char **text, int32_t value)
{
    const char *open = strchr(*text, '(');
    const size_t length = (size_t)(open - *text);
    const int32_t producer = m->m->value[value].producer;
    if (producer < 0 || m->n_node == MOST_NODES)
        return false;
    const smp_onnx_node *node = &m->m->node[producer];
    if (!node->live || strlen(node->op) != length || memcmp(node->op, *text, length) != 0 ||
        node->n_in < 1 || (strcmp(node->op, "ReduceMean") == 0 && !over_last(m->m, node)))
        return false;
    m->node[m->n_node++] = producer;
    const match before = *m;
    *text = open + 1;
    if (match_operands(m, text, node, false))
        return true;
    *m = before;
    *text = open + 1;
    return node->n_in == 2 && (strcmp(node->op, "Add") == 0 || strcmp(node->op, "Mul") == 0) &&
           match_operands(m, text, node, true);
}

static bool match_value(match *m, const char **text, int32_t value)
{
    const char c = *(*text)++;
    if (c == '#')
        return match_number(m, text, value);
    if (c == '$')
        return smp_onnx_constant(&m->m->value[value]) &&
               bind_letter(&m->constant[*(*text)++ - 'a'], value);
    if (islower((unsigned char)c))
        return !smp_onnx_constant(&m->m->value[value]) && bind_letter(&m->letter[c - 'a'], value);
    (*text)--;
    return match_op(m, text, value);
}

/* Does nothing outside read what the nodes make, but for the first? */
static bool closed(const match *m)
{
    for (int i = 1; i < m->n_node; i++) {
        const smp_onnx_node *node = &m->m->node[m->node[i]];
        const smp_onnx_value *v = smp__onnx_out(m->m, node, 0);
        int32_t inside = 0;
        if (m->node[i] == m->node[0])
            return false;
        for (int j = 0; j < m->n_node; j++) {
            bool again = false;
            for (int k = 0; k < j; k++)
                again |= m->node[k] == m->node[j];
            const smp_onnx_node *reader = &m->m->node[m->node[j]];
            for (int k = 0; k < reader->n_in && !again; k++)
                inside += reader->in[k] >= 0 && &m->m->value[reader->in[k]] == v;
        }
        if (!v || v->n_use != inside || v->output)
            return false;
    }
    return true;
}

static smp_status make_one(smp_onnx_model *model, const match *m, const struct pattern *p)
{
    smp_onnx_node *root = &model->node[m->node[0]];
    const int32_t x = m->letter['x' - 'a'], w = m->constant['w' - 'a'], b = m->constant['b' - 'a'];
    double eps = 0;
    if (m->constant['e' - 'a'] >= 0 &&
        !smp__onnx_scalar(&model->value[m->constant['e' - 'a']], &eps))
        return SMP_OK;
    int32_t *in = SMP_ARENA_NEW(model->arena, int32_t, 3);
    if (!in)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < m->n_node; i++) {
        smp_onnx_node *node = &model->node[m->node[i]];
        for (int k = 0; k < node->n_in && node->live; k++)
            if (node->in[k] >= 0)
                model->value[node->in[k]].n_use--;
        node->live = false;
    }
    root->live = true;
    in[0] = x;
    in[1] = w;
    in[2] = b;
    root->in = in;
    root->n_in = !p->weight ? 1 : b >= 0 ? 3 : 2;
    root->op = p->op;
    root->number = eps;
    for (int k = 0; k < root->n_in; k++)
        model->value[in[k]].n_use++;
    return SMP_OK;
}

/* What reads a cast to the type that its input has reads that. */
static void drop_casts(smp_onnx_model *model)
{
    for (int32_t i = 0; i < model->n_node; i++) {
        smp_onnx_node *node = &model->node[i];
        for (int k = 0; k < node->n_in; k++) {
            const int32_t from = node->in[k] >= 0 ? model->value[node->in[k]].producer : -1;
            const smp_onnx_node *cast = from >= 0 ? &model->node[from] : NULL;
            if (!cast || strcmp(cast->op, "Cast") != 0 || cast->n_in != 1 || cast->in[0] < 0 ||
                model->value[cast->in[0]].type != model->value[node->in[k]].type ||
                model->value[cast->in[0]].type == 0 ||
                smp_onnx_constant(&model->value[node->in[k]]))
                continue;
            model->value[node->in[k]].n_use--;
            node->in[k] = cast->in[0];
            model->value[node->in[k]].n_use++;
        }
    }
    for (int32_t i = model->n_node - 1; i >= 0; i--) {
        smp_onnx_node *node = &model->node[i];
        const smp_onnx_value *out = smp__onnx_out(model, node, 0);
        if (node->live && strcmp(node->op, "Cast") == 0 && out && out->n_use == 0 && !out->output) {
            node->live = false;
            model->value[node->in[0]].n_use--;
        }
    }
}

smp_status smp__find_patterns(smp_onnx_model *model)
{
    drop_casts(model);
    for (int32_t i = model->n_node - 1; i >= 0; i--) {
        const smp_onnx_node *node = &model->node[i];
        for (size_t k = 0; k < sizeof(PATTERNS) / sizeof(PATTERNS[0]) && node->live; k++) {
            match m = {.m = model};
            const char *text = PATTERNS[k].text;
            memset(m.letter, -1, sizeof(m.letter));
            memset(m.constant, -1, sizeof(m.constant));
            const size_t length = strlen(node->op);
            if (strncmp(text, node->op, length) != 0 || text[length] != '(' || node->n_out != 1 ||
                node->out[0] < 0 || !match_value(&m, &text, node->out[0]) || !closed(&m))
                continue;
            SMP_TRY(make_one(model, &m, &PATTERNS[k]));
            break;
        }
    }
    return SMP_OK;
}
