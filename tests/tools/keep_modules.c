/* Linked into sanitised tests that use MPI: modules that Open MPI loads stay loaded, so that the
 * leak report can name them and tests/lsan.supp can leave them out. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
