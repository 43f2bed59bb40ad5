/* The agent of a job on one host: smp-run --elastic-agent, started by the supervisor, directly or
 * through a shell on that host. It watches ranks, ends them, and holds the memory that outlives
 * them. Lines of text on its standard streams, of SMP__AGENT_LINE bytes at most:
 *
 *   to the agent             from the agent
 *   beat                     smp-agent 2 KIND            first: the version, and the devices' kind
 *   watch N RANKS            ready N STATE | failed N WHY  ranks of incarnation N may be started;
 *                                                        1: the folder holds a state
 *                            rank RANK PID LIVES STEP QUIET  QUIET: milliseconds without a beat
 *                            beat                        ten times a second, after all ranks
 *   kill RANK | kill all
 *   states                   state STATE ..., states     what is kept in memory (kept_ranges.h);
 *                                                        of a long one pieces, more PIECE, first
 *   put ID STEP PATH         put BYTES | failed 0 WHY    its bytes of a state, into that file
 *   remove                   removed | failed 0 WHY      all of it
 *   end                                                  it leaves
 *
 * Without a supervisor, which has closed the stream or does not beat, it kills its ranks, holds the
 * folder for a while so that a supervisor may come, and then removes it. It leaves when the agent
 * of a later supervisor comes: a lock beside the folder, KEEP-agent, is one's alone. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_AGENT_H
#define SMP_TOOLS_ELASTIC_HOSTS_AGENT_H

#include <stdbool.h>

#include "graph/base/status.h"

#define SMP__AGENT_WORD "--elastic-agent"
#define SMP__AGENT_HELLO "smp-agent 2 "
enum { SMP__AGENT_LINE = 4096, SMP__AGENT_RANKS = 1 << 16, SMP__AGENT_EVERY_MS = 100 };

/* Is this the command of an agent? */
bool smp__agent_asked(int argc, char **argv);
/* --elastic-agent KEEP LIMIT KEEP-FOR DEVICE: seconds without a word of the supervisor, 0: any
 * number; seconds to hold the folder; cpu or gpu. The exit code. */
int smp__agent(int argc, char **argv);

/* The folder for what ranks of a host share, KEEP-mpi. SMP_ERR_INPUT: the name is too long. */
smp_status smp__agent_shared(const char *keep, char *path, unsigned long size);

#endif
