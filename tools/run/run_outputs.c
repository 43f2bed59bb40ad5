/* What a run writes: looked at before its first step, and completed after its last one. */
#include "tools/run/run_outputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_save.h"
#include "graph/base/text.h"

static smp_status check_folder(const char *path, const char *what)
{
    if (!path)
        return SMP_OK;
    const char *slash = strrchr(path, '/');
    char folder[4096];
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (access(folder, W_OK | X_OK) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot write %s: %s", path, what, strerror(errno));
    return SMP_OK;
}

/* Steps of training end in a save. */
static smp_status lock_checkpoints(const smp__trainer *t)
{
    const smp_train_options *o = t->options;
    return o->steps > 0 || o->epochs > 0 ? smp__save_lock(t->job, o->checkpoint) : SMP_OK;
}

smp_status smp__resume_lock(const smp__trainer *t)
{
    const char *directory = t->options->checkpoint;
    if (!t->prints || !t->about.trains || access(directory, F_OK) != 0)
        return SMP_OK; /* whoever reads it says that it is not there */
    return lock_checkpoints(t);
}

static smp_status check_checkpoint(const smp__trainer *t, bool keeps)
{
    const smp_train_options *o = t->options;
    if (!t->about.trains)
        return o->resume && o->save_every == 0 && !o->keep_best
                   ? SMP_OK
                   : smp_fail(SMP_ERR_INPUT, "--checkpoint: the plan is for inference, nothing to "
                                             "save; with --resume its weights come from there");
    /* auto has found that nothing whole is left of it, unless the folder is another run's */
    const bool useless = o->resume_auto && access(o->checkpoint, F_OK) == 0;
    if (!o->resume && keeps && !useless)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds the state of a run that was not ended%s: continue it with "
                        "--resume, or remove it",
                        smp__keep_folder(t->job),
                        smp__checkpoint_exists(smp__keep_folder(t->job)) ? ""
                                                                         : ", on another host");
    SMP_TRY(smp__checkpoint_folder_make(o->checkpoint));
    if (access(o->checkpoint, W_OK | X_OK) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot write checkpoints: %s", o->checkpoint,
                        strerror(errno));
    SMP_TRY(lock_checkpoints(t));
    if (!o->resume && smp__checkpoint_exists(o->checkpoint))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds a checkpoint already: continue it with --resume or choose "
                        "another directory",
                        o->checkpoint);
    return SMP_OK;
}

/* The model of the plan, which lies beside it or where the program was started. */
static smp_status spare_model(const smp__trainer *t)
{
    const smp_train_options *o = t->options;
    const char *const written[] = {o->trace, o->report, o->profile, o->predict, o->weights, o->log};
    const char *plan = o->job.plan, *slash = plan ? strrchr(plan, '/') : NULL;
    const char *model = t->about.model;
    char beside[4096];
    snprintf(beside, sizeof(beside), "%.*s%s", slash ? (int)(slash - plan) + 1 : 0,
             slash ? plan : "", model);
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
        SMP_TRY(smp_file_spares(written[i], model));
        SMP_TRY(smp_file_spares(written[i], beside));
    }
    return SMP_OK;
}

smp_status smp__outputs_check(const smp__trainer *t)
{
    const smp_train_options *o = t->options;
    bool keeps;
    SMP_TRY(smp__keep_has_state(t->job, &keeps));
    if (!t->prints)
        return SMP_OK;
    SMP_TRY(spare_model(t));
    if (o->checkpoint)
        SMP_TRY(check_checkpoint(t, keeps));
    if (o->report && !smp__job_has_cluster(t->job))
        return smp_fail(SMP_ERR_INPUT,
                        "--report: the plan has no `cluster:`, so there is no prediction to draw: "
                        "plan again with this version of smp-partition");
    SMP_TRY(check_folder(o->trace, "the trace"));
    SMP_TRY(check_folder(o->profile, "the profile"));
    SMP_TRY(check_folder(o->predict, "the prediction"));
    if (o->weights)
        SMP_TRY(smp__export_check(t->job, o->weights, &o->weights_as));
    if (check_folder(o->weights, "the weights") != SMP_OK)
        return smp_fail(SMP_ERR_FAILED, "%s", smp_last_error());
    return check_folder(o->report, "the report");
}

static smp_status copy_file(const char *from, const char *to)
{
    enum { MOST = 1 << 28 };
    char *data = NULL;
    size_t bytes = 0;
    smp_status status = smp_file_read(from, MOST, &data, &bytes);
    if (status == SMP_OK)
        status = smp_file_write(to, data, bytes);
    free(data);
    return status;
}

smp_status smp__folder_complete(const smp__trainer *t)
{
    static const char *const NAMES[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "vocab.txt",
                                        "merges.txt",
                                        "spiece.model",
                                        "sentencepiece.bpe.model",
                                        "chat_template.jinja",
                                        "preprocessor_config.json",
                                        "processor_config.json"};
    const smp_train_options *o = t->options;
    const size_t length = strlen(o->weights);
    const bool folder = length > 0 && o->weights[length - 1] == '/';
    smp_status status = SMP_OK;
    if (!t->prints || !folder || !o->given || !o->weights_as.names)
        return SMP_OK;
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]) && status == SMP_OK; i++) {
        smp_text from = {0}, to = {0};
        smp_text_append(&from, "%s/%s", o->given, NAMES[i]);
        smp_text_append(&to, "%s%s", o->weights, NAMES[i]);
        if (from.failed || to.failed)
            status = smp_fail_memory(1);
        else if (access(from.data, F_OK) == 0)
            status = copy_file(from.data, to.data);
        smp_text_free(&from);
        smp_text_free(&to);
    }
    return status;
}
