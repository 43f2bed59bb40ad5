# Source before mpirun: Open MPI settings for all ranks on one machine, with more ranks than cores
# if need be. They are environment variables, so a user's own command line goes before them.
# shellcheck shell=bash

# mpirun refuses root without both.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# As mpirun --oversubscribe. Ranks that wait give the core away: without this a message between ranks
# that share a core takes milliseconds.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
# As mpirun --bind-to none: let the system spread the ranks.
export OMPI_MCA_hwloc_base_binding_policy=none
# One machine: start no remote daemons, so neither ssh nor rsh needs to be installed.
export OMPI_MCA_plm=isolated
# Open MPI's hwloc complains where it cannot see the machine, as in some containers, and goes on. 2
# silences all of that, 1 leaves out what it calls critical.
export HWLOC_HIDE_ERRORS=2
