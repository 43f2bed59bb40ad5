/* The options of smp-run --elastic; see the header. */
#include "tools/elastic/elastic_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/elastic/program_ranks.h"

#define AT(field) offsetof(smp__elastic_options, field)

enum { OWN, RUN, PLANNING }; /* parts of the table */

/* "MIN:MAX", or one number for both. */
static smp_status set_devices(void *options, const char *name, const char *text)
{
    smp__elastic_options *o = options;
    char least[24];
    const char *colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : strlen(text);
    int64_t from = 0, to = 0;
    snprintf(least, sizeof least, "%.*s", (int)length, text);
    if (length >= sizeof least || !smp_parse_int(least, &from) ||
        !smp_parse_int(colon ? colon + 1 : least, &to) || from < 1 || to < from ||
        to > SMP__ELASTIC_DEVICES)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%s', expected MIN:MAX devices, 1 <= MIN <= MAX <= %d", name, text,
                        SMP__ELASTIC_DEVICES);
    o->least = (int)from;
    o->most = (int)to;
    return SMP_OK;
}

static const smp_option own_rows[] = {
    {"devices that come and go", .kind = SMP_OPTION_HEADING},
    {"n", .kind = SMP_OPTION_OWN, .value = "MIN:MAX", .set = set_devices,
     .help = "devices of all hosts together; the first plan is for MAX and decides the bits. A "
             "number, or slots such as 0-2,5 or HOST:0-1, in DIR/devices says which are at hand"},
    {"hosts", .kind = SMP_OPTION_FILE, .at = AT(hosts), .value = "FILE",
     .help = "hosts and their devices, lines NAME slots=N, this one among them; read again when it "
             "changes (default: those of the Slurm or PBS job, else this host alone)"},
    {"agent", .kind = SMP_OPTION_FILE, .at = AT(agent), .value = "COMMAND",
     .help = "what runs a line of the shell on {host}: words with blanks between; the line follows "
             "(default: ssh, in a Slurm job srun)"},
    {"wait", .kind = SMP_OPTION_SECONDS, .at = AT(wait_s), .value = "S",
     .help = "with fewer than MIN devices wait so long for more, then end (default 10m)"},
    {"horizon", .kind = SMP_OPTION_SECONDS, .at = AT(horizon_s), .value = "S",
     .help = "go on with more devices where that gains more within S than going on costs "
             "(default 10m)"},
    {"failures-allowed", .kind = SMP_OPTION_INT, .at = AT(failures_allowed), .value = "N",
     .least = 1,
     .help = "leave out a device whose process failed N times without 100 steps in between "
             "(default 3)"},
    {"ignore-slow", .kind = SMP_OPTION_YES, .at = AT(ignore_slow),
     .help = "take no other plan where devices are slower than others"},
    {"beat-limit", .kind = SMP_OPTION_SECONDS, .at = AT(beat_limit_s), .value = "S",
     .help = "kill a rank that has not beaten for S (default 5, 0: never)"},
    {"keep-every", .kind = SMP_OPTION_INT64, .at = AT(keep_every), .value = "K",
     .help = "ranks keep the job's state in memory after every K-th step (default 1; 0: only "
             "checkpoints are gone on from)"},
    {"keep-in", .kind = SMP_OPTION_FILE, .at = AT(keep_in), .value = "KEEP",
     .help = "... in this folder (default: one of /dev/shm by the name of DIR)"},
    {"keep-for", .kind = SMP_OPTION_SECONDS, .at = AT(keep_for_s), .value = "S",
     .help = "... which hosts hold for S after the supervisor is gone (default 1h)"},
    {"launcher", .kind = SMP_OPTION_FILE, .at = AT(launcher), .value = "COMMAND",
     .help = "what ranks are started with, words with blanks between; -n N and the command follow "
             "(default mpirun, with what the hosts need)"},
    {"events", .kind = SMP_OPTION_FILE, .at = AT(events), .value = "FILE.jsonl",
     .help = "append a JSON object for each event"},
    {0},
};

/* What the supervisor says itself, and what cannot be done, or not yet, by several runs in a row.
 */
static bool is_passed(const smp_option *row)
{
    static const char *const left_out[] = {"predict", "tensor", "predict-data", "predict-reduce",
                                           "rows",    "events", "resume-best",  NULL};
    for (const char *const *name = left_out; *name; name++)
        if (strcmp(row->name, *name) == 0)
            return false;
    return true;
}

static void add_given(smp_text *text, const smp_option *row, const char *value, char end)
{
    smp_text_append(text, "%s%s%s%s", row->name[1] ? "--" : "-", row->name, value ? "=" : "",
                    value ? value : "");
    smp_text_append_bytes(text, &end, 1);
}

static void tell_option(void *options, const smp_option *row, const char *text)
{
    smp__elastic_options *o = options;
    if (row->part == RUN) {
        smp__run_table.told(&o->run, row, text);
        if (strcmp(row->name, "elastic") != 0 && strcmp(row->name, "resume") != 0) {
            add_given(&o->passed, row, text, '\0');
            o->n_passed++;
        }
    }
    /* Of smp-run's these two, and the operators, are what a plan is for. */
    if (row->part == PLANNING || strcmp(row->name, "device") == 0 ||
        strcmp(row->name, "precision") == 0)
        add_given(&o->planning, row, text, ' ');
}

/* Beside a program of the user's, smp-run trains nothing. */
static smp_status check_option(const void *options, const smp_option *row, const char *name)
{
    const smp__elastic_options *o = options;
    if (row->part != RUN || !o->command || smp__program_allows(row->name))
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: is for smp-run as a rank; the ranks are %s, whose options follow it", name,
                    o->n_command > 0 ? o->command[0] : "the program after --");
}

static smp_status make_table(smp__elastic_options *o)
{
    const smp_option_part part[] = {
        {own_rows, 0, NULL},
        {smp__run_table.row, AT(run), is_passed},
        {smp__partition_table.row, AT(partition), smp_partition_options_plan},
    };
    SMP_TRY(smp_options_join(part, sizeof part / sizeof part[0], &o->rows));
    o->table = (smp_option_table){
        .program = "smp-run",
        .summary = "train a model on devices that come and go",
        .operand = "smp-run --elastic MODEL",
        .argument = "model",
        .usage =
            "smp-run --elastic MODEL -n MIN:MAX --global-batch N --checkpoint DIR --data SOURCE "
            "[options]\n"
            "smp-run --elastic MODEL -n MIN:MAX --checkpoint DIR [options] -- PROGRAM [arguments]",
        .about =
            "Plans the model for MAX devices, starts that many ranks, and goes on when a rank dies "
            "or hangs, or devices are taken away or given back: with a plan for those at hand, "
            "from "
            "the state that ranks keep in memory, else from the last checkpoint. Every later plan "
            "has the bits of the first, so losses are those of a job that nothing happened to; "
            "each step's row is printed once.\n\nOptions of the search that shape a plan "
            "(--stages, "
            "--ddp, --chunks, --microbatches, --shard and the like) are for the first; those of "
            "smp-run go to every rank. Started again with the same command, it goes on.\n\n"
            "PROGRAM, on libsmp, takes the place of smp-run as the ranks: smp_elastic_join.",
        .exits = "SIGINT, SIGTERM and SIGUSR1 save after the step in progress and end the job.\n\n"
                 "exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no plan for the "
                 "devices at hand, 4 ended by a signal and saved",
        .row = o->rows,
        .check = check_option,
        .told = tell_option,
    };
    return SMP_OK;
}

static smp_status check(smp__elastic_options *o)
{
    const smp_train_options *train = &o->run.train;
    int model;
    int64_t bytes;
    if (o->most == 0)
        return smp_fail(SMP_ERR_INPUT, "--elastic needs -n MIN:MAX devices");
    if (!train->checkpoint || *train->checkpoint == '\0')
        return smp_fail(SMP_ERR_INPUT, "--elastic needs --checkpoint DIR");
    if (o->command)
        SMP_TRY(smp__program_check(o->command[0]));
    if (getenv("OMPI_COMM_WORLD_RANK"))
        return smp_fail(SMP_ERR_INPUT, "--elastic starts mpirun itself: start it without");
    SMP_TRY(smp_file_open(o->run.common.operand, &model, &bytes));
    close(model);
    SMP_TRY(smp_file_spares(o->events, o->run.common.operand));
    smp_partition_options_settle(&o->partition);
    smp_text_append(&o->planning, "%s", o->run.common.operand);
    if (o->passed.failed || o->planning.failed || o->run.told.failed)
        return smp_fail_memory(o->passed.length + o->planning.length);
    return smp__run_options_check(&o->run);
}

smp_status smp__elastic_options_read(int argc, char **argv, smp__elastic_options *o)
{
    *o = (smp__elastic_options){.partition = {.job = smp_options_default()},
                                .keep_every = 1,
                                .wait_s = 600.0,
                                .beat_limit_s = 5.0,
                                .horizon_s = 600.0,
                                .keep_for_s = 3600.0,
                                .failures_allowed = 3};
    smp__run_options_begin(&o->run);
    const int words = smp__program_at(argc, argv);
    if (words < argc) {
        o->command = argv + words + 1;
        o->n_command = argc - words - 1;
        o->run.train.steps = 0; /* the program's */
    }
    o->arena = smp_arena_create();
    if (!o->arena)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(make_table(o));
    SMP_TRY(smp_options_read(&o->table, words, argv, 1, o));
    return o->run.common.help || o->run.common.version ? SMP_OK : check(o);
}

void smp__elastic_options_free(smp__elastic_options *o)
{
    smp_text_free(&o->passed);
    smp_text_free(&o->planning);
    smp_arena_destroy(o->arena);
    free(o->rows);
    smp__run_options_free(&o->run);
}
